//! Reads the size, the sequence number and the read-only state of a block device. Also reads and
//! resets the state of a loop device that outlives its binding, by sysfs and ioctls.

#![expect(
    unsafe_code,
    reason = "rustix has no call for BLKGETSIZE64, BLKGETDISKSEQ, BLKROSET and BLKROGET"
)]

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, opcode};

use super::files::of;
use super::sysfs::{is_gone, text, unread};
use super::{Linux, loopdev};
use crate::kernel::{Error, Leftovers, Result};

/// `BLKGETSIZE64` (include/uapi/linux/fs.h). The argument of `BLKGETSIZE64` is declared as a
/// `size_t`, but the kernel writes a u64. Both types have 8 bytes on the supported 64-bit machines.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

/// `BLKGETDISKSEQ` (include/uapi/linux/fs.h, Linux 5.15).
const BLKGETDISKSEQ: Opcode = opcode::read::<u64>(0x12, 128);

/// `BLKROSET` and `BLKROGET` (include/uapi/linux/fs.h), whose argument is a pointer to an `int`.
const BLKROSET: Opcode = opcode::none(0x12, 93);
const BLKROGET: Opcode = opcode::none(0x12, 94);

const _: () = assert!(size_of::<usize>() == size_of::<u64>());

/// Implements [`crate::kernel::Kernel::device_bytes`].
pub(super) fn device_bytes(fd: &OwnedFd) -> Result<u64> {
    // SAFETY: the opcode takes a pointer to a u64 and writes only that; other files return ENOTTY.
    let bytes = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) };
    bytes.map_err(of("BLKGETSIZE64", fd))
}

/// Implements [`crate::kernel::Kernel::device_block_bytes`].
pub(super) fn device_block_bytes(fd: &OwnedFd) -> Result<u32> {
    rustix::fs::ioctl_blksszget(fd).map_err(of("BLKSSZGET", fd))
}

/// Implements [`crate::kernel::Kernel::diskseq`].
pub(super) fn diskseq(fd: &OwnedFd) -> Result<u64> {
    // SAFETY: the opcode takes a pointer to a u64 and writes only that; other files, and older
    // kernels, return ENOTTY.
    let seq = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKGETDISKSEQ, u64>::new()) };
    match seq {
        Err(Errno::NOTTY) => Ok(0),
        seq => seq.map_err(of("BLKGETDISKSEQ", fd)),
    }
}

/// Implements [`crate::kernel::Leftovers::allow_writes`].
pub(super) fn allow_writes(fd: &OwnedFd) -> Result<()> {
    // SAFETY: the opcode takes a pointer to an int and only reads it.
    let done = unsafe { rustix::ioctl::ioctl(fd, Setter::<BLKROSET, i32>::new(0)) };
    done.map_err(of("BLKROSET", fd))
}

/// Implements [`crate::kernel::Leftovers::refuses_writes`].
pub(super) fn refuses_writes(fd: &OwnedFd) -> Result<bool> {
    // SAFETY: the opcode takes a pointer to an int and writes only that.
    let refuses = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKROGET, i32>::new()) };
    refuses
        .map(|refuses| refuses != 0)
        .map_err(of("BLKROGET", fd))
}

/// The permission bits for users that are neither the owner nor in the group (inode(7)).
const OTHERS: u32 = 0o007;

/// The link counts of the sysfs directories of an unbound and of a bound loop device, both without
/// partitions. A directory in sysfs has two links, and one link for each subdirectory. The
/// subdirectories that are not partitions are the same for all loop devices of a kernel. A count is
/// 0 until such a directory has been listed.
static PLAIN_LINKS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

impl Leftovers for Linux {
    fn loop_partitions(&self, number: u32, is_bound: bool) -> Result<Vec<String>> {
        let folder = folder(number);
        let links = match folder.metadata() {
            Ok(found) => found.nlink(),
            Err(error) if is_gone(&error) => return Ok(Vec::new()),
            Err(error) => return Err(unread(&folder, &error)),
        };
        if links == PLAIN_LINKS[usize::from(is_bound)].load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        list(number, links)
    }

    fn loop_remove(&self, number: u32) -> Result<bool> {
        loopdev::remove(number)
    }

    fn is_private(&self, device: &OwnedFd) -> Result<bool> {
        let stat = rustix::fs::fstat(device).map_err(of("fstat", device))?;
        Ok(stat.st_uid == 0 && stat.st_mode & OTHERS == 0)
    }

    fn allow_writes(&self, device: &OwnedFd) -> Result<()> {
        allow_writes(device)
    }

    fn refuses_writes(&self, device: &OwnedFd) -> Result<bool> {
        refuses_writes(device)
    }

    fn loop_allow_flushes(&self, number: u32) -> Result<()> {
        let path = PathBuf::from(format!("/sys/block/loop{number}/queue/write_cache"));
        if text(&path)?.is_none_or(|state| state != "write through") {
            return Ok(());
        }
        fs::write(&path, "write back").map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::at("write", &path, errno).because(format!(
                "a process has disabled the flushes of this device, so an fsync in the volume \
                 would not reach the disk: echo write back > {}",
                path.display()
            ))
        })
    }
}

fn folder(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{number}"))
}

/// Lists the partitions from the sysfs directory, whose link count before the listing was `links`.
fn list(number: u32, links: u64) -> Result<Vec<String>> {
    let (folder, prefix) = (folder(number), format!("loop{number}p"));
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(unread(&folder, &error)),
    };
    let (mut partitions, mut is_bound, mut folders) = (Vec::new(), false, 0);
    for entry in entries {
        let entry = entry.map_err(|error| unread(&folder, &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        folders += u64::from(entry.file_type().is_ok_and(|kind| kind.is_dir()));
        is_bound |= name == "loop";
        if name.starts_with(&prefix) {
            partitions.push(name);
        }
    }
    // If the number of subdirectories differs, the directory has changed since its links were
    // counted.
    if partitions.is_empty() && folders + 2 == links {
        PLAIN_LINKS[usize::from(is_bound)].store(links, Ordering::Relaxed);
    }
    partitions.sort_unstable();
    Ok(partitions)
}
