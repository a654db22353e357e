//! Finds the device of a mounted btrfs, reads the error counters, and grows the filesystem. The
//! `st_dev` of a btrfs is anonymous and does not identify the device.
//!
//! An ioctl on the root directory returns the filesystem's UUID. Sysfs shows the device: the
//! filesystem's directory has a link to each open block device. The ioctl for devices returns only
//! the name that the last scan of the device used. The scanned name may be from another mount
//! namespace, or `/proc/self/fd/0` if mkfs scanned the device.

#![expect(unsafe_code, reason = "rustix has no calls for the ioctls of btrfs")]

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, Opcode, Updater, opcode};

use super::files::of;
use super::sysfs::is_gone;
use crate::kernel::{BtrfsDevice, BtrfsErrors, BtrfsGeometry, Dev, Error, Result};

/// `BTRFS_IOC_FS_INFO` and the following opcodes (include/uapi/linux/btrfs.h).
const BTRFS_IOC_FS_INFO: Opcode = opcode::read::<FsInfo>(0x94, 31);
const BTRFS_IOC_DEV_INFO: Opcode = opcode::read_write::<DevInfo>(0x94, 30);
const BTRFS_IOC_GET_DEV_STATS: Opcode = opcode::read_write::<DevStats>(0x94, 52);
const BTRFS_IOC_RESIZE: Opcode = opcode::write::<VolArgs>(0x94, 3);

const _: () = assert!(BTRFS_IOC_FS_INFO == 0x8400_941f);
const _: () = assert!(BTRFS_IOC_DEV_INFO == 0xd000_941e);
const _: () = assert!(BTRFS_IOC_GET_DEV_STATS == 0xc408_9434);
const _: () = assert!(BTRFS_IOC_RESIZE == 0x5000_9403);

/// The maximum length of the attribute `dev`: two numbers of up to 32 bits, a colon and a newline.
/// sysfs returns the attribute in one read.
const DEV_TEXT_BYTES_MAX: usize = 22;

/// `struct btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct FsInfo {
    /// The highest device ID.
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    nodesize: u32,
    sectorsize: u32,
    rest: [u64; 123],
}

/// `struct btrfs_ioctl_dev_info_args`.
#[repr(C)]
struct DevInfo {
    devid: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    total_bytes: u64,
    rest: [u64; 379],
    path: [u8; 1024],
}

/// `struct btrfs_ioctl_get_dev_stats`, which has room for more values than are defined.
#[repr(C)]
struct DevStats {
    devid: u64,
    items: u64,
    flags: u64,
    /// The counters, in the order of `enum btrfs_dev_stat_values`.
    values: [u64; 5],
    rest: [u64; 121],
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; 4088],
}

const _: () = assert!(size_of::<FsInfo>() == 1024);
const _: () = assert!(size_of::<DevInfo>() == 4096);
const _: () = assert!(std::mem::offset_of!(DevInfo, path) == 3072);
const _: () = assert!(size_of::<VolArgs>() == 4096);

/// `BTRFS_IOC_RESIZE`, which returns positive codes that are not errnos.
struct Resize<'a>(&'a mut VolArgs);

// SAFETY: the opcode has the size of the struct that the pointer refers to; the kernel reads it
// and may set its last byte to zero.
unsafe impl Ioctl for Resize<'_> {
    type Output = i64;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        BTRFS_IOC_RESIZE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i64> {
        Ok(i64::from(out))
    }
}

/// Implements `Kernel::btrfs_device`.
pub(super) fn device(root: &OwnedFd) -> Result<BtrfsDevice> {
    let filesystem = fs_info(root)?;
    if filesystem.num_devices != 1 {
        return Ok(BtrfsDevice::Several);
    }
    listed(&filesystem.fsid)
}

/// Implements `Kernel::btrfs_geometry`.
pub(super) fn geometry(root: &OwnedFd) -> Result<BtrfsGeometry> {
    let filesystem = fs_info(root)?;
    let mut info = DevInfo {
        devid: filesystem.max_id,
        uuid: [0; 16],
        bytes_used: 0,
        total_bytes: 0,
        rest: [0; 379],
        path: [0; 1024],
    };
    // SAFETY: the opcode has the size of the struct, which the kernel reads and fills; all of its
    // fields are integers.
    unsafe { rustix::ioctl::ioctl(root, Updater::<BTRFS_IOC_DEV_INFO, DevInfo>::new(&mut info)) }
        .map_err(of("BTRFS_IOC_DEV_INFO", root))?;
    Ok(BtrfsGeometry {
        devices: filesystem.num_devices,
        last_id: info.devid,
        last_bytes: info.total_bytes,
        block_bytes: filesystem.sectorsize,
    })
}

