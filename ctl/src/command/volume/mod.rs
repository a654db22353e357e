//! `belayctl volume`: the calls about volumes that the sidecars make on the controller socket.

mod change;
mod flags;
mod health;
mod look;

use belay_proto::csi::v1::controller_client::ControllerClient;
use clap::Subcommand;
use tonic::transport::Channel;

use crate::failure::Failure;
use crate::render::Answer;
use crate::target::Target;
pub(crate) use flags::Pages;
use flags::{Attach, Capacity, Create, Detach, Expand, HealthList, List, Modify, One, Validate};

const LIFE: &str = "\
Example, a volume's lifecycle in the controller:
  belayctl volume create data --size 1GiB --fs-type ext4
  umask 077  # a.json has the secret of the volume's format mark, if it has one
  belayctl volume attach vol-1 --node-id n1 --fs-type ext4 -o json --show-secrets >a.json
  belayctl volume expand vol-1 --size 2GiB
  belayctl snapshot create backup vol-1
  belayctl volume create copy --from-snapshot snap-1 --fs-type ext4
  belayctl volume detach vol-1 --node-id n1
  belayctl volume delete vol-1
`node stage --context-from a.json` continues on the node; `belayctl mount` does it all.";

/// Aliases that are not visible are those of csc.
#[derive(Subcommand)]
#[command(after_help = LIFE)]
pub(crate) enum VolumeCommand {
    /// Create a volume, or find the one with this name (CreateVolume)
    #[command(after_help = LIFE, aliases = ["create-volume", "new", "n", "c"])]
    Create(Create),
    /// Delete a volume and its data (DeleteVolume)
    #[command(aliases = ["delete-volume", "rm", "del", "d"])]
    Delete(One),
    /// Attach a volume to a node; prints the publish context (ControllerPublishVolume)
    #[command(visible_alias = "publish", alias = "controller-publish")]
    Attach(Attach),
    /// Detach a volume from a node, or from all nodes (ControllerUnpublishVolume)
    #[command(visible_alias = "unpublish", alias = "controller-unpublish")]
    Detach(Detach),
    /// Check whether a volume supports a capability (ValidateVolumeCapabilities); exits with 2 if
    /// it does not
    #[command(alias = "validate-volume-capabilities")]
    Validate(Validate),
    /// List volumes (ListVolumes)
    #[command(visible_alias = "ls", aliases = ["list-volumes", "volumes"])]
    List(List),
    /// Show a volume (ControllerGetVolume)
    #[command(alias = "get-volume")]
    Get {
        /// Id of the volume
        volume_id: String,
    },
    /// Expand a volume (ControllerExpandVolume)
    #[command(aliases = ["expand-volume", "exp"])]
    Expand(Expand),
    /// Change the mutable parameters of a volume (ControllerModifyVolume)
    #[command(alias = "modify-volume")]
    Modify(Modify),
    /// Show the health of a volume, as the storage sees it (ControllerGetVolumeHealth); exits
    /// with 2 if it is unhealthy
    Health(One),
    /// List unhealthy volumes (ControllerListVolumeHealth); exits with 2 if there are any
    #[command(visible_alias = "unhealthy")]
    HealthList(HealthList),
    /// Show free capacity (GetCapacity)
    #[command(alias = "get-capacity")]
    Capacity(Capacity),
    /// List the capabilities of the controller (ControllerGetCapabilities)
    #[command(alias = "get-capabilities")]
    Capabilities,
}

impl VolumeCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let call = Call {
            target,
            client: ControllerClient::new(target.connect().await?),
        };
        match self {
            Self::Create(flags) => call.create(flags).await,
            Self::Delete(flags) => call.delete(flags).await,
            Self::Attach(flags) => call.attach(flags).await,
            Self::Detach(flags) => call.detach(flags).await,
            Self::Validate(flags) => call.validate(flags).await,
            Self::List(flags) => call.list(flags).await,
            Self::Get { volume_id } => call.get(volume_id).await,
            Self::Expand(flags) => call.expand(flags).await,
            Self::Modify(flags) => call.modify(flags).await,
            Self::Health(flags) => call.health(flags).await,
            Self::HealthList(flags) => call.health_list(flags).await,
            Self::Capacity(flags) => call.capacity(flags).await,
            Self::Capabilities => call.capabilities().await,
        }
    }
}

/// A connection for one command.
struct Call<'a> {
    target: &'a Target,
    client: ControllerClient<Channel>,
}
