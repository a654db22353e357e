//! The device as the probe reads it: whole reads, past the page cache, or a failure.
//!
//! A trait stands between the probe and the kernel so that tests can count the reads and let any
//! of them fail.

use std::ops::Range;

use belay_server::call::{Failure, Kind};

use super::areas::Area;
use super::ext4;
use crate::filesystem::witness::{self, Witness};
use crate::kernel::{Error, Kernel};

/// `O_DIRECT` wants offsets and lengths in multiples of the logical block size (open(2)); no
/// device has a larger one than this.
pub(super) const ALIGN_BYTES: u64 = ALIGN as u64;
/// The same, to measure buffers by.
pub(super) const ALIGN: usize = 4096;

/// A device whose contents are in question.
pub(crate) struct DeviceUnderTest<'a, Fd> {
    /// Opened with [`crate::kernel::Open::DeviceRead`]: buffered reads can be stale.
    pub(crate) fd: &'a Fd,
    /// Its size.
    pub(crate) bytes: u64,
    /// The file behind a loop device: where that has a hole, the device reads as zeros; and it
    /// testifies of a format that has begun, and of use.
    pub(crate) backing: Option<&'a Fd>,
    /// The id of the volume that it is.
    pub(crate) volume: &'a str,
}

/// What the probe asks of a device.
pub(super) trait Disk {
    /// Its size in bytes.
    fn bytes(&self) -> u64;
    /// One read at an aligned offset into an aligned buffer; may be short.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure>;
    /// What the file behind it testifies.
    fn witness(&self) -> Result<Witness, Failure>;
    /// Makes the answers of [`Disk::next_data`] include everything written before.
    fn settle(&self) -> Result<(), Failure>;
    /// The next range at or after `from` that may hold data; `None` when the rest is zeros.
    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Failure>;
}

/// A device read through the kernel.
pub(super) struct KernelDisk<'a, K: Kernel> {
    kernel: &'a K,
    fd: &'a K::Fd,
    bytes: u64,
    backing: Option<&'a K::Fd>,
}

impl<'a, K: Kernel> KernelDisk<'a, K> {
    pub(super) fn new(kernel: &'a K, device: &DeviceUnderTest<'a, K::Fd>) -> Self {
        KernelDisk {
            kernel,
            fd: device.fd,
            bytes: device.bytes,
            backing: device.backing,
        }
    }
}

impl<K: Kernel> Disk for KernelDisk<'_, K> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.kernel
            .pread(self.fd, buffer, offset)
            .map_err(unreadable)
    }

    fn witness(&self) -> Result<Witness, Failure> {
        witness::ask(self.kernel, self.backing).map_err(unreadable)
    }

    fn settle(&self) -> Result<(), Failure> {
        // Bytes that somebody wrote through the device's page cache may not be in the file yet.
        self.kernel.fsync(self.fd).map_err(unreadable)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Failure> {
        let Some(file) = self.backing else {
            return Ok((from < self.bytes).then_some(from..self.bytes));
        };
        let Some(start) = self.kernel.seek_data(file, from).map_err(unreadable)? else {
            return Ok(None);
        };
        if start >= self.bytes {
            return Ok(None);
        }
        let end = self.kernel.seek_hole(file, start).map_err(unreadable)?;
        if start < from || end <= start {
            let text = format!("the backing file's data map runs backwards at byte {from}");
            return Err(not_told(text));
        }
        Ok(Some(start..end.min(self.bytes)))
    }
}

/// Reads all of `buffer`, or what the device has of it, from `offset` on; how many bytes are
/// valid. `offset` and the buffer's length are multiples of [`ALIGN_BYTES`].
///
/// # Errors
///
/// A device that ends before its size says so has not told what is on it.
pub(super) fn read_full(
    disk: &impl Disk,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Failure> {
    let left = disk.bytes().saturating_sub(offset);
    let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    let mut filled = 0;
    while filled < wanted {
        // A short read may end anywhere; the next one has to begin at a multiple again.
        let from = filled - filled % ALIGN;
        let length = disk.read(offset + from as u64, &mut buffer[from..])?;
        if from + length <= filled {
            let at = offset + filled as u64;
            let text = format!(
                "short read at byte {at} of a device of {} bytes",
                disk.bytes()
            );
            return Err(not_told(text));
        }
        filled = from + length;
    }
    Ok(wanted)
}

/// The superblock of an ext4 filesystem, mounted or not, on a device of `bytes` bytes.
pub(in crate::filesystem) fn ext4_superblock<K: Kernel>(
    kernel: &K,
    fd: &K::Fd,
    bytes: u64,
) -> Result<ext4::Superblock, Failure> {
    let disk = KernelDisk {
        kernel,
        fd,
        bytes,
        backing: None,
    };
    let read = || -> Result<ext4::Verdict, Failure> {
        let block = Area::read(&disk, 0..ALIGN_BYTES)?;
        let superblock = block.get(ext4::AT, ext4::BYTES).unwrap_or_default();
        Ok(ext4::judge(superblock, bytes))
    };
    let verdict = match read()? {
        // Where it is mounted, a write by the kernel may have been under way.
        ext4::Verdict::Damaged(_) => read()?,
        verdict => verdict,
    };
    match verdict {
        ext4::Verdict::Sound(superblock) => Ok(superblock),
        ext4::Verdict::Absent => Err(not_told("no ext4 superblock at byte 1024".to_owned())),
        ext4::Verdict::Other(what) | ext4::Verdict::Damaged(what) => Err(not_told(what)),
    }
}

fn unreadable(error: Error) -> Failure {
    not_told(error.to_string())
}

fn not_told(why: String) -> Failure {
    let text = format!("cannot tell what is on the device, so it is left alone: {why}");
    Failure::new(Kind::System, text)
}
