//! Loop devices: the ioctls of loop(4), and the attributes in sysfs.
//!
//! Structures and numbers are from include/uapi/linux/loop.h. This module does not decide which
//! file may be bound, or which process may unbind it.

#![expect(
    unsafe_code,
    reason = "rustix has no calls for the ioctls of loop devices"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter};

use super::files::{of, path_of};
use crate::kernel::{Dev, Error, LoopMode, LoopStatus, Result};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_ADD: Opcode = 0x4C80;
const LOOP_CTL_REMOVE: Opcode = 0x4C81;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// The major number of loop devices (Documentation/admin-guide/devices.txt).
const LOOP_MAJOR: u32 = 7;

const MAX_PART: &str = "/sys/module/loop/parameters/max_part";
const CONTROL: &str = "/dev/loop-control";
const BLOCK_DEVICES: &str = "/sys/block";

/// `LO_NAME_SIZE`, including the terminating zero.
const NAME_BYTES: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);

impl LoopInfo64 {
    /// Returns the parameters to bind a whole file. The name is truncated if it is too long.
    fn whole_file(flags: u32, name: &str) -> Self {
        let mut file_name = [0; NAME_BYTES];
        let length = name.len().min(NAME_BYTES - 1);
        file_name[..length].copy_from_slice(&name.as_bytes()[..length]);
        LoopInfo64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// Returns the number of bits by which the loop driver shifts a device's number to get its minor
/// number. The low bits are for partitions. The shift is computed from `max_part` as in
/// drivers/block/loop.c.
pub(super) fn part_shift() -> Result<u32> {
    let text = match std::fs::read_to_string(MAX_PART) {
        Ok(text) => text,
        // The driver is a module that is not loaded: opening /dev/loop-control loads it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(unread(Path::new(MAX_PART), &error)),
    };
    Ok(shift_of(text.trim().parse().unwrap_or(0)))
}

fn shift_of(max_part: u32) -> u32 {
    u32::BITS - max_part.leading_zeros()
}

/// Implements [`crate::kernel::Kernel::loop_number`].
pub(super) fn number(dev: Dev, part_shift: u32) -> Option<u32> {
    let is_whole = dev.minor.trailing_zeros() >= part_shift;
    (dev.major == LOOP_MAJOR && is_whole).then_some(dev.minor >> part_shift)
}

/// Implements [`crate::kernel::Kernel::loop_dev`].
pub(super) fn dev(number: u32, part_shift: u32) -> Dev {
    Dev {
        major: LOOP_MAJOR,
        minor: number << part_shift,
    }
}

fn unread(path: &Path, error: &std::io::Error) -> Error {
    Error::at(
        "read",
        path,
        Errno::from_io_error(error).unwrap_or(Errno::IO),
    )
}

impl LoopInfo64 {
    fn name(&self) -> String {
        let bytes = self.file_name.split(|byte| *byte == 0).next();
        String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
    }
}

/// Implements [`crate::kernel::Kernel::loop_get_free`].
pub(super) fn get_free() -> Result<u32> {
    let control = control()?;
    let request = Control::<LOOP_CTL_GET_FREE>(0);
    // SAFETY: this request ignores its argument; `Control` below reads the number that it returns.
    unsafe { rustix::ioctl::ioctl(&control, request) }.map_err(of("LOOP_CTL_GET_FREE", &control))
}

/// Implements [`crate::kernel::Kernel::loop_add`].
pub(super) fn add(number: u32) -> Result<bool> {
    let control = control()?;
    let request = Control::<LOOP_CTL_ADD>(number);
    // SAFETY: the argument of this request is a number; `Control` below passes it.
    match unsafe { rustix::ioctl::ioctl(&control, request) } {
        Ok(_) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(of("LOOP_CTL_ADD", &control)(errno)),
    }
}

/// Implements [`crate::kernel::Leftovers::loop_remove`].
pub(super) fn remove(number: u32) -> Result<bool> {
    let control = control()?;
    let request = Control::<LOOP_CTL_REMOVE>(number);
    // SAFETY: the argument of this request is a number; `Control` below passes it.
    match unsafe { rustix::ioctl::ioctl(&control, request) } {
        // ENODEV: another call has removed the device.
        Ok(_) | Err(Errno::NODEV) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(errno) => Err(of("LOOP_CTL_REMOVE", &control)(errno)),
    }
}

fn control() -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, CONTROL, flags, Mode::empty())
        .map_err(|errno| Error::at("open", Path::new(CONTROL), errno))
}

