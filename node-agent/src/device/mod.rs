//! How a volume becomes a block device. One transport a file; nothing here mounts.

mod loopdev;

pub(crate) use loopdev::{Attached, Backing, Leftover, LoopDir, loop_path};
