//! Parts of a device that have been read, accessed by their offset on the device.

use std::ops::Range;

use belay_server::call::Failure;

use super::disk::{ALIGN_BYTES, Disk, read_full};
use crate::kernel::AlignedBuf;

/// One part, contiguous.
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

    /// What was read at that offset, a multiple of [`ALIGN_BYTES`].
    pub(super) fn of(start: u64, bytes: &[u8]) -> Area {
        let mut buffer = AlignedBuf::new(bytes.len());
        buffer.copy_from_slice(bytes);
        Area {
            start,
            valid: bytes.len(),
            buffer,
        }
    }

    /// The `length` bytes at byte `at` of the device, if this part has them.
    pub(super) fn get(&self, at: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(length)?;
        if to > self.valid {
            return None;
        }
        self.buffer.get(from..to)
    }
}

/// All parts that have been read so far.
#[derive(Default)]
pub(super) struct Areas(Vec<Area>);

impl Areas {
    /// Each part, and its offset on the device.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let parts = self.0.iter();
        parts.filter_map(|area| Some((area.start, area.buffer.get(..area.valid)?)))
    }

    pub(super) fn push(&mut self, area: Area) {
        self.0.push(area);
    }

    /// See [`Area::get`].
    pub(super) fn get(&self, at: u64, length: usize) -> Option<&[u8]> {
        self.0.iter().find_map(|area| area.get(at, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::probe::memory_disk::MemoryDisk;

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
