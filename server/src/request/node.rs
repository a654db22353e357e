//! The requests to the node service.

use super::capability::Capability;
use super::change::CapacityRange;
use super::context::{Context, Secrets};
use super::paths::{AbsPath, looked_up};
use super::text::{STRING_BYTES_MAX, VolumeId};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use std::path::PathBuf;

const CAPABILITY: &str = "volume_capability";
const STAGING: &str = "staging_target_path";
const TARGET: &str = "target_path";

/// A request to make a volume usable on this node.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The publish context, as the controller returned it on attach.
    pub publish_context: Context,
    /// The path where the volume is staged.
    pub staging: AbsPath,
    /// The requested use of the volume.
    pub capability: Capability,
    /// The credentials in the request.
    pub secrets: Secrets,
    /// The volume context, as `CreateVolume` returned it or an administrator wrote it.
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

/// A request to unstage a volume.
#[derive(Clone, Debug)]
pub struct Unstage {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The path where the volume is staged.
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

/// A request to make a volume available to a workload.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The publish context, as the controller returned it on attach.
    pub publish_context: Context,
    /// The staging path; `None` if the driver does not stage volumes.
    pub staging: Option<AbsPath>,
    /// The path at which the workload will access the volume.
    pub target: AbsPath,
    /// The requested use of the volume.
    pub capability: Capability,
    /// Whether access is read-only, regardless of the capability.
    pub read_only: bool,
    /// The volume context, as `CreateVolume` returned it or an administrator wrote it.
    pub volume_context: Context,
}

impl TryFrom<csi::NodePublishVolumeRequest> for Publish {
    type Error = Failure;

    fn try_from(request: csi::NodePublishVolumeRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

impl Publish {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::NodePublishVolumeRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        let staging = request.staging_target_path;
        let staging = (!staging.is_empty()).then(|| AbsPath::new(STAGING, staging));
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            publish_context: Context::new("publish_context", request.publish_context)?,
            staging: staging.transpose()?,
            target: AbsPath::new(TARGET, request.target_path)?,
            capability: Capability::required(CAPABILITY, request.volume_capability)?,
            read_only: request.readonly,
            volume_context: Context::new("volume_context", request.volume_context)?,
        })
    }
}

/// A request to undo the publishing of a volume.
#[derive(Clone, Debug)]
pub struct Unpublish {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The path at which the workload accesses the volume.
    pub target: AbsPath,
}

impl TryFrom<csi::NodeUnpublishVolumeRequest> for Unpublish {
    type Error = Failure;

    fn try_from(request: csi::NodeUnpublishVolumeRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

impl Unpublish {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::NodeUnpublishVolumeRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            target: AbsPath::new(TARGET, request.target_path)?,
        })
    }
}

/// A request for the usage of a volume.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The path where the volume is staged or published. The operation returns `NotFound` for a
    /// relative path.
    pub volume_path: PathBuf,
    /// The path where the volume is staged, if known.
    pub staging: Option<PathBuf>,
}

impl TryFrom<csi::NodeGetVolumeStatsRequest> for Stats {
    type Error = Failure;

    fn try_from(request: csi::NodeGetVolumeStatsRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

impl Stats {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::NodeGetVolumeStatsRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            volume_path: looked_up("volume_path", request.volume_path)?,
            staging: looked_up_if_given(request.staging_target_path)?,
        })
    }
}

/// A request to grow the filesystem to the size of its device.
#[derive(Clone, Debug)]
pub struct NodeExpand {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The path where the volume is staged or published. The operation returns `NotFound` for a
    /// relative path.
    pub volume_path: PathBuf,
    /// The bounds for the new size; `None` means the size of the device.
    pub range: Option<CapacityRange>,
    /// The path where the volume is staged, if known.
    pub staging: Option<PathBuf>,
    /// The use of the volume; `None` if unknown.
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
