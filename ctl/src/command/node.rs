//! `belayctl node`: the calls that the kubelet makes on the node socket.

use belay_proto::csi::v1::node_client::NodeClient;
use belay_proto::csi::v1::node_service_capability::Type;
use belay_proto::csi::v1::volume_usage::Unit;
use belay_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetInfoResponse, NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeServiceCapability, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use clap::{Args, Subcommand};
use tonic::transport::Channel;

use crate::access::{Access, Pair, map, pair};
use crate::command::health;
use crate::command::identity::named;
use crate::failure::Failure;
use crate::render::{Answer, Cell};
use crate::size;
use crate::target::Target;

const LIFE: &str = "\
Example, a volume's lifecycle on the node (--context as printed by `controller publish`):
  belayctl node stage vol-1 --staging /mnt/staging --fs-type ext4 \\
      --context transport=loop --context file=vol-1 --context bytes=1073741824 --context content=new
  belayctl node publish vol-1 --staging /mnt/staging --target /mnt/pod --fs-type ext4
  belayctl node stats vol-1 --path /mnt/pod
  belayctl node unpublish vol-1 --target /mnt/pod
  belayctl node unstage vol-1 --staging /mnt/staging";

#[derive(Subcommand)]
#[command(after_help = LIFE)]
pub(crate) enum NodeCommand {
    /// Make a volume usable on the node, formatting it if it is blank (NodeStageVolume)
    #[command(after_help = LIFE)]
    Stage(Stage),
    /// Unstage a volume (NodeUnstageVolume)
    Unstage {
        /// Id of the volume
        volume_id: String,
        /// Where it is staged
        #[arg(long, value_name = "PATH")]
        staging: String,
    },
    /// Publish a staged volume at a target path (NodePublishVolume)
    Publish(Publish),
    /// Unpublish a volume (NodeUnpublishVolume)
    Unpublish {
        /// Id of the volume
        volume_id: String,
        /// Where it is published
        #[arg(long, value_name = "PATH")]
        target: String,
    },
    /// Show the usage of a volume (NodeGetVolumeStats)
    Stats {
        /// Id of the volume
        volume_id: String,
        /// Where it is published or staged
        #[arg(long, value_name = "PATH")]
        path: String,
        /// Where it is staged
        #[arg(
            long,
            value_name = "PATH",
            default_value = "",
            hide_default_value = true
        )]
        staging: String,
    },
    /// Show the health of a volume, as this node sees it (NodeGetVolumeHealth); exits with 2 if
    /// it is unhealthy
    Health(Health),
    /// Show the health of the storage behind all volumes, as this node sees it
    /// (NodeGetStorageHealth); exits with 2 if it is unhealthy
    StorageHealth,
    /// Grow the filesystem to the size of its device (NodeExpandVolume)
    Expand(Expand),
    /// Show id, limits and topology of the node (NodeGetInfo)
    Info,
    /// List the capabilities of the node service (NodeGetCapabilities)
    Capabilities,
}

#[derive(Args)]
pub(crate) struct Stage {
    /// Id of the volume
    volume_id: String,
    /// Staging path; the directory must exist
    #[arg(long, value_name = "PATH")]
    staging: String,
    #[command(flatten)]
    access: Access,
    /// Publish context, as printed by `controller publish`; may be repeated
    #[arg(long = "context", value_name = "KEY=VALUE", value_parser = pair)]
    context: Vec<Pair>,
    /// Volume context, as printed by `controller create`; may be repeated
    #[arg(long = "volume-context", value_name = "KEY=VALUE", value_parser = pair)]
    volume_context: Vec<Pair>,
}

#[derive(Args)]
pub(crate) struct Publish {
    #[command(flatten)]
    stage: Stage,
    /// Target path; its parent directory must exist
    #[arg(long, value_name = "PATH")]
    target: String,
    /// Publish read-only
    #[arg(long)]
    readonly: bool,
}

