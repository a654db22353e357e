//! The requests to the controller service.

use super::capability::{Access, Capability};
use super::change::CapacityRange;
use super::context::{
    Context, Secrets, Segments, TopologyRequirement, segments, topology_requirement,
};
use super::text::{Name, NodeId, STRING_BYTES_MAX, SnapshotId, VolumeId, identifying_at_most};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use csi::volume_content_source::Type as SourceType;

/// A request to create a volume.
#[derive(Clone, Debug)]
pub struct CreateVolume {
    /// The name of the volume. Two calls with the same name request the same volume.
    pub name: Name,
    /// The bounds for the size; `None` requests the driver's default size.
    pub range: Option<CapacityRange>,
    /// The capabilities, all of which the volume must support. The list is not empty, and the
    /// capabilities do not contradict each other.
    pub capabilities: Vec<Capability>,
    /// The parameters of the StorageClass.
    pub parameters: Context,
    /// The parameters of the VolumeAttributesClass, which override `parameters`.
    pub mutable_parameters: Context,
    /// The source of the initial content; `None` requests an empty volume.
    pub source: Option<ContentSource>,
    /// The required topology; `None` allows any topology.
    pub topology: Option<TopologyRequirement>,
    /// The credentials in the request.
    pub secrets: Secrets,
}

/// The initial content of a new volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContentSource {
    /// The content of a snapshot.
    Snapshot(SnapshotId),
    /// The content of another volume.
    Volume(VolumeId),
}

