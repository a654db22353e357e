//! Reads a device for the probe, bypassing the page cache. A read returns all requested bytes or an
//! error. The areas that were read are kept, and addressed by their offset on the device.
//!
//! A trait separates the probe from the kernel so that tests can count the reads and fail any of
//! them.

use std::ops::Range;

use belay_contract::mark::MarkSecret;
use belay_server::call::{Failure, Kind};

use crate::filesystem::witness::{self, Witness};
use crate::kernel::{AlignedBuf, Error, Kernel, Reads};
use crate::work::Progress;

/// The alignment of offsets and lengths, in bytes. `O_DIRECT` requires multiples of the device's
/// logical block size (open(2)), which is at most this number.
pub(super) const ALIGN_BYTES: u64 = ALIGN as u64;
/// [`ALIGN_BYTES`] as a `usize`, for the lengths of buffers.
pub(super) const ALIGN: usize = 4096;

/// A device to probe.
pub(crate) struct DeviceUnderTest<'a, Fd> {
    /// The device, opened with [`crate::kernel::Open::DeviceRead`], which bypasses the page cache:
    /// buffered reads can be stale.
    pub(crate) fd: &'a Fd,
    /// The size of the device in bytes.
    pub(crate) bytes: u64,
    /// The backing file of a loop device; `None` for any other device. The device reads as zeros at
    /// the file's holes. An attribute of the file records that a format has begun, or that the
    /// volume is in use.
    pub(crate) backing: Option<&'a Fd>,
    /// The ID of the device's volume.
    pub(crate) volume: &'a str,
    /// The secrets of the volume, if the device has no backing file. A format mark with one of
    /// these secrets was written by an agent.
    pub(crate) secrets: &'a [MarkSecret],
    /// Whether the volume was created empty and attached for the first time just now, so that
    /// reading samples suffices to prove that the device is blank.
    pub(crate) is_new: bool,
    /// Whether a new device without any signature counts as blank even if it has nonzero bytes.
    pub(crate) accepts_uncleared: bool,
    /// Reports how much of the device was read, and can cancel the remaining reads.
    pub(crate) progress: &'a Progress,
}

/// The probe's access to a device.
pub(super) trait Disk {
    /// The size of the device in bytes.
    fn bytes(&self) -> u64;
    /// Whether samples suffice to prove that the device is blank: see [`DeviceUnderTest::is_new`].
    fn is_new(&self) -> bool;
    /// Whether nonzero bytes on a new device are accepted: see
    /// [`DeviceUnderTest::accepts_uncleared`].
    fn accepts_uncleared(&self) -> bool;
    /// Reports the progress of the reads, and can cancel them: see [`DeviceUnderTest::progress`].
    fn progress(&self) -> &Progress;
    /// Whether the device has a backing file.
    fn has_file(&self) -> bool;
    /// Reads once, from an aligned offset into an aligned buffer. Returns the number of bytes read,
    /// which may be smaller than the length of the buffer.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure>;
    /// Reads several ranges at once: see [`Kernel::pread_at_once`]. Returns `false` if the disk
    /// cannot read several ranges at once. Then `reads` still returns the ranges that were not
    /// read.
    fn read_at_once(&self, longest: usize, reads: &mut dyn Reads) -> Result<bool, Failure>;
    /// Reads the record in the attribute of the backing file; returns [`Witness::NoFile`] if there
    /// is no backing file.
    fn witness(&self) -> Result<Witness, Failure>;
    /// The secrets of the volume: see [`DeviceUnderTest::secrets`].
    fn secrets(&self) -> &[MarkSecret];
    /// Flushes earlier writes to the backing file, so that [`Disk::next_data`] includes them.
    fn settle(&self) -> Result<(), Failure>;
    /// Returns the next range at or after `from` that may hold data; `None` if the rest of the
    /// device is zeros.
    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Failure>;
}

/// A device read through the kernel.
pub(super) struct KernelDisk<'a, K: Kernel> {
    pub(super) kernel: &'a K,
    pub(super) device: &'a DeviceUnderTest<'a, K::Fd>,
}

impl<K: Kernel> Disk for KernelDisk<'_, K> {
    fn bytes(&self) -> u64 {
        self.device.bytes
    }

    fn is_new(&self) -> bool {
        self.device.is_new
    }

    fn accepts_uncleared(&self) -> bool {
        self.device.accepts_uncleared
    }

    fn progress(&self) -> &Progress {
        self.device.progress
    }

    fn has_file(&self) -> bool {
        self.device.backing.is_some()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.kernel
            .pread(self.device.fd, buffer, offset)
            .map_err(unreadable)
    }

    fn read_at_once(&self, longest: usize, reads: &mut dyn Reads) -> Result<bool, Failure> {
        // Reading several ranges at once is not faster for a backing file: its reads are served
        // from the page cache, or by a disk that reads ahead.
        if self.device.backing.is_some() {
            return Ok(false);
        }
        let read = self.kernel.pread_at_once(self.device.fd, longest, reads);
        read.map_err(unreadable)
    }

    fn witness(&self) -> Result<Witness, Failure> {
        match self.device.backing {
            Some(file) => witness::ask(self.kernel, file).map_err(unreadable),
            None => Ok(Witness::NoFile),
        }
    }

    fn secrets(&self) -> &[MarkSecret] {
        self.device.secrets
    }

    fn settle(&self) -> Result<(), Failure> {
        // Bytes written through the device's page cache may not be in the file yet.
        self.kernel.fsync(self.device.fd).map_err(unreadable)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Failure> {
        let Some(file) = self.device.backing else {
            return Ok((from < self.device.bytes).then_some(from..self.device.bytes));
        };
        let Some(start) = self.kernel.seek_data(file, from).map_err(unreadable)? else {
            return Ok(None);
        };
        if start >= self.device.bytes {
            return Ok(None);
        }
        let end = self.kernel.seek_hole(file, start).map_err(unreadable)?;
        if start < from || end <= start {
            let text = format!("the backing file's data map runs backwards at byte {from}");
            return Err(not_told(text));
        }
        Ok(Some(start..end.min(self.device.bytes)))
    }
}

