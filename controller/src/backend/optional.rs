//! What a backend may be able to do besides creating and attaching volumes: grow, clone and modify
//! them, and report capacity and health.

use super::{Answer, Order, Progress, Sizes, Volume};
use belay_server::health::Conditions;
use belay_server::request::{Context, MountFlags, NodeId, Secrets, Segments, VolumeId};
use belay_server::size::Exact;
use std::fmt;
use std::sync::Arc;

/// A backend whose volumes can grow.
pub trait Expansion: Send + Sync {
    /// The sizes that this volume can grow to.
    fn grown_sizes(&self, volume: &Volume) -> Sizes;

    /// Grows a volume to at least `bytes`; the answer is the size it has then.
    fn resize(&self, id: VolumeId, bytes: u64, secrets: Secrets) -> Answer<'_, Progress<u64>>;
}

/// A backend that makes volumes from other volumes.
pub trait Clones: Send + Sync {
    /// Like [`Backend::create`], with what the other volume holds at one instant of the call; the
    /// new one is at least as large.
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume>;
}

/// A backend that changes attributes of its volumes later: those of a VolumeAttributesClass. A new
/// volume gets them with the parameters of its order.
pub trait Modification: Send + Sync {
    /// The keys of the mutable parameters that it understands.
    fn mutable_parameters(&self) -> &'static [&'static str];

    /// Changes these attributes of a volume; done if it has them already. Nothing is changed if
    /// the answer is [`belay_server::call::Kind::Invalid`].
    fn modify(
        &self,
        id: VolumeId,
        parameters: Context,
        secrets: Secrets,
    ) -> Answer<'_, Progress<()>>;

    /// Fails unless the volume, which the storage is not changing, has these attributes: some
    /// storage accepts a change, and does not make it.
    fn verify(&self, id: VolumeId, parameters: Context, secrets: Secrets) -> Answer<'_, ()>;
}

/// A backend that knows how much room is left.
pub trait Capacity: Send + Sync {
    /// Bytes that can still be promised to such volumes. `GetCapacity` has no secrets.
    ///
    /// # Errors
    /// `Invalid`, naming the key, for parameters with which no volume can be created.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64>;

    /// Whether no volume can be larger than what is available.
    fn limits_sizes(&self) -> bool {
        true
    }
}

/// The volumes that room is wanted for.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// Those of [`super::Backend::parameters`], and those that the provisioner adds.
    pub parameters: Context,
    /// How a node would mount them.
    pub mount_flags: MountFlags,
    /// They must be reachable from there; none = from anywhere.
    pub topology: Option<Segments>,
}

/// A backend that reports the health of its volumes.
pub trait Health: Send + Sync {
    /// What is wrong with the volume with that id, once it is complete.
    fn health(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Conditions>>;

    /// What is wrong with each of these volumes, which exist, given by id and size in bytes; in
    /// their order. Part of calls that have no secrets.
    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>>;

    /// Like [`super::Backend::list`], of those volumes that something is wrong with.
    fn list_unhealthy(
        &self,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, UnhealthyPage>;
}

/// A volume that something is wrong with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhealthy {
    /// Which.
    pub id: VolumeId,
    /// What; never empty.
    pub conditions: Conditions,
}

/// A page of volumes that something is wrong with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnhealthyPage {
    /// In the order of the listing.
    pub volumes: Vec<Unhealthy>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// A change of a volume that the storage has accepted, and that the volume does not show although
/// it is [`super::Phase::Ready`] again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DroppedChange {
    /// Attach to that node.
    Attach(NodeId),
    /// Detach from that node.
    Detach(NodeId),
    /// Expand to so many bytes.
    Expand(u64),
    /// Delete.
    Delete,
}

/// How the volume is without the change.
impl fmt::Display for DroppedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach(node) => write!(f, "not attached to node {node}"),
            Self::Detach(node) => write!(f, "still attached to node {node}"),
            Self::Expand(bytes) => write!(f, "not expanded to {}", Exact(*bytes)),
            Self::Delete => f.write_str("not deleted"),
        }
    }
}
