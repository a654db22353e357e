//! Optional abilities of backends: expanding, cloning and modifying volumes, and reporting capacity
//! and health.

use super::{Answer, Order, Progress, Sizes, Volume};
use belay_server::health::Conditions;
use belay_server::request::{Context, MountFlags, NodeId, Secrets, Segments, VolumeId};
use belay_server::size::Exact;
use std::fmt;
use std::sync::Arc;

/// Implements the methods of [`super::Backend`] that return optional abilities, for a backend that
/// implements their traits itself.
macro_rules! supports {
    ($($ability:ident: $Trait:ident),+) => {$(
        fn $ability(&self) -> Option<&dyn $Trait> {
            Some(self)
        }
    )+};
}

/// A backend that can expand volumes.
pub trait Expansion: Send + Sync {
    /// Returns the sizes to which this volume can be expanded.
    fn grown_sizes(&self, volume: &Volume) -> Sizes;

    /// Expands a volume to at least `bytes`, and returns the new size in bytes.
    fn resize(&self, id: VolumeId, bytes: u64, secrets: Secrets) -> Answer<'_, Progress<u64>>;
}

/// A backend that creates volumes from other volumes.
pub trait Clones: Send + Sync {
    /// Creates a volume like `Backend::create`, with the data that the other volume has at one
    /// instant of the call. The new volume is at least as large.
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume>;
}

/// A backend that can apply the attributes of a VolumeAttributesClass to existing volumes. For a
/// new volume, they are among the parameters of its creation.
pub trait Modification: Send + Sync {
    /// Returns the known keys of the mutable parameters.
    fn mutable_parameters(&self) -> &'static [&'static str];

    /// Changes attributes of a volume; succeeds if it already has them. Changes nothing if the
    /// result is [`belay_server::call::Kind::Invalid`].
    fn modify(
        &self,
        id: VolumeId,
        parameters: Context,
        secrets: Secrets,
    ) -> Answer<'_, Progress<()>>;

    /// Fails unless the volume, which the storage is not changing, has these attributes, since some
    /// storage accepts a change without making it.
    fn verify(&self, id: VolumeId, parameters: Context, secrets: Secrets) -> Answer<'_, ()>;
}

/// A backend that reports free capacity.
pub trait Capacity: Send + Sync {
    /// Returns the bytes that are available for new volumes of this kind. `GetCapacity` has no
    /// secrets.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the key, for parameters with which no volume can be created.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64>;

    /// Whether the available capacity limits the size of a volume.
    fn limits_sizes(&self) -> bool {
        true
    }
}

/// The kind of volumes in a query for capacity.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// The parameters: keys of [`super::Backend::parameters`], and those that the provisioner adds.
    pub parameters: Context,
    /// The flags with which a node would mount the volumes.
    pub mount_flags: MountFlags,
    /// The topology from which the volumes must be reachable; `None` if they may be anywhere.
    pub topology: Option<Segments>,
}

/// A backend that reports the health of its volumes.
pub trait Health: Send + Sync {
    /// Returns the health reasons of a volume, once it is completely created; `None` if it does not
    /// exist.
    fn health(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Conditions>>;

    /// Returns the health reasons of each of these existing volumes, given by ID and size in bytes,
    /// in their order. Used by calls that have no secrets.
    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>>;

    /// Lists unhealthy volumes, with pages as in [`super::Backend::list`].
    fn list_unhealthy(
        &self,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, UnhealthyPage>;
}

/// An unhealthy volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhealthy {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The health reasons; never empty.
    pub conditions: Conditions,
}

/// A page of unhealthy volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnhealthyPage {
    /// The volumes, in the order of the listing.
    pub volumes: Vec<Unhealthy>,
    /// The token of the next page, if there is one.
    pub next: Option<String>,
}

/// A change of a volume that the storage has accepted, but that the volume does not show although
/// it is [`super::Phase::Ready`] again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DroppedChange {
    /// An attach to this node.
    Attach(NodeId),
    /// A detach from this node.
    Detach(NodeId),
    /// An expansion to this number of bytes.
    Expand(u64),
    /// A deletion.
    Delete,
}

/// Describes the state of the volume without the change.
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
