//! Loop devices: a volume is a file beneath `--loop-dir`, and a loop device makes a block device of
//! it.
//!
//! A device is a volume's when its backing inode is the volume's file; names of files and numbers
//! of devices prove nothing. Only to take a volume down whose file is gone or answers EIO, the name
//! of the file that was bound counts.

mod bind;
mod bound;
mod file;
mod folder;
mod left;
mod sysfs;
mod unread;
mod verdict;

pub(crate) use bound::Bound;
pub(crate) use file::VolumeFile;
pub(crate) use folder::LoopDir;
#[cfg(test)]
pub(crate) use sysfs::loop_path;
pub(crate) use sysfs::{carries_volumes, dev_named, ext4_errors, node_of, size_of};
