//! Snapshots of volumes. A snapshot is a separate file, which shares the blocks of the volume's
//! file, or is copied from it while no process uses the volume.

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