/// Fills `buffer` with the bytes from `offset` on, up to the end of the device. Returns the number
/// of valid bytes. `offset` and the buffer's length must be multiples of [`ALIGN_BYTES`].
///
/// # Errors
///
/// Returns an error if a read fails, or if the device ends before its reported size: its content is
/// then unknown.
pub(super) fn read_full(
    disk: &impl Disk,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Failure> {
    let left = disk.bytes().saturating_sub(offset);
    let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    let mut filled = 0;
    while filled < wanted {
        // A short read may end at any offset, but the next read must begin at a multiple of
        // `ALIGN`.
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

fn unreadable(error: Error) -> Failure {
    not_told(error.to_string())
}

pub(super) fn not_told(why: String) -> Failure {
    let text = format!("the content of the device cannot be determined, so it is not used: {why}");
    Failure::new(Kind::System, text)
}

/// A contiguous part of the device that has been read.
pub(super) struct Area {
    start: u64,
    valid: usize,
    buffer: AlignedBuf,
}

impl Area {
    /// Reads `range`, widened to whole blocks and truncated at the device's end.
    pub(super) fn read(disk: &impl Disk, range: Range<u64>) -> Result<Area, Failure> {
        let start = range.start - range.start % ALIGN_BYTES;
        let end = range.end.min(disk.bytes()).next_multiple_of(ALIGN_BYTES);
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        let mut buffer = AlignedBuf::new(length);
        let valid = read_full(disk, start, &mut buffer)?;
        Ok(Area {
            start,
            valid,
            buffer,
        })
    }

    /// Makes an area of `bytes`, which were read at the offset `start`, a multiple of
    /// [`ALIGN_BYTES`].
    pub(super) fn of(start: u64, bytes: &[u8]) -> Area {
        let mut buffer = AlignedBuf::new(bytes.len());
        buffer.copy_from_slice(bytes);
        Area {
            start,
            valid: bytes.len(),
            buffer,
        }
    }

    /// Returns the `length` bytes at the offset `at` of the device; `None` if this area does not
    /// contain all these bytes.
    pub(super) fn get(&self, at: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(length)?;
        if to > self.valid {
            return None;
        }
        self.buffer.get(from..to)
    }
}

/// All areas that have been read so far.
#[derive(Default)]
pub(super) struct Areas(Vec<Area>);

impl Areas {
    /// Returns the offset on the device and the bytes of each area.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let parts = self.0.iter();
        parts.filter_map(|area| Some((area.start, area.buffer.get(..area.valid)?)))
    }

    pub(super) fn push(&mut self, area: Area) {
        self.0.push(area);
    }

    /// Returns the `length` bytes at the offset `at` of the device; `None` if no area contains all
    /// these bytes.
    pub(super) fn get(&self, at: u64, length: usize) -> Option<&[u8]> {
        self.0.iter().find_map(|area| area.get(at, length))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::filesystem::probe::memory_disk::MemoryDisk;
    use crate::kernel::Open;
    use crate::kernel::fake::Machine;

    /// With a data map that runs backwards, the proof that a device is blank would skip data, or
    /// never end.
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
        let disk = KernelDisk {
            kernel: &kernel,
            device: &device,
        };
        let data = (512 << 10)..(512 << 10) + 4096;
        assert_eq!(disk.next_data(4096), Ok(Some(data)));
        machine.map_backwards();
        assert_eq!(
            disk.next_data(4096).map_err(|it| it.kind),
            Err(Kind::System)
        );
    }

    #[test]
    fn bytes_are_found_by_their_offset_on_the_device() {
        let mut disk = MemoryDisk::new(10_240);
        disk.write(9_000, b"end");
        let area = Area::read(&disk, 8_500..20_000).unwrap();
        assert_eq!(area.get(9_000, 3), Some(&b"end"[..]));
        assert_eq!(area.get(8_192, 2_048).map(<[u8]>::len), Some(2_048));
        assert_eq!(area.get(8_191, 2), None);
        assert_eq!(area.get(10_239, 2), None, "past the device's end");
        assert_eq!(area.get(u64::MAX, 1), None);
    }
}
