//! Loop devices: a volume is a file in a `--loop-dir`, and a loop device makes the file a block
//! device.
//!
//! A volume may use a device if the device's backing inode is the volume's file. A volume may free
//! a device that was bound under the volume's name, even if the file was renamed or removed. File
//! names and device numbers prove nothing, with one exception: on a failed disk, a device does not
//! report its name, so the path of its file is compared.

mod bind;
mod bound;
mod dirs;
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
pub(crate) use dirs::LoopDirs;
pub(super) use file::VolumeFile;
pub(crate) use file::linked;
pub(crate) use folder::LoopDir;
#[cfg(test)]
pub(crate) use sysfs::loop_path;
pub(super) use sysfs::{carries_volumes, dev_named, ext4_errors, may_be_of, node_of, partitions};
