//! `belayctl controller`: the calls that the sidecars make on the controller socket.

mod change;
mod health;
mod look;
mod snapshot;

use belay_proto::csi::v1::controller_client::ControllerClient;
use belay_proto::csi::v1::{ListSnapshotsRequest, ListVolumesRequest};
use clap::{Args, Subcommand};
use tonic::transport::Channel;

use crate::access::{Access, Pair, pair};
use crate::command::controller::change::range;
use crate::failure::Failure;
use crate::render::Answer;
use crate::size;
use crate::target::Target;

const LIFE: &str = "\
Example, a volume's life in the controller:
  belayctl controller create data --size 1GiB --fs-type ext4
  belayctl controller publish vol-1 --node-id n1 --fs-type ext4
  belayctl controller expand vol-1 --size 2GiB
  belayctl controller snapshot-create backup vol-1
  belayctl controller create copy --from-snapshot snap-1 --fs-type ext4
  belayctl controller unpublish vol-1 --node-id n1
  belayctl controller delete vol-1";

#[derive(Subcommand)]
#[command(after_help = LIFE)]
pub(crate) enum ControllerCommand {
    /// Make a volume, or find the one of that name (CreateVolume)
    #[command(after_help = LIFE)]
    Create(Create),
    /// Delete a volume and its data (DeleteVolume)
    Delete {
        /// Id of the volume
        volume_id: String,
    },
    /// Attach a volume to a node; answers the publish context (ControllerPublishVolume)
    Publish(Publish),
    /// Detach a volume from a node, or from all (ControllerUnpublishVolume)
    Unpublish {
        /// Id of the volume
        volume_id: String,
        /// The node; without it, every node
        #[arg(long, default_value = "", hide_default_value = true)]
        node_id: String,
    },
    /// Could the volume be used so? (ValidateVolumeCapabilities)
    Validate {
        /// Id of the volume
        volume_id: String,
        #[command(flatten)]
        access: Access,
    },
    /// All volumes, page by page (ListVolumes)
    List {
        /// So many at most; 0 leaves it to the driver
        #[arg(long, default_value_t = 0)]
        max_entries: i32,
        /// Where the previous page ended
        #[arg(long, default_value = "", hide_default_value = true)]
        starting_token: String,
    },
    /// One volume (ControllerGetVolume)
    Get {
        /// Id of the volume
        volume_id: String,
    },
    /// What is wrong with a volume, as the storage sees it (ControllerGetVolumeHealth); exits with
    /// 2 if anything is
    Health {
        /// Id of the volume
        volume_id: String,
    },
    /// All volumes that something is wrong with (ControllerListVolumeHealth); exits with 2 if there
    /// is one
    HealthList {
        /// So many a page at most; 0 leaves it to the driver. All pages are read
        #[arg(long, default_value_t = 0)]
        max_entries: i32,
    },
    /// How much can still be made (GetCapacity)
    Capacity {
        /// Storage class parameter; may be repeated
        #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
        parameters: Vec<Pair>,
        /// Place it would be used from; may be repeated
        #[arg(long = "topology", value_name = "KEY=VALUE", value_parser = pair)]
        topology: Vec<Pair>,
    },
    /// What the controller can do (ControllerGetCapabilities)
    Capabilities,
    /// Make a volume larger (ControllerExpandVolume)
    Expand {
        /// Id of the volume
        volume_id: String,
        /// At least this large, e.g. 2GiB
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        size: i64,
        /// At most this large
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        limit: Option<i64>,
        #[command(flatten)]
        access: Access,
    },
    /// Keep what a volume holds now, or find the snapshot of that name (CreateSnapshot)
    SnapshotCreate {
        /// Name of the snapshot: the same name again finds the same snapshot
        name: String,
        /// Id of the volume
        volume_id: String,
        /// Snapshot class parameter; may be repeated
        #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
        parameters: Vec<Pair>,
    },
    /// Delete a snapshot; what was restored from it stays (DeleteSnapshot)
    SnapshotDelete {
        /// Id of the snapshot
        snapshot_id: String,
    },
    /// All snapshots, page by page, or some of them (ListSnapshots)
    SnapshotList {
        /// Only those of this volume
        #[arg(long, default_value = "", hide_default_value = true)]
        volume_id: String,
        /// Only this one
        #[arg(long, default_value = "", hide_default_value = true)]
        snapshot_id: String,
        /// So many at most; 0 leaves it to the driver
        #[arg(long, default_value_t = 0)]
        max_entries: i32,
        /// Where the previous page ended
        #[arg(long, default_value = "", hide_default_value = true)]
        starting_token: String,
    },
    /// One snapshot (GetSnapshot)
    SnapshotGet {
        /// Id of the snapshot
        snapshot_id: String,
    },
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the volume: the same name again finds the same volume
    name: String,
    /// At least this large, e.g. 1GiB, 500Mi or bytes; without it the driver chooses
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<i64>,
    /// At most this large
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<i64>,
    #[command(flatten)]
    access: Access,
    /// Storage class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<Pair>,
    /// Place it must be usable from; may be repeated
    #[arg(long = "topology", value_name = "KEY=VALUE", value_parser = pair)]
    topology: Vec<Pair>,
    /// Id of a snapshot that it is filled from
    #[arg(long, value_name = "SNAPSHOT_ID", conflicts_with = "from_volume")]
    from_snapshot: Option<String>,
    /// Id of a volume that it is filled from
    #[arg(long, value_name = "VOLUME_ID")]
    from_volume: Option<String>,
}

