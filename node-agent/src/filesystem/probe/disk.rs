//! Reads of the device for the probe: complete, bypassing the page cache, or a failure.
//!
//! A trait separates the probe from the kernel so that tests can count the reads and fail any of
//! them.

use std::ops::Range;

use belay_contract::mark::MarkSecret;
use belay_server::call::{Failure, Kind};

use super::areas::Area;
use super::ext4;
use super::mark::read_mark;
use crate::filesystem::witness::{self, Attempt, Witness};
use crate::kernel::{Error, Kernel, Reads};
use crate::work::Progress;

/// `O_DIRECT` requires offsets and lengths in multiples of the logical block size (open(2)); no
/// device has a larger one than this.
pub(super) const ALIGN_BYTES: u64 = ALIGN as u64;
/// The same, for buffer lengths.
pub(super) const ALIGN: usize = 4096;

/// A device to probe.
pub(crate) struct DeviceUnderTest<'a, Fd> {
    /// Opened with [`crate::kernel::Open::DeviceRead`]: buffered reads can be stale.
    pub(crate) fd: &'a Fd,
    /// Its size.
    pub(crate) bytes: u64,
    /// The file behind a loop device: the device reads as zeros at the file's holes, and the file
    /// records a format and the volume's use.
    pub(crate) backing: Option<&'a Fd>,
    /// The id of its volume.
    pub(crate) volume: &'a str,
    /// The secrets of the volume's format mark, if it has no backing file.
    pub(crate) secrets: &'a [MarkSecret],
    /// The volume was created empty and attached for the first time a moment ago, so samples stand
    /// for the whole device.
    pub(crate) is_new: bool,
    /// A new device without any signature counts as blank even if it has other bytes than zeros.
    pub(crate) accepts_uncleared: bool,
    /// Shows how much of it was read, and can give the rest up.
    pub(crate) progress: &'a Progress,
}

/// The probe's access to a device.
pub(super) trait Disk {
    /// Its size in bytes.
    fn bytes(&self) -> u64;
    /// See [`DeviceUnderTest::is_new`].
    fn is_new(&self) -> bool;
    /// See [`DeviceUnderTest::accepts_uncleared`].
    fn accepts_uncleared(&self) -> bool;
    /// See [`DeviceUnderTest::progress`].
    fn progress(&self) -> &Progress;
    /// Whether a file is behind it.
    fn has_file(&self) -> bool;
    /// One read at an aligned offset into an aligned buffer; may be short.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure>;
    /// Reads ranges, several at once: see [`Kernel::pread_at_once`].
    fn read_at_once(&self, longest: usize, reads: &mut dyn Reads) -> Result<bool, Failure>;
    /// The record of the file behind it, or of a mark that has a secret of the volume.
    fn witness(&self) -> Result<Witness, Failure>;
    /// Makes [`Disk::next_data`] include everything written before.
    fn settle(&self) -> Result<(), Failure>;
    /// The next range at or after `from` that may hold data; `None` if the rest is zeros.
    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Failure>;
}

/// A device read through the kernel.
pub(super) struct KernelDisk<'a, K: Kernel> {
    kernel: &'a K,
    fd: &'a K::Fd,
    bytes: u64,
    backing: Option<&'a K::Fd>,
    volume: &'a str,
    secrets: &'a [MarkSecret],
    is_new: bool,
    accepts_uncleared: bool,
    progress: &'a Progress,
}

impl<'a, K: Kernel> KernelDisk<'a, K> {
    pub(super) fn new(kernel: &'a K, device: &DeviceUnderTest<'a, K::Fd>) -> Self {
        KernelDisk {
            kernel,
            fd: device.fd,
            bytes: device.bytes,
            backing: device.backing,
            volume: device.volume,
            secrets: device.secrets,
            is_new: device.is_new,
            accepts_uncleared: device.accepts_uncleared,
            progress: device.progress,
        }
    }
}