/// Implements [`crate::kernel::Kernel::loop_configure`].
///
/// If the device or the file is not open for writing, the kernel silently binds read-only. The
/// caller would notice only much later, by EROFS or EPERM, so this function fails instead.
pub(super) fn configure(
    device: &OwnedFd,
    file: &OwnedFd,
    mode: LoopMode,
    name: &str,
) -> Result<()> {
    let refused = of("LOOP_CONFIGURE", device);
    if !mode.read_only {
        for fd in [device, file] {
            if !is_writable(fd)? {
                let why = format!("{} is not open for writing", path_of(fd));
                return Err(refused(Errno::BADF).because(why));
            }
        }
    }
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| refused(Errno::BADF))?;
    let mut flags = 0;
    if mode.read_only {
        flags |= LO_FLAGS_READ_ONLY;
    }
    if mode.autoclear {
        flags |= LO_FLAGS_AUTOCLEAR;
    }
    let config = LoopConfig {
        fd,
        // With 0, the kernel selects a block size of 512 bytes, which every filesystem accepts.
        block_size: 0,
        info: LoopInfo64::whole_file(flags, name),
        reserved: [0; 8],
    };
    // SAFETY: the request takes a pointer to a `struct loop_config` and only reads it; the
    // descriptor in it is borrowed, so it is open.
    let done =
        unsafe { rustix::ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) };
    done.map_err(refused)
}

/// Implements [`crate::kernel::Kernel::loop_status`].
pub(super) fn status(device: &OwnedFd) -> Result<Option<LoopStatus>> {
    match info(device) {
        Ok(info) => Ok(Some(LoopStatus {
            name: info.name(),
            backing_dev: decode_dev(info.device),
            backing_ino: info.inode,
            mode: LoopMode {
                read_only: info.flags & LO_FLAGS_READ_ONLY != 0,
                autoclear: info.flags & LO_FLAGS_AUTOCLEAR != 0,
            },
        })),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(of("LOOP_GET_STATUS64", device)(errno)),
    }
}

/// Implements [`crate::kernel::Kernel::loop_set_autoclear`].
pub(super) fn set_autoclear(device: &OwnedFd, autoclear: bool) -> Result<()> {
    // Pass the other fields back unchanged; the kernel allows changes only of AUTOCLEAR and
    // PARTSCAN.
    let mut info = info(device).map_err(of("LOOP_GET_STATUS64", device))?;
    if autoclear {
        info.flags |= LO_FLAGS_AUTOCLEAR;
    } else {
        info.flags &= !LO_FLAGS_AUTOCLEAR;
    }
    // SAFETY: the request takes a pointer to a `struct loop_info64` and only reads it.
    let done =
        unsafe { rustix::ioctl::ioctl(device, Setter::<LOOP_SET_STATUS64, LoopInfo64>::new(info)) };
    done.map_err(of("LOOP_SET_STATUS64", device))
}

/// Implements [`crate::kernel::Kernel::loop_clr_fd`].
pub(super) fn clr_fd(device: &OwnedFd) -> Result<()> {
    // SAFETY: this request takes no argument.
    let done = unsafe { rustix::ioctl::ioctl(device, NoArg::<LOOP_CLR_FD>::new()) };
    done.map_err(of("LOOP_CLR_FD", device))
}

