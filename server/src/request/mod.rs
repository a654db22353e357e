//! Typed requests. `try_from` refuses requests that violate the specification (missing or unknown
//! values, relative paths, limits) with INVALID_ARGUMENT. This module must not depend on the
//! features of a driver; the operations refuse unsupported requests.

mod capability;
mod change;
mod context;
mod controller;
mod health;
mod node;
mod paths;
mod snapshot;
mod text;

pub use capability::{Access, AccessMode, Capability, MountFlags};
pub use change::{CapacityRange, ControllerExpand, ControllerModify};
pub use context::{Context, MAP_BYTES_MAX, Secrets, Segments, TopologyRequirement};
pub use controller::{
    ContentSource, ControllerPublish, ControllerUnpublish, CreateVolume, DeleteVolume, GetCapacity,
    GetVolume, ListVolumes, ValidateCapabilities,
};
pub use health::{GetVolumeHealth, ListVolumeHealth, NodeVolumeHealth, StorageHealth};
pub use node::{NodeExpand, Publish, Stage, Stats, Unpublish, Unstage};
pub use paths::{AbsPath, PATH_BYTES_MAX};
pub use snapshot::{CreateSnapshot, DeleteSnapshot, GetSnapshot, ListSnapshots};
pub use text::{Name, NodeId, SnapshotId, VolumeId};

#[cfg(test)]
mod limits;
#[cfg(test)]
mod tests;