/// Implements `Kernel::btrfs_errors`.
pub(super) fn errors(root: &OwnedFd) -> Result<BtrfsErrors> {
    let mut stats = DevStats {
        devid: fs_info(root)?.max_id,
        items: 5,
        flags: 0,
        values: [0; 5],
        rest: [0; 121],
    };
    // SAFETY: the opcode has the size of the struct, which the kernel reads and fills; all of its
    // fields are integers.
    unsafe { rustix::ioctl::ioctl(root, Updater::<BTRFS_IOC_GET_DEV_STATS, _>::new(&mut stats)) }
        .map_err(of("BTRFS_IOC_GET_DEV_STATS", root))?;
    let [write, read, flush, corruption, generation] = stats.values;
    Ok(BtrfsErrors {
        write,
        read,
        flush,
        corruption,
        generation,
    })
}

fn fs_info(root: &OwnedFd) -> Result<FsInfo> {
    // SAFETY: the opcode has the size of the struct, which the kernel fills completely; all of its
    // fields are integers, for which all bits are valid.
    unsafe { rustix::ioctl::ioctl(root, Getter::<BTRFS_IOC_FS_INFO, FsInfo>::new()) }
        .map_err(of("BTRFS_IOC_FS_INFO", root))
}

/// Returns the only block device that sysfs lists. If the device's disk is removed, the link in
/// sysfs remains as long as the filesystem is mounted, but refers to no device; the kernel does not
/// reuse the disk's name meanwhile.
fn listed(fsid: &[u8; 16]) -> Result<BtrfsDevice> {
    let folder = PathBuf::from(format!("/sys/fs/btrfs/{}/devices", uuid(fsid)));
    let failed = |call, path: &Path, error: &io::Error| {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Error::at(call, path, errno)
    };
    let unlisted = |error: io::Error| failed("readdir", &folder, &error);
    let mut entries = std::fs::read_dir(&folder).map_err(unlisted)?;
    let first = entries
        .next()
        .ok_or_else(|| Error::at("readdir", &folder, Errno::NODEV).because("it is empty"))?
        .map_err(unlisted)?;
    if entries.next().is_some() {
        return Ok(BtrfsDevice::Several);
    }
    let (link, path) = (first.path(), first.path().join("dev"));
    let mut text = [0; DEV_TEXT_BYTES_MAX];
    let length = match File::open(&path).and_then(|mut file| file.read(&mut text)) {
        // The link in sysfs still exists, so no other device has replaced the filesystem's device
        // meanwhile.
        Err(error) if is_gone(&error) && link.is_symlink() => return Ok(BtrfsDevice::Removed),
        read => read.map_err(|error| failed("read", &path, &error))?,
    };
    text.get(..length)
        .and_then(number)
        .map(BtrfsDevice::One)
        .ok_or_else(|| Error::at("read", &path, Errno::INVAL))
}

/// Parses `major:minor` and a newline.
fn number(text: &[u8]) -> Option<Dev> {
    let (major, minor) = str::from_utf8(text).ok()?.trim_end().split_once(':')?;
    Some(Dev {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

/// Formats a UUID as in RFC 9562, like the names of the filesystems' directories in sysfs.
fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

/// Implements `Kernel::btrfs_grow`.
pub(super) fn grow(root: &OwnedFd, id: u64) -> Result<()> {
    let mut wanted = VolArgs {
        fd: 0,
        name: [0; 4088],
    };
    let text = format!("{id}:max");
    for (to, from) in wanted.name.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    // SAFETY: `wanted` is a whole `struct btrfs_ioctl_vol_args`; the `Ioctl` implementation of
    // `Resize` explains why its opcode is sound.
    let answer = unsafe { rustix::ioctl::ioctl(root, Resize(&mut wanted)) }
        .map_err(of("BTRFS_IOC_RESIZE", root))?;
    if answer == 0 {
        return Ok(());
    }
    // The only positive code is BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS.
    Err(of("BTRFS_IOC_RESIZE", root)(Errno::BUSY).because(
        "a balance, or another device operation, is running or paused; wait for it to end, or \
         cancel it (btrfs balance cancel)",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_id_is_written_as_sysfs_writes_it() {
        let bytes = *b"\x5e\x32\x13\x1a\x70\xe4\x44\x5b\xa1\x81\xb6\x8e\x69\x34\x69\xf0";
        assert_eq!(uuid(&bytes), "5e32131a-70e4-445b-a181-b68e693469f0");
    }

    #[test]
    fn a_device_number_is_read_and_nothing_else_is() {
        let dev = Dev {
            major: 7,
            minor: 12,
        };
        assert_eq!(number(b"7:12\n"), Some(dev));
        for text in ["", "7", "7:", ":12", "7:x\n", "7:12:3"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }
}