/// Implements [`crate::kernel::Kernel::loop_set_capacity`].
pub(super) fn set_capacity(device: &OwnedFd) -> Result<()> {
    // SAFETY: this request takes no argument.
    let done = unsafe { rustix::ioctl::ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) };
    done.map_err(of("LOOP_SET_CAPACITY", device))
}

/// Implements [`crate::kernel::Kernel::loop_bound`].
pub(super) fn bound() -> Result<Vec<u32>> {
    let failed = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::at("getdents", Path::new(BLOCK_DEVICES), errno)
    };
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(BLOCK_DEVICES).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("loop")?.parse().ok());
        // The kernel shows the directory `loop` from LOOP_CONFIGURE until the device is unbound.
        if let Some(number) = number
            && Path::new(BLOCK_DEVICES).join(name).join("loop").exists()
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A request to the control device. The argument of the request is a number, not a pointer, and
/// ioctl(2) returns a number.
struct Control<const OPCODE: Opcode>(u32);

// SAFETY: no pointer is passed to the kernel, so the kernel reads and writes no memory.
unsafe impl<const OPCODE: Opcode> Ioctl for Control<OPCODE> {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    unsafe fn output_from_ptr(
        returned: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        u32::try_from(returned).map_err(|_| Errno::RANGE)
    }
}

fn info(device: &OwnedFd) -> rustix::io::Result<LoopInfo64> {
    // SAFETY: the request takes a pointer to a `struct loop_info64` and fills it completely; all of
    // its fields are integers, for which all bits are valid.
    unsafe { rustix::ioctl::ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo64>::new()) }
}

fn is_writable(fd: &OwnedFd) -> Result<bool> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(of("fcntl", fd))?;
    Ok(flags & OFlags::RWMODE == OFlags::RDWR)
}

/// Decodes a device number like `huge_decode_dev` in include/linux/kdev_t.h: the 8 low bits of the
/// minor number, 12 bits of the major number, then the rest of the minor number.
fn decode_dev(encoded: u64) -> Dev {
    let encoded = u32::try_from(encoded & u64::from(u32::MAX)).unwrap_or_default();
    Dev {
        major: (encoded >> 8) & 0xfff,
        minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_is_decoded_as_the_kernel_encodes_it() {
        for (major, minor) in [(7, 0), (8, 255), (8, 256), (259, 70_000), (4095, 0xf_ffff)] {
            let encoded = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
            assert_eq!(
                decode_dev(u64::from(encoded)),
                Dev { major, minor },
                "{major}:{minor}"
            );
        }
    }

    #[test]
    fn a_minor_is_a_number_shifted_by_the_bits_of_its_partitions() {
        for (max_part, minor, expected) in [
            (0, 0, Some(0)),
            (0, 9, Some(9)),
            (7, 8, Some(1)),
            (7, 9, None),
            (15, 32, Some(2)),
            // The kernel rounds max_part up to a number whose bits are all 1: 10 to 15.
            (10, 48, Some(3)),
        ] {
            let dev = Dev {
                major: LOOP_MAJOR,
                minor,
            };
            assert_eq!(
                number(dev, shift_of(max_part)),
                expected,
                "{max_part} {minor}"
            );
            if let Some(number) = expected {
                assert_eq!(super::dev(number, shift_of(max_part)), dev);
            }
        }
        assert_eq!(number(Dev { major: 8, minor: 0 }, 0), None);
    }

    #[test]
    fn a_device_has_the_first_63_bytes_of_its_name() {
        let name = |length: usize| LoopInfo64::whole_file(5, &"n".repeat(length)).name();
        for length in [0, 1, NAME_BYTES - 1] {
            assert_eq!(name(length).len(), length);
        }
        assert_eq!(name(NAME_BYTES).len(), NAME_BYTES - 1);
        assert_eq!(LoopInfo64::whole_file(5, "vol-1").name(), "vol-1");
        assert_eq!(LoopInfo64::whole_file(5, "vol-1").flags, 5);
    }
}
