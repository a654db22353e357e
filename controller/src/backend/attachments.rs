//! The trait of backends that attach volumes to nodes, and the types of attachments.

use super::{Answer, Progress, Volume};
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::Failure;
use belay_server::request::{AccessMode, Context, NodeId, Secrets, VolumeId};
use std::fmt;
use std::sync::Arc;

/// A backend that attaches volumes to nodes.
pub trait Attachments: Send + Sync {
    /// Attaches a volume to a node. If the volume is already attached to the node, returns the
    /// existing attachment, whose spec may differ from the requested spec.
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>>;

    /// Returns the attachment if it can be derived from the state of the volume in `seen`. If this
    /// returns `None`, `operation/attach.rs` calls [`Self::attach`] again.
    fn attached(&self, _order: &AttachOrder, _seen: &Volume) -> Option<Attachment> {
        None
    }

    /// Detaches a volume from a node; succeeds if the volume is not attached to the node.
    fn detach(&self, id: VolumeId, node: NodeId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Records that a node may have used a volume that is now detached from all nodes. This method
    /// is needed only for storage that does not itself record the first use of a volume.
    fn mark_used<'a>(&'a self, _seen: &'a Volume, _secrets: Secrets) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A request to attach a volume.
#[derive(Clone, Debug)]
pub struct AttachOrder {
    /// The volume to attach.
    pub id: VolumeId,
    /// The node to which the volume is attached.
    pub node: NodeId,
    /// The requested access: read-only or not, block or filesystem, and access mode.
    pub spec: AttachmentSpec,
    /// The volume context: key-value pairs from the creation of the volume, or from an
    /// administrator for a static PersistentVolume.
    pub context: Context,
    /// The secrets of the request, which the StorageClass refers to.
    pub secrets: Secrets,
}

/// The access that an attachment gives. Two attachments with equal specs give the same access.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachmentSpec {
    /// Whether the node must not write to the volume.
    pub read_only: bool,
    /// Whether the volume is used as a block device, instead of as a filesystem.
    pub block: bool,
    /// The CSI access mode, such as single-node writer.
    pub mode: AccessMode,
}

/// An attached volume, with all data that a node needs to use it, in a form that does not depend on
/// the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The access that the attachment gives.
    pub spec: AttachmentSpec,
    /// The transport by which the node reaches the volume.
    pub transport: Transport,
    /// The size of the volume, in bytes.
    pub bytes: u64,
    /// The content of the volume at the time of the attach, if the backend knows the content. The
    /// content determines whether the node may format the volume.
    pub content: Content,
    /// The time of the attachment by the storage's clock, in seconds since 1970; `None` if the
    /// storage does not report it.
    pub attached_at: Option<u64>,
    /// The name of the disk in the cloud, if nodes recognise the disk by it.
    pub disk_name: Option<String>,
}

/// Returns the error for a volume that is attached to another node. `why` is appended to the node's
/// name, and explains why a second node cannot use the volume; `why` may be empty.
pub(super) fn attached_elsewhere(id: &VolumeId, node: impl fmt::Display, why: &str) -> Failure {
    Failure::precondition(format!(
        "volume {id}: attached to node {node}{why}; detach it there first"
    ))
}
