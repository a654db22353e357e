//! The flags of `belayctl node`, and the requests that they describe.

use belay_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest,
};
use clap::Args;

use crate::access::Access;
use crate::context::Contexts;
use crate::failure::Failure;
use crate::secrets::Secrets;
use crate::size;

#[derive(Args)]
pub(crate) struct Stage {
    /// Id of the volume
    volume_id: String,
    /// Staging path; the directory must exist
    #[arg(long, alias = "staging-target-path", value_name = "PATH")]
    staging: String,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    contexts: Contexts,
    #[command(flatten)]
    secrets: Secrets,
}

/// A driver without staging publishes volumes without a staging path.
#[derive(Args)]
#[command(mut_arg("staging", |arg| {
    arg.required(false)
        .default_value("")
        .hide_default_value(true)
        .help("Staging path, unless the driver stages no volumes")
}))]
pub(crate) struct Publish {
    /// Target path; its parent directory must exist
    #[arg(long, alias = "target-path", value_name = "PATH")]
    target: String,
    /// Publish read-only
    #[arg(long, alias = "read-only")]
    readonly: bool,
    // Last: the headings in it hold for all that follows.
    #[command(flatten)]
    stage: Stage,
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
    #[command(flatten)]
    secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Unstage {
    /// Id of the volume
    pub(super) volume_id: String,
    /// Where it is staged
    #[arg(long, alias = "staging-target-path", value_name = "PATH")]
    pub(super) staging: String,
}

#[derive(Args)]
pub(crate) struct Unpublish {
    /// Id of the volume
    pub(super) volume_id: String,
    /// Where it is published
    #[arg(long, alias = "target-path", value_name = "PATH")]
    pub(super) target: String,
}

#[derive(Args)]
pub(crate) struct Stats {
    /// Id of the volume
    pub(super) volume_id: String,
    /// Where it is published or staged
    #[arg(long, value_name = "PATH")]
    pub(super) path: String,
    /// Where it is staged
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) staging: String,
}

impl Stage {
    /// # Errors
    /// A context or a secret cannot be read.
    pub(super) fn request(self) -> Result<NodeStageVolumeRequest, Failure> {
        let contexts = self.contexts.load()?;
        Ok(NodeStageVolumeRequest {
            volume_id: self.volume_id,
            publish_context: contexts.publish,
            staging_target_path: self.staging,
            volume_capability: Some(self.access.capability()),
            secrets: self.secrets.load()?,
            volume_context: contexts.volume,
        })
    }
}

impl Publish {
    /// # Errors
    /// As [`Stage::request`].
    pub(super) fn request(self) -> Result<NodePublishVolumeRequest, Failure> {
        let stage = self.stage.request()?;
        Ok(NodePublishVolumeRequest {
            volume_id: stage.volume_id,
            publish_context: stage.publish_context,
            staging_target_path: stage.staging_target_path,
            target_path: self.target,
            volume_capability: stage.volume_capability,
            readonly: self.readonly,
            secrets: stage.secrets,
            volume_context: stage.volume_context,
        })
    }
}

impl Health {
    pub(super) fn request(self) -> NodeGetVolumeHealthRequest {
        NodeGetVolumeHealthRequest {
            volume_id: self.volume_id,
            volume_publish_path: self.target,
            staging_target_path: self.staging,
        }
    }
}

impl Expand {
    /// # Errors
    /// A secret cannot be read.
    pub(super) fn request(self) -> Result<NodeExpandVolumeRequest, Failure> {
        let range = |required_bytes| CapacityRange {
            required_bytes,
            limit_bytes: 0,
        };
        Ok(NodeExpandVolumeRequest {
            volume_id: self.volume_id,
            volume_path: self.path,
            staging_target_path: self.staging,
            capacity_range: self.size.map(range),
            volume_capability: self.access.capability_if_asked(),
            secrets: self.secrets.load()?,
        })
    }
}