impl<K: Kernel> Disk for KernelDisk<'_, K> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn accepts_uncleared(&self) -> bool {
        self.accepts_uncleared
    }

    fn progress(&self) -> &Progress {
        self.progress
    }

    fn has_file(&self) -> bool {
        self.backing.is_some()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.kernel
            .pread(self.fd, buffer, offset)
            .map_err(unreadable)
    }

    fn read_at_once(&self, longest: usize, reads: &mut dyn Reads) -> Result<bool, Failure> {
        // A file is in the machine's memory, or on a disk that reads ahead.
        if self.backing.is_some() {
            return Ok(false);
        }
        let read = self.kernel.pread_at_once(self.fd, longest, reads);
        read.map_err(unreadable)
    }

    fn witness(&self) -> Result<Witness, Failure> {
        match self.backing {
            Some(file) => witness::ask(self.kernel, file).map_err(unreadable),
            None if self.secrets.is_empty() => Ok(Witness::NoFile),
            None => {
                let attempt = read_mark(self)?.attempt(self.volume, self.secrets);
                Ok(attempt.map_or(Witness::NoFile, Witness::Formatting))
            }
        }
    }

    fn settle(&self) -> Result<(), Failure> {
        // Bytes written through the device's page cache may not be in the file yet.
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

/// The format of the device that was interrupted, if its record shows one.
///
/// # Errors
///
/// When the record cannot be read.
pub(in crate::filesystem) fn attempt<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<Option<Attempt>, Failure> {
    Ok(match KernelDisk::new(kernel, device).witness()? {
        Witness::Formatting(attempt) => Some(attempt),
        Witness::Used | Witness::UseBegun | Witness::Absent | Witness::NoFile => None,
    })
}

/// Reads all of `buffer`, or the part that the device has, from `offset` on; returns how many bytes
/// are valid. `offset` and the buffer's length are multiples of [`ALIGN_BYTES`].
///
/// # Errors
///
/// A device that ends before its size: its content is then unknown.
pub(super) fn read_full(
    disk: &impl Disk,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Failure> {
    let left = disk.bytes().saturating_sub(offset);
    let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    let mut filled = 0;
    while filled < wanted {
        // A short read may end anywhere; the next one must begin at a multiple again.
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

/// The blocks of an ext4 filesystem, mounted or not.
///
/// # Errors
///
/// The superblock could not be read, or is none of ext4.
pub(crate) fn ext4_blocks<K: Kernel>(kernel: &K, fd: &K::Fd) -> Result<u64, Failure> {
    Ok(ext4_superblock(kernel, fd, kernel.device_bytes(fd)?)?.blocks)
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
        volume: "",
        secrets: &[],
        is_new: false,
        accepts_uncleared: false,
        progress: &Progress::default(),
    };
    let read = || -> Result<ext4::Verdict, Failure> {
        let block = Area::read(&disk, 0..ALIGN_BYTES)?;
        let superblock = block.get(ext4::AT, ext4::BYTES).unwrap_or_default();
        Ok(ext4::judge(superblock, bytes))
    };
    let verdict = match read()? {
        // If it is mounted, the kernel may have been writing it.
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
    let text = format!("the content of the device cannot be determined, so it is not used: {why}");
    Failure::new(Kind::System, text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kernel::Open;
    use crate::kernel::fake::Machine;

    /// The proof that a device is blank would otherwise skip data, or never end.
    #[test]
    fn a_map_of_the_file_that_runs_backwards_is_an_error() {
        let machine = Machine::new();
        let path = Path::new("/file");
        machine.make_file(path, 1 << 20);
        for at in [0, 512 << 10] {
            machine.write_file(path, at, &[1]);
        }
        let kernel = machine.process();
        let file = kernel.open(path, Open::FileRead).unwrap();
        let device = DeviceUnderTest {
            fd: &file,
            bytes: 1 << 20,
            backing: Some(&file),
            volume: "vol-1",
            secrets: &[],
            is_new: false,
            accepts_uncleared: false,
            progress: &Progress::default(),
        };
        let disk = KernelDisk::new(&kernel, &device);
        let data = (512 << 10)..(512 << 10) + 4096;
        assert_eq!(disk.next_data(4096), Ok(Some(data)));
        machine.map_backwards();
        assert_eq!(
            disk.next_data(4096).map_err(|it| it.kind),
            Err(Kind::System)
        );
    }
}
