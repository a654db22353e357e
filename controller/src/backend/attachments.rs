//! What a backend must be able to do to attach volumes to nodes, and what an attachment is.

use super::{Answer, Progress, Volume};
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::Failure;
use belay_server::request::{AccessMode, Context, NodeId, Secrets, VolumeId};
use std::fmt;
use std::sync::Arc;

/// A backend that attaches volumes to nodes.
pub trait Attachments: Send + Sync {
    /// Makes a volume available on a node. If it is so already, the answer carries the terms of
    /// then, which may differ from those of the order.
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>>;

    /// The attachment, if a look at the volume shows all of it. Otherwise [`Self::attach`] is
    /// called again.
    fn attached(&self, _order: &AttachOrder, _seen: &Volume) -> Option<Attachment> {
        None
    }

    /// Detaches a volume from a node; done if it is not attached.
    fn detach(&self, id: VolumeId, node: NodeId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Marks a volume that no node has, as just seen, as used, where only marks say so: a node may
    /// have had it.
    fn mark_used<'a>(&'a self, _seen: &'a Volume, _secrets: Secrets) -> Answer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A volume to be attached.
#[derive(Clone, Debug)]
pub struct AttachOrder {
    /// Which volume.
    pub id: VolumeId,
    /// To which node.
    pub node: NodeId,
    /// In which way.
    pub terms: Terms,
    /// The volume context: as its creation answered, or as an administrator wrote it.
    pub context: Context,
    /// The most volumes that the node may have, this one included.
    pub node_limit: Option<usize>,
    /// Credentials of the class.
    pub secrets: Secrets,
}

/// How a volume is attached. Two attachments with equal terms are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The node may not write.
    pub read_only: bool,
    /// As a block device, not as a filesystem.
    pub block: bool,
    /// Who may use it.
    pub mode: AccessMode,
}

/// An attached volume: all that the node needs to know, in neutral words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// How it was attached.
    pub terms: Terms,
    /// How the node reaches it.
    pub transport: Transport,
    /// Its size in bytes.
    pub bytes: u64,
    /// What the backend knows of its content at this moment.
    pub content: Content,
    /// When the storage attached it, by its clock, in seconds since 1970, if the storage says so.
    pub attached_at: Option<u64>,
    /// The name that the disk has in the cloud, where nodes know it by that.
    pub disk_name: Option<String>,
}

/// Refuses to attach a volume that another node has; `why` it cannot have it too, or is empty.
pub(super) fn attached_elsewhere(id: &VolumeId, node: impl fmt::Display, why: &str) -> Failure {
    Failure::precondition(format!(
        "volume {id}: attached to node {node}{why}; detach it there first"
    ))
}
