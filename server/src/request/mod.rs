//! Typed requests, and the only maker of INVALID_ARGUMENT: what comes out of a `try_from` here is
//! neither empty nor relative nor unknown, and within the limits of the specification. Must not
//! know what a driver supports; that is for the operations to refuse.

mod capability;
mod capacity;
mod context;
mod controller;
mod health;
mod ids;
mod node;
mod paths;
mod snapshot;
mod text;
mod topology;

pub use capability::{Access, AccessMode, Capability, MountFlags};
pub use capacity::CapacityRange;
pub use context::{Context, MAP_BYTES_MAX, Secrets};
pub use controller::{
    ContentSource, ControllerExpand, ControllerPublish, ControllerUnpublish, CreateVolume,
    DeleteVolume, GetCapacity, GetVolume, ListVolumes, ValidateCapabilities,
};
pub use health::{GetVolumeHealth, ListVolumeHealth, NodeVolumeHealth, StorageHealth};
pub use ids::{Name, NodeId, SnapshotId, VolumeId};
pub use node::{NodeExpand, Publish, Stage, Stats, Unpublish, Unstage};
pub use paths::{AbsPath, PATH_BYTES_MAX};
pub use snapshot::{CreateSnapshot, DeleteSnapshot, GetSnapshot, ListSnapshots};
pub use topology::{Segments, TopologyRequirement};

#[cfg(test)]
mod limits;
#[cfg(test)]
mod tests;
