//! How a volume becomes a block device. Nothing here mounts.

mod backing;
mod bound;
mod loopdev;
mod orphan;
mod remnant;
mod unread;

pub(crate) use backing::{Backing, Leftover, LoopDir};
pub(crate) use loopdev::{Attached, is_claimed, loop_path};
pub(crate) use orphan::{FileName, Orphan, Unread, file_name_of};
pub(crate) use remnant::Remnant;
