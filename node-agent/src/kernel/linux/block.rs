//! What a block device says of itself.

#![expect(unsafe_code, reason = "rustix has no call for BLKGETSIZE64")]

use std::os::fd::OwnedFd;

use rustix::ioctl::{Getter, Opcode, opcode};

use super::files::of;
use crate::kernel::Result;

/// `BLKGETSIZE64` (include/uapi/linux/fs.h). Its argument is declared as a `size_t`, but the
/// kernel writes a u64; the two agree on the 64-bit machines we build for.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

const _: () = assert!(size_of::<usize>() == size_of::<u64>());

/// See [`crate::kernel::Kernel::device_bytes`].
pub(super) fn device_bytes(fd: &OwnedFd) -> Result<u64> {
    // SAFETY: the opcode takes a pointer to a u64 and writes that one only; any other kind of
    // file answers ENOTTY.
    let bytes = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) };
    bytes.map_err(of("BLKGETSIZE64", fd))
}