#[derive(Args)]
pub(crate) struct Health {
    /// Id of the volume; it need not be staged or published
    volume_id: String,
    /// Where it is or should be published
    #[arg(
        long,
        visible_alias = "publish-path",
        value_name = "PATH",
        default_value = "",
        hide_default_value = true
    )]
    target: String,
    /// Where it is or should be staged
    #[arg(
        long,
        visible_alias = "staging-path",
        value_name = "PATH",
        default_value = "",
        hide_default_value = true
    )]
    staging: String,
}

#[derive(Args)]
pub(crate) struct Expand {
    /// Id of the volume
    volume_id: String,
    /// Where it is published or staged
    #[arg(long, value_name = "PATH")]
    path: String,
    /// Where it is staged
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true
    )]
    staging: String,
    /// Minimum size, e.g. 2GiB [default: the size of the device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<i64>,
    #[command(flatten)]
    access: Access,
}

impl NodeCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut client = NodeClient::new(target.connect().await?);
        match self {
            Self::Stage(stage) => {
                target
                    .wait_for(client.node_stage_volume(stage.request()))
                    .await?;
                Ok(Answer::Done)
            }
            Self::Unstage { volume_id, staging } => {
                let request = NodeUnstageVolumeRequest {
                    volume_id,
                    staging_target_path: staging,
                };
                target.wait_for(client.node_unstage_volume(request)).await?;
                Ok(Answer::Done)
            }
            Self::Publish(publish) => {
                target
                    .wait_for(client.node_publish_volume(publish.request()))
                    .await?;
                Ok(Answer::Done)
            }
            Self::Unpublish {
                volume_id,
                target: path,
            } => {
                let request = NodeUnpublishVolumeRequest {
                    volume_id,
                    target_path: path,
                };
                target
                    .wait_for(client.node_unpublish_volume(request))
                    .await?;
                Ok(Answer::Done)
            }
            Self::Stats {
                volume_id,
                path,
                staging,
            } => {
                let request = NodeGetVolumeStatsRequest {
                    volume_id,
                    volume_path: path,
                    staging_target_path: staging,
                };
                let call = client.node_get_volume_stats(request);
                Ok(stats(target.wait_for(call).await?))
            }
            Self::Health(health) => health.run(target, client).await,
            Self::StorageHealth => {
                let call = client.node_get_storage_health(NodeGetStorageHealthRequest::default());
                let answer = target.wait_for(call).await?;
                Ok(health::of_storage(answer.backend_health))
            }
            Self::Expand(expand) => expand.run(target, client).await,
            Self::Info => Ok(info(
                target
                    .wait_for(client.node_get_info(NodeGetInfoRequest {}))
                    .await?,
            )),
            Self::Capabilities => {
                let request = NodeGetCapabilitiesRequest {};
                let answer = target
                    .wait_for(client.node_get_capabilities(request))
                    .await?;
                Ok(named(answer.capabilities.iter().map(name_of)))
            }
        }
    }
}

impl Stage {
    fn request(self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.volume_id,
            publish_context: map(self.context),
            staging_target_path: self.staging,
            volume_capability: Some(self.access.capability()),
            volume_context: map(self.volume_context),
            ..NodeStageVolumeRequest::default()
        }
    }
}

impl Publish {
    fn request(self) -> NodePublishVolumeRequest {
        let stage = self.stage.request();
        NodePublishVolumeRequest {
            volume_id: stage.volume_id,
            publish_context: stage.publish_context,
            staging_target_path: stage.staging_target_path,
            target_path: self.target,
            volume_capability: stage.volume_capability,
            readonly: self.readonly,
            volume_context: stage.volume_context,
            ..NodePublishVolumeRequest::default()
        }
    }
}

impl Health {
    async fn run(
        self,
        target: &Target,
        mut client: NodeClient<Channel>,
    ) -> Result<Answer, Failure> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: self.volume_id,
            volume_publish_path: self.target,
            staging_target_path: self.staging,
        };
        let call = client.node_get_volume_health(request);
        health::of_one(target.wait_for(call).await?.volume_health)
    }
}

