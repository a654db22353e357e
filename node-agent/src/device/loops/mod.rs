//! Loop devices: a volume is a file beneath `--loop-dir`, and a loop device makes a block device of
//! it.
//!
//! A device is a volume's to use when its backing inode is the volume's file. It is the volume's to
//! take down when it was bound under the volume's name, whatever became of the file. What files are
//! called, and numbers of devices, prove nothing: only on a dead disk, where a device does not tell
//! its name, the path of its file counts.

mod bind;
mod bound;
mod file;
mod folder;
mod left;
mod name;
mod sysfs;
mod unread;
mod verdict;

pub(super) use bound::Bound;
pub(super) use file::VolumeFile;
pub(crate) use folder::LoopDir;
#[cfg(test)]
pub(crate) use sysfs::loop_path;
pub(super) use sysfs::{carries_volumes, dev_named, ext4_errors, node_of};
