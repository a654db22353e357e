//! Optional features of backends: expanding, cloning and modifying volumes, and reporting capacity
//! and health.

use super::{Answer, Order, Progress, Sizes, Volume};
use belay_server::health::Conditions;
use belay_server::request::{Context, MountFlags, NodeId, Secrets, Segments, VolumeId};
use belay_server::size::Exact;
use std::fmt;
use std::sync::Arc;

/// Implements the methods of [`super::Backend`] that return optional features, for a backend that
/// implements the traits of these features itself.
macro_rules! supports {
    ($($ability:ident: $Trait:ident),+) => {$(
        fn $ability(&self) -> Option<&dyn $Trait> {
            Some(self)
        }
    )+};
}

/// A backend that can expand volumes.
pub trait Expansion: Send + Sync {
    /// Returns the sizes to which this volume can be expanded, in bytes.
    fn grown_sizes(&self, volume: &Volume) -> Sizes;

    /// Expands a volume to at least `bytes`, and returns the new size in bytes.
    fn resize(&self, id: VolumeId, bytes: u64, secrets: Secrets) -> Answer<'_, Progress<u64>>;
}

/// A backend that creates volumes from other volumes.
pub trait Clones: Send + Sync {
    /// Creates a volume like `Backend::create`, with the data that the other volume has at one
    /// instant during the call. The new volume is at least as large as the other volume.
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume>;
}

/// A backend that can apply the attributes of a VolumeAttributesClass to existing volumes. The
/// attributes of a new volume are passed as parameters of its creation.
pub trait Modification: Send + Sync {
    /// Returns the keys of mutable parameters that the backend knows.
    fn mutable_parameters(&self) -> &'static [&'static str];

    /// Changes attributes of a volume; succeeds if the volume already has these attributes. Nothing
    /// is changed if the result is [`belay_server::call::Kind::Invalid`].
    fn modify(
        &self,
        id: VolumeId,
        parameters: Context,
        secrets: Secrets,
    ) -> Answer<'_, Progress<()>>;

    /// Fails unless the volume has these attributes. The engine calls this method once the storage
    /// is no longer changing the volume, since some storage accepts a change without carrying it
    /// out.
    fn verify(&self, id: VolumeId, parameters: Context, secrets: Secrets) -> Answer<'_, ()>;
}

/// A parameter whose value differs between a request and a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key, one of [`super::Backend::parameters`].
    pub key: &'static str,
    /// The value that the storage reports for the volume.
    pub is: String,
    /// The value in the request.
    pub asked: String,
}

/// A backend that reports free capacity.
pub trait Capacity: Send + Sync {
    /// Returns the number of bytes that are available for new volumes with these properties.
    /// `GetCapacity` has no secrets.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the key, for parameters with which no volume can be created.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64>;

    /// Whether the available capacity is also the maximum size of a single new volume.
    fn limits_sizes(&self) -> bool {
        true
    }
}

/// The properties of the volumes in a query for free capacity.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// The parameters: keys of [`super::Backend::parameters`], and keys that csi-provisioner adds.
    pub parameters: Context,
    /// The flags with which a node would mount the volumes.
    pub mount_flags: MountFlags,
    /// The topology from which the volumes must be reachable; `None` if the query names none.
    pub topology: Option<Segments>,
}

/// A backend that reports the health of volumes.
pub trait Health: Send + Sync {
    /// Returns the health reasons of a volume; `None` if the volume does not exist or is not
    /// completely created.
    fn health(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Conditions>>;

    /// Returns the health reasons of these existing volumes, in the same order. Each volume is
    /// given by its ID and its size in bytes. The CSI calls that use this method have no secrets.
    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>>;

    /// Lists unhealthy volumes page by page, as [`super::Backend::list`] lists all volumes.
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
    /// The token of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// A change that the storage has accepted but not carried out. The volume is
/// [`super::Phase::Ready`] again, in the state before the change.
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

/// Writes how the volume differs from the requested state, such as "not deleted".
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