impl Expand {
    async fn run(
        self,
        target: &Target,
        mut client: NodeClient<Channel>,
    ) -> Result<Answer, Failure> {
        let request = NodeExpandVolumeRequest {
            volume_id: self.volume_id,
            volume_path: self.path,
            staging_target_path: self.staging,
            capacity_range: self.size.map(|required_bytes| CapacityRange {
                required_bytes,
                limit_bytes: 0,
            }),
            volume_capability: self.access.capability_if_asked(),
            ..NodeExpandVolumeRequest::default()
        };
        let answer = target.wait_for(client.node_expand_volume(request)).await?;
        Ok(Answer::Record(vec![(
            "capacity_bytes",
            Cell::Bytes(answer.capacity_bytes),
        )]))
    }
}

fn info(info: NodeGetInfoResponse) -> Answer {
    let segments = info.accessible_topology.unwrap_or_default().segments;
    Answer::Record(vec![
        ("node_id", Cell::Text(info.node_id)),
        (
            "max_volumes_per_node",
            Cell::Number(info.max_volumes_per_node),
        ),
        (
            "accessible_topology",
            Cell::Pairs(segments.into_iter().collect()),
        ),
    ])
}

/// The usage, and the condition if the driver reports it.
fn stats(mut stats: NodeGetVolumeStatsResponse) -> Answer {
    let condition = stats.volume_condition.take().map(health::condition);
    usage(&stats).with("volume_condition", condition)
}

/// One row per unit; inodes are counted, not measured in bytes.
fn usage(stats: &NodeGetVolumeStatsResponse) -> Answer {
    let rows = stats.usage.iter().map(|usage| {
        let amount = |value: i64| match usage.unit() {
            Unit::Bytes => Cell::Bytes(value),
            Unit::Inodes | Unit::Unknown => Cell::Number(value),
        };
        vec![
            Cell::Text(usage.unit().as_str_name().to_owned()),
            amount(usage.total),
            amount(usage.used),
            amount(usage.available),
        ]
    });
    Answer::Rows {
        name: "usage",
        columns: &["unit", "total", "used", "available"],
        rows: rows.collect(),
        next_token: String::new(),
    }
}

fn name_of(capability: &NodeServiceCapability) -> String {
    match &capability.r#type {
        Some(Type::Rpc(rpc)) => rpc.r#type().as_str_name().to_owned(),
        None => "UNKNOWN".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use belay_proto::csi::v1::VolumeUsage;

    use super::*;

    #[test]
    fn bytes_and_inodes_are_distinguished() {
        let of = |unit: Unit| VolumeUsage {
            available: 1,
            total: 3,
            used: 2,
            unit: unit.into(),
        };
        let stats = NodeGetVolumeStatsResponse {
            usage: vec![of(Unit::Bytes), of(Unit::Inodes)],
            volume_condition: None,
        };
        let Answer::Rows { rows, .. } = usage(&stats) else {
            panic!("usage is a list")
        };
        assert_eq!(
            rows[0][1..],
            [Cell::Bytes(3), Cell::Bytes(2), Cell::Bytes(1)]
        );
        assert_eq!(
            rows[1][1..],
            [Cell::Number(3), Cell::Number(2), Cell::Number(1)]
        );
    }

    #[test]
    fn a_condition_is_shown_if_the_driver_reports_one() {
        let told = |volume_condition| {
            stats(NodeGetVolumeStatsResponse {
                usage: Vec::new(),
                volume_condition,
            })
        };
        assert!(matches!(told(None), Answer::Rows { .. }));
        assert!(matches!(told(Some(Default::default())), Answer::With(..)));
    }

    #[test]
    fn a_node_without_topology_shows_an_empty_one() {
        let answer = info(NodeGetInfoResponse {
            node_id: "n".to_owned(),
            ..Default::default()
        });
        let Answer::Record(fields) = answer else {
            panic!("info is a record")
        };
        assert_eq!(fields[2].1, Cell::Pairs(Default::default()));
    }
}
