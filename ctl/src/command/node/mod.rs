//! `belayctl node`: the calls that the kubelet makes on the node socket.

mod answers;
mod flags;

use belay_proto::csi::v1::node_client::NodeClient;
use belay_proto::csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeStatsRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use clap::Subcommand;
use tonic::transport::Channel;

use crate::command::health;
use crate::command::identity::named;
use crate::command::jobs::Jobs;
use crate::failure::Failure;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::target::Target;
use flags::{Expand, Health, Publish, Stage, Stats, Unpublish, Unstage};

const LIFE: &str = "\
Example, a volume's lifecycle on the node (a.json: `volume attach -o json --show-secrets`):
  belayctl node stage vol-1 --staging /mnt/staging --fs-type ext4 --context-from a.json
  belayctl node publish vol-1 --staging /mnt/staging --target /mnt/pod --fs-type ext4 \\
    --context-from a.json
  belayctl node stats vol-1 --path /mnt/pod
  belayctl node unpublish vol-1 --target /mnt/pod
  belayctl node unstage vol-1 --staging /mnt/staging";

/// The calls of the service, and what only Belay's programs have.
#[derive(Subcommand)]
#[command(after_help = LIFE)]
pub(crate) enum NodeGroup {
    #[command(flatten)]
    Call(Box<NodeCommand>),
    /// List the operations in progress of a Belay program, by its HTTP port
    Jobs(Jobs),
}

impl NodeGroup {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        match self {
            Self::Call(command) => command.run(target).await,
            Self::Jobs(command) => command.run(target).await,
        }
    }
}

/// Aliases that are not visible are those of csc.
#[derive(Subcommand)]
pub(crate) enum NodeCommand {
    /// Make a volume usable on the node, formatting it if it is blank (NodeStageVolume)
    #[command(after_help = LIFE)]
    Stage(Stage),
    /// Unstage a volume (NodeUnstageVolume)
    Unstage(Unstage),
    /// Publish a volume at a target path (NodePublishVolume)
    #[command(aliases = ["mnt", "mount"])]
    Publish(Publish),
    /// Unpublish a volume (NodeUnpublishVolume)
    #[command(aliases = ["umount", "unmount"])]
    Unpublish(Unpublish),
    /// Show the usage of a volume (NodeGetVolumeStats)
    Stats(Stats),
    /// Show the health of a volume, as this node sees it (NodeGetVolumeHealth); exits with 2 if
    /// it is unhealthy
    Health(Health),
    /// Show the health of the storage behind all volumes, as this node sees it
    /// (NodeGetStorageHealth); exits with 2 if it is unhealthy
    StorageHealth {
        #[command(flatten)]
        secrets: Secrets,
    },
    /// Grow the filesystem to the size of its device (NodeExpandVolume)
    #[command(aliases = ["expand-volume", "exp"])]
    Expand(Expand),
    /// Show id, limits and topology of the node (NodeGetInfo)
    #[command(alias = "get-info")]
    Info,
    /// List the capabilities of the node service (NodeGetCapabilities)
    #[command(alias = "get-capabilities")]
    Capabilities,
}

impl NodeCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let call = Call {
            target,
            client: NodeClient::new(target.connect().await?),
        };
        match self {
            Self::Stage(flags) => call.stage(flags).await,
            Self::Unstage(flags) => call.unstage(flags).await,
            Self::Publish(flags) => call.publish(flags).await,
            Self::Unpublish(flags) => call.unpublish(flags).await,
            Self::Stats(flags) => call.stats(flags).await,
            Self::Health(flags) => call.health(flags).await,
            Self::StorageHealth { secrets } => call.storage_health(&secrets).await,
            Self::Expand(flags) => call.expand(flags).await,
            Self::Info => call.info().await,
            Self::Capabilities => call.capabilities().await,
        }
    }
}

/// A connection for one command.
struct Call<'a> {
    target: &'a Target,
    client: NodeClient<Channel>,
}

impl Call<'_> {
    async fn stage(mut self, flags: Stage) -> Result<Answer, Failure> {
        let call = self.client.node_stage_volume(flags.request()?);
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    async fn unstage(mut self, flags: Unstage) -> Result<Answer, Failure> {
        let call = self.client.node_unstage_volume(NodeUnstageVolumeRequest {
            volume_id: flags.volume_id,
            staging_target_path: flags.staging,
        });
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    async fn publish(mut self, flags: Publish) -> Result<Answer, Failure> {
        let call = self.client.node_publish_volume(flags.request()?);
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    async fn unpublish(mut self, flags: Unpublish) -> Result<Answer, Failure> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: flags.volume_id,
            target_path: flags.target,
        };
        let call = self.client.node_unpublish_volume(request);
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    async fn stats(mut self, flags: Stats) -> Result<Answer, Failure> {
        let call = self
            .client
            .node_get_volume_stats(NodeGetVolumeStatsRequest {
                volume_id: flags.volume_id,
                volume_path: flags.path,
                staging_target_path: flags.staging,
            });
        Ok(answers::stats(self.target.wait_for(call).await?))
    }

    async fn health(mut self, flags: Health) -> Result<Answer, Failure> {
        let call = self.client.node_get_volume_health(flags.request());
        health::of_one(self.target.wait_for(call).await?.volume_health)
    }

    async fn storage_health(mut self, secrets: &Secrets) -> Result<Answer, Failure> {
        let secrets = secrets.load()?;
        let request = NodeGetStorageHealthRequest { secrets };
        let call = self.client.node_get_storage_health(request);
        let answer = self.target.wait_for(call).await?;
        Ok(health::of_storage(answer.backend_health))
    }

    async fn expand(mut self, flags: Expand) -> Result<Answer, Failure> {
        let call = self.client.node_expand_volume(flags.request()?);
        let bytes = self.target.wait_for(call).await?.capacity_bytes;
        Ok(Answer::Record(vec![("capacity_bytes", Cell::Bytes(bytes))]))
    }

    async fn info(mut self) -> Result<Answer, Failure> {
        let call = self.client.node_get_info(NodeGetInfoRequest {});
        Ok(answers::info(self.target.wait_for(call).await?))
    }

    async fn capabilities(mut self) -> Result<Answer, Failure> {
        let request = NodeGetCapabilitiesRequest {};
        let call = self.client.node_get_capabilities(request);
        let answer = self.target.wait_for(call).await?;
        Ok(named(answer.capabilities.iter().map(answers::name_of)))
    }
}
