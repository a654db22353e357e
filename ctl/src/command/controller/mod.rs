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
Example, a volume's lifecycle in the controller:
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
    /// Create a volume, or find the one with this name (CreateVolume)
    #[command(after_help = LIFE)]
    Create(Create),
    /// Delete a volume and its data (DeleteVolume)
    Delete {
        /// Id of the volume
        volume_id: String,
    },
    /// Attach a volume to a node; prints the publish context (ControllerPublishVolume)
    Publish(Publish),
    /// Detach a volume from a node, or from all nodes (ControllerUnpublishVolume)
    Unpublish {
        /// Id of the volume
        volume_id: String,
        /// The node [default: all nodes]
        #[arg(long, default_value = "", hide_default_value = true)]
        node_id: String,
    },
    /// Check whether a volume supports a capability (ValidateVolumeCapabilities)
    Validate {
        /// Id of the volume
        volume_id: String,
        #[command(flatten)]
        access: Access,
    },
    /// List volumes, page by page (ListVolumes)
    List {
        /// Maximum number of entries (0: the driver's default)
        #[arg(long, default_value_t = 0)]
        max_entries: i32,
        /// Token of the page, from the previous page
        #[arg(long, default_value = "", hide_default_value = true)]
        starting_token: String,
    },
    /// Show a volume (ControllerGetVolume)
    Get {
        /// Id of the volume
        volume_id: String,
    },
    /// Show the health of a volume, as the storage sees it (ControllerGetVolumeHealth); exits
    /// with 2 if it is unhealthy
    Health {
        /// Id of the volume
        volume_id: String,
    },
    /// List unhealthy volumes (ControllerListVolumeHealth); exits with 2 if there are any
    HealthList {
        /// Maximum number of entries per page (0: the driver's default). Reads all pages
        #[arg(long, default_value_t = 0)]
        max_entries: i32,
    },
    /// Show free capacity (GetCapacity)
    Capacity {
        /// Storage class parameter; may be repeated
        #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
        parameters: Vec<Pair>,
        /// Topology segment of the volumes, as key=value; may be repeated
        #[arg(long = "topology", value_name = "KEY=VALUE", value_parser = pair)]
        topology: Vec<Pair>,
    },
    /// List the capabilities of the controller (ControllerGetCapabilities)
    Capabilities,
    /// Expand a volume (ControllerExpandVolume)
    Expand {
        /// Id of the volume
        volume_id: String,
        /// Minimum size, e.g. 2GiB
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        size: i64,
        /// Maximum size
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        limit: Option<i64>,
        #[command(flatten)]
        access: Access,
    },
    /// Create a snapshot, or find the one with this name (CreateSnapshot)
    SnapshotCreate {
        /// Name of the snapshot
        name: String,
        /// Id of the volume
        volume_id: String,
        /// Snapshot class parameter; may be repeated
        #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
        parameters: Vec<Pair>,
    },
    /// Delete a snapshot; volumes restored from it remain (DeleteSnapshot)
    SnapshotDelete {
        /// Id of the snapshot
        snapshot_id: String,
    },
    /// List snapshots, page by page (ListSnapshots)
    SnapshotList {
        /// Only snapshots of this volume
        #[arg(long, default_value = "", hide_default_value = true)]
        volume_id: String,
        /// Only this snapshot
        #[arg(long, default_value = "", hide_default_value = true)]
        snapshot_id: String,
        /// Maximum number of entries (0: the driver's default)
        #[arg(long, default_value_t = 0)]
        max_entries: i32,
        /// Token of the page, from the previous page
        #[arg(long, default_value = "", hide_default_value = true)]
        starting_token: String,
    },
    /// Show a snapshot (GetSnapshot)
    SnapshotGet {
        /// Id of the snapshot
        snapshot_id: String,
    },
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the volume
    name: String,
    /// Minimum size, e.g. 1GiB, 500Mi or bytes [default: the driver's]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<i64>,
    /// Maximum size
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    limit: Option<i64>,
    #[command(flatten)]
    access: Access,
    /// Storage class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<Pair>,
    /// Topology segment it must be reachable from, as key=value; may be repeated
    #[arg(long = "topology", value_name = "KEY=VALUE", value_parser = pair)]
    topology: Vec<Pair>,
    /// Id of a snapshot to restore
    #[arg(long, value_name = "SNAPSHOT_ID", conflicts_with = "from_volume")]
    from_snapshot: Option<String>,
    /// Id of a volume to clone
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
    /// Volume context, as printed by `create`; may be repeated
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

/// A connection for one call.
struct Call<'a> {
    target: &'a Target,
    client: ControllerClient<Channel>,
}
