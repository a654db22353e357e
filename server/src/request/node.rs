//! The requests to the node service.

use super::capability::Capability;
use super::capacity::CapacityRange;
use super::context::{Context, Secrets};
use super::ids::VolumeId;
use super::paths::{AbsPath, looked_up};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use std::path::PathBuf;

const CAPABILITY: &str = "volume_capability";
const STAGING: &str = "staging_target_path";
const TARGET: &str = "target_path";

/// Make a volume usable on this node.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Which volume.
    pub id: VolumeId,
    /// As the controller gave it on attach.
    pub publish_context: Context,
    /// Where.
    pub staging: AbsPath,
    /// For what use.
    pub capability: Capability,
    /// Credentials.
    pub secrets: Secrets,
    /// As `CreateVolume` gave it, or as an administrator wrote it.
    pub volume_context: Context,
}

impl TryFrom<csi::NodeStageVolumeRequest> for Stage {
    type Error = Failure;

    fn try_from(request: csi::NodeStageVolumeRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            publish_context: Context::new("publish_context", request.publish_context)?,
            staging: AbsPath::new(STAGING, request.staging_target_path)?,
            capability: Capability::required(CAPABILITY, request.volume_capability)?,
            secrets: Secrets::new(request.secrets)?,
            volume_context: Context::new("volume_context", request.volume_context)?,
        })
    }
}

/// Undo the staging.
#[derive(Clone, Debug)]
pub struct Unstage {
    /// Which volume.
    pub id: VolumeId,
    /// Where it was staged.
    pub staging: AbsPath,
}

impl TryFrom<csi::NodeUnstageVolumeRequest> for Unstage {
    type Error = Failure;

    fn try_from(request: csi::NodeUnstageVolumeRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            staging: AbsPath::new(STAGING, request.staging_target_path)?,
        })
    }
}

/// Show a volume to a workload.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Which volume.
    pub id: VolumeId,
    /// As the controller gave it on attach.
    pub publish_context: Context,
    /// Where it is staged; none = a driver without staging.
    pub staging: Option<AbsPath>,
    /// Where the workload shall see it.
    pub target: AbsPath,
    /// For what use.
    pub capability: Capability,
    /// Only to be read, whatever the capability.
    pub read_only: bool,
    /// As `CreateVolume` gave it, or as an administrator wrote it.
    pub volume_context: Context,
}

impl TryFrom<csi::NodePublishVolumeRequest> for Publish {
    type Error = Failure;

    fn try_from(request: csi::NodePublishVolumeRequest) -> Result<Self, Failure> {
        let staging = request.staging_target_path;
        let staging = (!staging.is_empty()).then(|| AbsPath::new(STAGING, staging));
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            publish_context: Context::new("publish_context", request.publish_context)?,
            staging: staging.transpose()?,
            target: AbsPath::new(TARGET, request.target_path)?,
            capability: Capability::required(CAPABILITY, request.volume_capability)?,
            read_only: request.readonly,
            volume_context: Context::new("volume_context", request.volume_context)?,
        })
    }
}

/// Take a volume away from a workload.
#[derive(Clone, Debug)]
pub struct Unpublish {
    /// Which volume.
    pub id: VolumeId,
    /// Where the workload saw it.
    pub target: AbsPath,
}

impl TryFrom<csi::NodeUnpublishVolumeRequest> for Unpublish {
    type Error = Failure;

    fn try_from(request: csi::NodeUnpublishVolumeRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            target: AbsPath::new(TARGET, request.target_path)?,
        })
    }
}

/// How full is the volume?
#[derive(Clone, Debug)]
pub struct Stats {
    /// Which volume.
    pub id: VolumeId,
    /// Where it is staged or published. A relative one is for the operation to answer: not found.
    pub volume_path: PathBuf,
    /// Where it is staged, if told.
    pub staging: Option<PathBuf>,
}

impl TryFrom<csi::NodeGetVolumeStatsRequest> for Stats {
    type Error = Failure;

    fn try_from(request: csi::NodeGetVolumeStatsRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            volume_path: looked_up("volume_path", request.volume_path)?,
            staging: looked_up_if_given(request.staging_target_path)?,
        })
    }
}

/// Grow the filesystem to the size of its device.
#[derive(Clone, Debug)]
pub struct NodeExpand {
    /// Which volume.
    pub id: VolumeId,
    /// Where it is staged or published. A relative one is for the operation to answer: not found.
    pub volume_path: PathBuf,
    /// To which size; none = as large as the device.
    pub range: Option<CapacityRange>,
    /// Where it is staged, if told.
    pub staging: Option<PathBuf>,
    /// How it is used; none = not told.
    pub capability: Option<Capability>,
}

impl TryFrom<csi::NodeExpandVolumeRequest> for NodeExpand {
    type Error = Failure;

    fn try_from(request: csi::NodeExpandVolumeRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            volume_path: looked_up("volume_path", request.volume_path)?,
            range: request
                .capacity_range
                .map(CapacityRange::try_from)
                .transpose()?,
            staging: looked_up_if_given(request.staging_target_path)?,
            capability: Capability::optional(CAPABILITY, request.volume_capability)?,
        })
    }
}

fn looked_up_if_given(staging: String) -> Result<Option<PathBuf>, Failure> {
    (!staging.is_empty())
        .then(|| looked_up(STAGING, staging))
        .transpose()
}
