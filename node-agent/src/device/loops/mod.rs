//! Loop devices: a volume is a file beneath `--loop-dir`, and a loop device makes a block device of
//! it.

mod bind;
mod file;
mod orphan;
mod remnant;
mod sysfs;
mod unread;

pub(crate) use bind::{Attached, is_claimed, loop_path};
pub(crate) use file::{Backing, Leftover, LoopDir};
pub(crate) use orphan::{FileName, Orphan, Unread, file_name_of};
pub(crate) use remnant::Remnant;
