//! How a volume becomes a block device. One transport a file; nothing here mounts.

mod loopdev;

pub(crate) use loopdev::{Attached, Backing, LoopDir, loop_path};
