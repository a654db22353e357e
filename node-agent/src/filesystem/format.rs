//! Makes a filesystem on a device that is proven blank, or on which making one has begun before.
//!
//! The order is what makes it safe to be killed at any point: the witness is there before the
//! mark, the mark before mkfs begins; the mark leaves only after the filesystem has been seen to be
//! whole, and the witness after the mark, when the file testifies that the volume is in use. Must
//! not know where the filesystem will be mounted; nobody mounts it before this has returned.

use std::time::Duration;

use belay_server::call::{Failure, Kind};

use super::FsType;
use super::mkfs::{Recipe, mkfs, refuse_busy};
use super::probe::{
    Blank, DeviceUnderTest, Found, Interrupted, MARK_AT, MARK_BYTES, encode_mark, examine, identify,
};
use super::witness;
use crate::kernel::{AlignedBuf, Kernel, Open};

/// The leave to format a device. Both kinds can come from [`examine`] only.
#[derive(Debug)]
pub(crate) enum Permit {
    /// Nothing is on it.
    Blank(Blank),
    /// Only what an earlier format of the same volume has left.
    Interrupted(Interrupted),
}

impl From<Blank> for Permit {
    fn from(blank: Blank) -> Permit {
        Permit::Blank(blank)
    }
}

impl From<Interrupted> for Permit {
    fn from(interrupted: Interrupted) -> Permit {
        Permit::Interrupted(interrupted)
    }
}

impl Permit {
    fn is_about(&self, volume: &str, bytes: u64) -> bool {
        match self {
            Permit::Blank(blank) => blank.is_about(volume, bytes),
            Permit::Interrupted(interrupted) => interrupted.is_about(volume, bytes),
        }
    }
}

/// Makes an empty filesystem on the device and returns when it is on the disk and whole.
///
/// # Errors
///
/// [`Kind::Precondition`] for a device below [`FsType::minimum_bytes`] and for a file that cannot
/// bear the witness; [`Kind::Busy`] and [`Kind::Timeout`], perhaps with mkfs still running;
/// [`Kind::System`] with what mkfs or the kernel said. After any of them the same call can be
/// tried again.
pub(crate) fn format<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    fs: FsType,
    permit: Permit,
    deadline: Duration,
) -> Result<(), Failure> {
    if !permit.is_about(device.volume, device.bytes) {
        return Err(Failure::bug(
            "the leave to format was given for another device",
        ));
    }
    if device.bytes < fs.minimum_bytes() {
        return Err(Failure::precondition(format!(
            "the device has {} bytes, and {fs} is not made on less than {}",
            device.bytes,
            fs.minimum_bytes()
        )));
    }
    let mark = encode_mark(device.volume)
        .ok_or_else(|| Failure::bug("the volume id has no room in a format mark"))?;
    refuse_busy(kernel, device)?;

    let writer = kernel.reopen(device.fd, Open::DeviceWrite)?;
    let uuid = witness::begin_format(kernel, device)?;
    write_block(kernel, &writer, &mark)?;
    kernel.fsync(&writer)?;
    let over_leftovers = matches!(permit, Permit::Interrupted(_));
    let recipe = Recipe {
        fs,
        uuid: &uuid,
        over_leftovers,
    };
    mkfs(kernel, device, &recipe, deadline)?;
    // Without the mark a filesystem that is not whole could never be redone. So before it goes,
    // what mkfs wrote is on the disk, and has been seen.
    kernel.fsync(&writer)?;
    let made = identify(kernel, device)?;
    if made.fs_type() != Some(fs) {
        return Err(unexpected(fs, &made.to_string()));
    }
    erase_mark(kernel, &writer, &mark)?;
    match examine(kernel, device) {
        Found::Unsettled(made) if made.fs_type() == fs => made.settle(kernel, device).map(drop),
        Found::Unsettled(made) => Err(unexpected(fs, made.fs_type().name())),
        // There is no file, or else somebody has taken its witness away.
        Found::Known(found) if found == fs => Ok(()),
        Found::Known(found) => Err(unexpected(fs, found.name())),
        Found::Foreign(foreign) => Err(unexpected(fs, &foreign.to_string())),
        Found::Interrupted(_) => Err(unexpected(fs, "a format mark that was erased")),
        Found::Blank(_) | Found::Emptied => Err(unexpected(fs, "nothing but zeros")),
        Found::Unreadable(failure) => Err(failure),
    }
}

fn unexpected(fs: FsType, found: &str) -> Failure {
    let text = format!("mkfs.{fs} said it succeeded, but the device shows {found}");
    Failure::new(Kind::System, text)
}

/// Takes the mark away, unless mkfs has put something in its place. That this is on the disk, the
/// fsync of the file sees to that records its use: until then the mark may count, and after it
/// nobody looks for one.
fn erase_mark<K: Kernel>(
    kernel: &K,
    writer: &K::Fd,
    mark: &[u8; MARK_BYTES],
) -> Result<(), Failure> {
    let mut block = AlignedBuf::new(MARK_BYTES);
    let length = kernel.pread(writer, &mut block, MARK_AT)?;
    if length != MARK_BYTES {
        let text = format!("short read of {length} bytes at the format mark");
        return Err(Failure::new(Kind::System, text));
    }
    if block[..] == mark[..] {
        write_block(kernel, writer, &[0; MARK_BYTES])?;
    }
    Ok(())
}

/// Writes the block at the mark's place.
fn write_block<K: Kernel>(
    kernel: &K,
    writer: &K::Fd,
    block: &[u8; MARK_BYTES],
) -> Result<(), Failure> {
    let mut buffer = AlignedBuf::new(MARK_BYTES);
    buffer.copy_from_slice(block);
    let length = kernel.pwrite(writer, &buffer, MARK_AT)?;
    if length != MARK_BYTES {
        let text = format!("short write of {length} bytes at the format mark");
        return Err(Failure::new(Kind::System, text));
    }
    Ok(())
}
