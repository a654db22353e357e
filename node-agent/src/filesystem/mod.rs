//! What is on a device, and how a filesystem gets there and grows: superblocks, mkfs, ioctls.
//!
//! The promise kept here is that nothing is ever formatted that is not proven blank. It must not
//! know where a device comes from, what a volume is called by a cloud, or where it is mounted.

mod crc32c;
mod flags;
mod format;
mod fs_type;
mod grow;
mod mkfs;
mod probe;
#[cfg(test)]
mod real;
mod witness;

pub(crate) use flags::{MountOptions, parse_flags};
pub(crate) use format::{Permit, format};
pub(crate) use fs_type::FsType;
pub(crate) use grow::{GrowError, grow};
pub(crate) use probe::{DeviceUnderTest, Found, examine, examine_ends};
pub(crate) use witness::{USED, begin_use};
