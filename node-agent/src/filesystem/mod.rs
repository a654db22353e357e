//! Probes devices, and makes and grows filesystems: superblocks, mkfs, ioctls.
//!
//! Never formats a device that is not proven blank. Must not know the origin of a device, a cloud's
//! name for a volume, or where it is mounted.

pub(crate) mod boot;
mod check;
mod crc32c;
mod flags;
mod format;
mod fs_type;
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

pub(crate) use check::{Checked, Unchecked, check};
pub(crate) use flags::{LABELS, MountOptions, is_same_label, parse_flags, parse_remote_flags};
pub(crate) use format::{Permit, format};
pub(crate) use fs_type::FsType;
pub(crate) use grow::{GrowError, Grown, grow};
pub(crate) use marking::{begin_raw_use, settle};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use probe::fuzz;
pub(crate) use probe::{
    DeviceUnderTest, Found, Origin, Sound, examine, examine_ends, ext4_blocks,
    may_have_project_quotas,
};
pub(crate) use witness::{USED, begin_use};
