//! How a volume becomes a block device. Nothing here mounts.

mod backing;
mod loopdev;

pub(crate) use backing::{Backing, Leftover, LoopDir, Orphan};
pub(crate) use loopdev::{Attached, loop_path};