#[derive(Args)]
pub(crate) struct Publish {
    /// Id of the volume
    volume_id: String,
    /// The node
    #[arg(long)]
    node_id: String,
    #[command(flatten)]
    access: Access,
    /// Attach read-only
    #[arg(long)]
    readonly: bool,
    /// Volume context, as `create` answered it; may be repeated
    #[arg(long = "volume-context", value_name = "KEY=VALUE", value_parser = pair)]
    volume_context: Vec<Pair>,
}

impl ControllerCommand {
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
            Self::Create(create) => call.create(create).await,
            Self::Delete { volume_id } => call.delete(volume_id).await,
            Self::Publish(publish) => call.publish(publish).await,
            Self::Unpublish { volume_id, node_id } => call.unpublish(volume_id, node_id).await,
            Self::Validate { volume_id, access } => call.validate(volume_id, access).await,
            Self::List {
                max_entries,
                starting_token,
            } => {
                call.list(ListVolumesRequest {
                    max_entries,
                    starting_token,
                })
                .await
            }
            Self::Get { volume_id } => call.get(volume_id).await,
            Self::Health { volume_id } => call.health(volume_id).await,
            Self::HealthList { max_entries } => call.health_list(max_entries).await,
            Self::Capacity {
                parameters,
                topology,
            } => call.capacity(parameters, topology).await,
            Self::Capabilities => call.capabilities().await,
            Self::Expand {
                volume_id,
                size,
                limit,
                access,
            } => {
                call.expand(volume_id, range(Some(size), limit), access)
                    .await
            }
            Self::SnapshotCreate {
                name,
                volume_id,
                parameters,
            } => call.snapshot_create(name, volume_id, parameters).await,
            Self::SnapshotDelete { snapshot_id } => call.snapshot_delete(snapshot_id).await,
            Self::SnapshotList {
                volume_id,
                snapshot_id,
                max_entries,
                starting_token,
            } => {
                call.snapshot_list(ListSnapshotsRequest {
                    source_volume_id: volume_id,
                    snapshot_id,
                    max_entries,
                    starting_token,
                    ..Default::default()
                })
                .await
            }
            Self::SnapshotGet { snapshot_id } => call.snapshot_get(snapshot_id).await,
        }
    }
}

/// One connection, for one call.
struct Call<'a> {
    target: &'a Target,
    client: ControllerClient<Channel>,
}
