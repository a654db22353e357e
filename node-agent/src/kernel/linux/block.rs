//! Sizes, sequence number and read-only state of a block device.

#![expect(
    unsafe_code,
    reason = "rustix has no call for BLKGETSIZE64, BLKGETDISKSEQ, BLKROSET and BLKROGET"
)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, opcode};

use super::files::of;
use crate::kernel::Result;

/// `BLKGETSIZE64` (include/uapi/linux/fs.h). Its argument is declared as a `size_t`, but the
/// kernel writes a u64; the two agree on the 64-bit machines we build for.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

/// `BLKGETDISKSEQ` (include/uapi/linux/fs.h, Linux 5.15).
const BLKGETDISKSEQ: Opcode = opcode::read::<u64>(0x12, 128);

/// `BLKROSET` and `BLKROGET` (include/uapi/linux/fs.h), of an `int`.
const BLKROSET: Opcode = opcode::none(0x12, 93);
const BLKROGET: Opcode = opcode::none(0x12, 94);

const _: () = assert!(size_of::<usize>() == size_of::<u64>());

/// See [`crate::kernel::Kernel::device_bytes`].
pub(super) fn device_bytes(fd: &OwnedFd) -> Result<u64> {
    // SAFETY: the opcode takes a pointer to a u64 and writes only that; other files answer ENOTTY.
    let bytes = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) };
    bytes.map_err(of("BLKGETSIZE64", fd))
}

/// See [`crate::kernel::Kernel::device_block_bytes`].
pub(super) fn device_block_bytes(fd: &OwnedFd) -> Result<u32> {
    rustix::fs::ioctl_blksszget(fd).map_err(of("BLKSSZGET", fd))
}

/// See [`crate::kernel::Kernel::diskseq`].
pub(super) fn diskseq(fd: &OwnedFd) -> Result<u64> {
    // SAFETY: the opcode takes a pointer to a u64 and writes only that; other files, and older
    // kernels, answer ENOTTY.
    let seq = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKGETDISKSEQ, u64>::new()) };
    match seq {
        Err(Errno::NOTTY) => Ok(0),
        seq => seq.map_err(of("BLKGETDISKSEQ", fd)),
    }
}

/// See [`crate::kernel::Leftovers::allow_writes`].
pub(super) fn allow_writes(fd: &OwnedFd) -> Result<()> {
    // SAFETY: the opcode takes a pointer to an int and only reads it.
    let done = unsafe { rustix::ioctl::ioctl(fd, Setter::<BLKROSET, i32>::new(0)) };
    done.map_err(of("BLKROSET", fd))
}

/// See [`crate::kernel::Leftovers::refuses_writes`].
pub(super) fn refuses_writes(fd: &OwnedFd) -> Result<bool> {
    // SAFETY: the opcode takes a pointer to an int and writes only that.
    let refuses = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKROGET, i32>::new()) };
    refuses
        .map(|refuses| refuses != 0)
        .map_err(of("BLKROGET", fd))
}
