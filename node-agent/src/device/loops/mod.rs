//! Loop devices: a volume is a file in `--loop-dir`, and a loop device makes a block device of it.
//!
//! A volume may use a device if the device's backing inode is the volume's file. A volume may free
//! a device if it was bound under the volume's name, whatever happened to the file. Names of files
//! and numbers of devices prove nothing: only on a failed disk, where a device does not report its
//! name, the path of its file counts.

mod bind;
mod bound;
mod file;
mod folder;
mod left;
mod sysfs;
#[cfg(test)]
mod tests;
mod unread;
mod verdict;

pub(crate) use bind::{IsShown, lacking_nodes};
pub(super) use bound::Bound;
pub(super) use file::VolumeFile;
pub(crate) use file::linked;
pub(crate) use folder::LoopDir;
#[cfg(test)]
pub(crate) use sysfs::loop_path;
pub(super) use sysfs::{carries_volumes, dev_named, ext4_errors, node_of, partitions};
