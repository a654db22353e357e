//! How a volume becomes a block device. Nothing here mounts.

mod backing;
mod bound;
mod loopdev;
mod orphan;
mod remnant;

pub(crate) use backing::{Backing, Leftover, LoopDir};
pub(crate) use loopdev::{Attached, loop_path};
pub(crate) use orphan::Orphan;
pub(crate) use remnant::Remnant;