impl CreateVolume {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(request: csi::CreateVolumeRequest, id_bytes_max: usize) -> Result<Self, Failure> {
        let capabilities = Capability::list_of_some(request.volume_capabilities)?;
        Ok(Self {
            name: Name::new(request.name)?,
            range: request
                .capacity_range
                .map(CapacityRange::try_from)
                .transpose()?,
            capabilities: agreeing(capabilities)?,
            parameters: Context::new("parameters", request.parameters)?,
            mutable_parameters: Context::new("mutable_parameters", request.mutable_parameters)?,
            source: request
                .volume_content_source
                .map(|source| ContentSource::read(source, id_bytes_max))
                .transpose()?,
            topology: topology_requirement(request.accessibility_requirements)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

impl TryFrom<csi::CreateVolumeRequest> for CreateVolume {
    type Error = Failure;

    fn try_from(request: csi::CreateVolumeRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

impl ContentSource {
    pub(super) fn read(
        source: csi::VolumeContentSource,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        match source.r#type {
            Some(SourceType::Snapshot(from)) => {
                let field = "volume_content_source.snapshot.snapshot_id";
                identifying_at_most(field, &from.snapshot_id, id_bytes_max)?;
                let id = SnapshotId::at_most(id_bytes_max, from.snapshot_id)?;
                Ok(Self::Snapshot(id))
            }
            Some(SourceType::Volume(from)) => {
                let field = "volume_content_source.volume.volume_id";
                identifying_at_most(field, &from.volume_id, id_bytes_max)?;
                let id = VolumeId::at_most(id_bytes_max, from.volume_id)?;
                Ok(Self::Volume(id))
            }
            None => {
                let why = "must be a snapshot or a volume";
                Err(Failure::invalid("volume_content_source", why))
            }
        }
    }
}

/// Refuses capabilities that contradict each other: a volume cannot be both a device and a
/// filesystem, or have two types of filesystem.
fn agreeing(capabilities: Vec<Capability>) -> Result<Vec<Capability>, Failure> {
    let mut first_fs_type = "";
    for (n, capability) in capabilities.iter().enumerate() {
        let as_first = matches!(capability.access, Access::Block)
            == matches!(capabilities[0].access, Access::Block);
        if !as_first {
            let why = format_args!("block and mount in one volume: [0] and [{n}] contradict");
            return Err(Failure::invalid("volume_capabilities", why));
        }
        if let Access::Mount { fs_type, .. } = &capability.access {
            if first_fs_type.is_empty() {
                first_fs_type = fs_type;
            } else if !fs_type.is_empty() && fs_type != first_fs_type {
                let why = format_args!("fs_type {first_fs_type:?} and {fs_type:?} contradict");
                return Err(Failure::invalid("volume_capabilities", why));
            }
        }
    }
    Ok(capabilities)
}

/// A request to delete a volume.
#[derive(Clone, Debug)]
pub struct DeleteVolume {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl DeleteVolume {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(request: csi::DeleteVolumeRequest, id_bytes_max: usize) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

impl TryFrom<csi::DeleteVolumeRequest> for DeleteVolume {
    type Error = Failure;

    fn try_from(request: csi::DeleteVolumeRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

/// A request to get a volume.
#[derive(Clone, Debug)]
pub struct GetVolume {
    /// The ID of the volume.
    pub id: VolumeId,
}

impl GetVolume {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::ControllerGetVolumeRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
        })
    }
}

impl TryFrom<csi::ControllerGetVolumeRequest> for GetVolume {
    type Error = Failure;

    fn try_from(request: csi::ControllerGetVolumeRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

/// A request to attach a volume to a node.
#[derive(Clone, Debug)]
pub struct ControllerPublish {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The ID of the node.
    pub node: NodeId,
    /// The requested use of the volume.
    pub capability: Capability,
    /// Whether access is read-only, regardless of the capability.
    pub read_only: bool,
    /// The volume context, as `CreateVolume` returned it or an administrator wrote it.
    pub volume_context: Context,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::ControllerPublishVolumeRequest> for ControllerPublish {
    type Error = Failure;

    fn try_from(request: csi::ControllerPublishVolumeRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            node: NodeId::new(request.node_id)?,
            capability: Capability::required("volume_capability", request.volume_capability)?,
            read_only: request.readonly,
            volume_context: Context::new("volume_context", request.volume_context)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

/// A request to detach a volume.
#[derive(Clone, Debug)]
pub struct ControllerUnpublish {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The ID of the node; `None` means all nodes.
    pub node: Option<NodeId>,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::ControllerUnpublishVolumeRequest> for ControllerUnpublish {
    type Error = Failure;

    fn try_from(request: csi::ControllerUnpublishVolumeRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            node: given(request.node_id).map(NodeId::new).transpose()?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

/// A request to check capabilities of a volume.
#[derive(Clone, Debug)]
pub struct ValidateCapabilities {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The capabilities to check; never empty.
    pub capabilities: Vec<Capability>,
    /// The volume context to compare with the context of the volume.
    pub volume_context: Context,
    /// The parameters to compare with the parameters of the volume.
    pub parameters: Context,
    /// The mutable parameters to compare with the mutable parameters of the volume.
    pub mutable_parameters: Context,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl ValidateCapabilities {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::ValidateVolumeCapabilitiesRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            capabilities: Capability::list_of_some(request.volume_capabilities)?,
            volume_context: Context::new("volume_context", request.volume_context)?,
            parameters: Context::new("parameters", request.parameters)?,
            mutable_parameters: Context::new("mutable_parameters", request.mutable_parameters)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

impl TryFrom<csi::ValidateVolumeCapabilitiesRequest> for ValidateCapabilities {
    type Error = Failure;

    fn try_from(request: csi::ValidateVolumeCapabilitiesRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

/// A request to list volumes, page by page.
#[derive(Clone, Debug)]
pub struct ListVolumes {
    /// Maximum number of entries in the response; `None` means no limit.
    pub max_entries: Option<usize>,
    /// The token that was returned with the previous page; `None` requests the first page.
    pub starting_token: Option<String>,
}

impl TryFrom<csi::ListVolumesRequest> for ListVolumes {
    type Error = Failure;

    fn try_from(request: csi::ListVolumesRequest) -> Result<Self, Failure> {
        Ok(Self {
            max_entries: most(request.max_entries)?,
            starting_token: given(request.starting_token),
        })
    }
}

/// A request to get the free capacity for new volumes.
#[derive(Clone, Debug)]
pub struct GetCapacity {
    /// The capabilities, all of which the volumes must support.
    pub capabilities: Vec<Capability>,
    /// The parameters of the StorageClass.
    pub parameters: Context,
    /// The topology from which the volumes must be reachable; `None` allows any topology.
    pub topology: Option<Segments>,
}

impl TryFrom<csi::GetCapacityRequest> for GetCapacity {
    type Error = Failure;

    fn try_from(request: csi::GetCapacityRequest) -> Result<Self, Failure> {
        let topology = |topology| segments("accessible_topology", topology);
        Ok(Self {
            capabilities: Capability::list(request.volume_capabilities)?,
            parameters: Context::new("parameters", request.parameters)?,
            topology: request.accessible_topology.map(topology).transpose()?,
        })
    }
}

/// Checks an ID in a field such as `source_volume_id`. The failure names this field instead of the
/// usual field for this type of ID.
pub(super) fn identifying(field: &str, id: &str) -> Result<(), Failure> {
    identifying_at_most(field, id, STRING_BYTES_MAX)
}

/// Reads the maximum number of entries of a page. Returns `None` for 0, which means no limit.
pub(super) fn most(max_entries: i32) -> Result<Option<usize>, Failure> {
    let most = usize::try_from(max_entries).map_err(|_| {
        let why = format_args!("{max_entries} is negative");
        Failure::invalid("max_entries", why)
    })?;
    Ok((most != 0).then_some(most))
}

/// Returns the text, or `None` if the text is empty, which means that the field is not set.
pub(super) fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
