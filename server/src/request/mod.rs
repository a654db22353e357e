//! Typed requests, and the only source of INVALID_ARGUMENT: a request from `try_from` has no empty,
//! relative or unknown field, and respects the limits of the specification. Must not know what a
//! driver supports; the operations refuse that.

mod capability;
mod capacity;
mod context;
mod controller;
mod health;
mod ids;
mod modify;
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
pub use modify::ControllerModify;
pub use node::{NodeExpand, Publish, Stage, Stats, Unpublish, Unstage};
pub use paths::{AbsPath, PATH_BYTES_MAX};
pub use snapshot::{CreateSnapshot, DeleteSnapshot, GetSnapshot, ListSnapshots};
pub use topology::{Segments, TopologyRequirement};

#[cfg(test)]
mod limits;
#[cfg(test)]
mod tests;
