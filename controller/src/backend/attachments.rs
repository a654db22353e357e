//! The trait of backends that attach volumes to nodes, and the types of attachments.

use super::{Answer, Progress, Volume};
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::Failure;
use belay_server::request::{AccessMode, Context, NodeId, Secrets, VolumeId};
use std::fmt;
use std::sync::Arc;

/// A backend that attaches volumes to nodes.
pub trait Attachments: Send + Sync {
    /// Attaches a volume to a node. If it is already attached, the result contains the existing
    /// spec, which may differ from the requested one.
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>>;

    /// Returns the attachment if the volume's state contains everything that it consists of.
    /// Otherwise `operation/attach.rs` calls [`Self::attach`] again.
    fn attached(&self, _order: &AttachOrder, _seen: &Volume) -> Option<Attachment> {
        None
    }

    /// Detaches a volume from a node; succeeds if it is not attached.
    fn detach(&self, id: VolumeId, node: NodeId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Marks as used a volume that is now attached to no node, since a node may have used it
    /// before. Only needed if the storage records this in no other way.
    fn mark_used<'a>(&'a self, _seen: &'a Volume, _secrets: Secrets) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A request to attach a volume.
#[derive(Clone, Debug)]
pub struct AttachOrder {
    /// The volume to attach.
    pub id: VolumeId,
    /// The node to attach it to.
    pub node: NodeId,
    /// The spec of the attachment.
    pub spec: AttachmentSpec,
    /// The volume context, from the creation of the volume or written by an administrator.
    pub context: Context,
    /// The credentials of the class.
    pub secrets: Secrets,
}

/// The spec of an attachment. Two attachments with equal specs are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachmentSpec {
    /// Whether the node must not write.
    pub read_only: bool,
    /// Whether the volume is used as a block device, instead of as a filesystem.
    pub block: bool,
    /// The access mode.
    pub mode: AccessMode,
}

/// An attached volume, with everything that the node needs, independent of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The spec of the attachment.
    pub spec: AttachmentSpec,
    /// The transport by which the node reaches the volume.
    pub transport: Transport,
    /// The size of the volume, in bytes.
    pub bytes: u64,
    /// The content of the volume at this moment, as far as the backend knows.
    pub content: Content,
    /// The time of the attachment, according to the storage's clock, in seconds since 1970; `None`
    /// if the storage does not report it.
    pub attached_at: Option<u64>,
    /// The name of the disk in the cloud, if nodes recognise the disk by it.
    pub disk_name: Option<String>,
}

/// Returns the error for a volume that is attached to another node. `why` explains why several
/// nodes cannot use it; may be empty.
pub(super) fn attached_elsewhere(id: &VolumeId, node: impl fmt::Display, why: &str) -> Failure {
    Failure::precondition(format!(
        "volume {id}: attached to node {node}{why}; detach it there first"
    ))
}
