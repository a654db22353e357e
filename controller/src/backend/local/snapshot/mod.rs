//! Snapshots: separate files, cut by sharing blocks, or copied while no process uses the volume.

mod cut;
mod damage;
mod discard;
mod filesystem;
mod fill;
mod lookup;
mod recover;

pub(super) use super::snapshot_record::{SnapshotRecord, SnapshotState};
#[cfg(test)]
pub(super) use cut::Intent;
