//! Probes devices, and creates and grows filesystems: superblocks, mkfs, ioctls.
//!
//! The agent formats a device only if the device is proven blank, or has only the remains of an
//! interrupted format of the same volume. This module must not know where a device comes from, a
//! cloud's name for a volume, or where the device is mounted.

mod check;
mod flags;
mod format;
mod grow;
mod marking;
mod mkfs;
mod probe;
#[cfg(test)]
mod real;
pub(crate) mod remote;
#[cfg(test)]
mod simulated;
mod witness;

use std::fmt;

pub(crate) use check::{Checked, Unchecked, check};
pub(crate) use flags::{LABELS, MountOptions, is_same_label, parse_flags, parse_remote_flags};
pub(crate) use format::{Permit, Unfinished, encrypt, format};
pub(crate) use grow::{GrowError, Grown, grow};
pub(crate) use marking::{begin_raw_use, settle};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use probe::fuzz;
pub(crate) use probe::{
    DeviceUnderTest, FAT12, FAT16, FAT32, ISO_DESCRIPTOR, ISO_MAGIC, Origin, Probed, Sound,
    examine, examine_ends, ext4_blocks, may_have_project_quotas,
};
pub(crate) use witness::begin_use;

/// The type of a filesystem that the agent creates, mounts and grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FsType {
    /// ext4, the default.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs, on one device.
    Btrfs,
}

impl FsType {
    /// All supported filesystem types.
    pub(crate) const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

    /// Returns the name that the kernel, the CSI request and the mkfs tools use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    /// Returns the type with this name; `None` if it is not supported.
    pub(crate) fn parse(name: &str) -> Option<FsType> {
        Self::ALL.into_iter().find(|fs| fs.name() == name)
    }

    /// Returns the size in bytes of the smallest device that is formatted. The device must have
    /// space for the format mark at 100 MiB. For xfs, the size is the minimum of mkfs.xfs (xfsprogs
    /// 5.19 and later). For btrfs, it is the minimum size that the kernel resizes to (Linux:
    /// fs/btrfs/ioctl.c), because a smaller filesystem could not be grown by a small amount.
    pub(crate) fn minimum_bytes(self) -> u64 {
        match self {
            FsType::Ext4 => 128 << 20,
            FsType::Xfs => 300 << 20,
            FsType::Btrfs => 256 << 20,
        }
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_found_again_by_its_exact_name() {
        for fs in FsType::ALL {
            assert_eq!(FsType::parse(fs.name()), Some(fs));
        }
        for other in ["", "ext3", "EXT4", "ext4 ", "btrfs2"] {
            assert_eq!(FsType::parse(other), None, "{other:?}");
        }
    }
}
