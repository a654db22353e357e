//! Snapshots: separate files, cut by sharing blocks, or copied while the volume is detached.

mod cut;
mod damage;
mod discard;
mod filesystem;
mod fill;
mod lookup;
mod record;
mod recover;

#[cfg(test)]
pub(super) use cut::Intent;
pub(super) use record::{SnapshotRecord, SnapshotState};
