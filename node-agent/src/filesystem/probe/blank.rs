//! Proves that a device is blank, by reading every byte that may be nonzero. For a disk that was
//! just created, samples are enough, because reading a whole terabyte takes an hour.

use std::ops::ControlFlow;

use belay_server::call::Failure;

use super::disk::{ALIGN, ALIGN_BYTES, Areas, Disk};
use super::ranges::{Extent, read_each};

/// The length of a read in bytes: long enough for the disk's sequential throughput, and small
/// compared with the 5 MiB of memory that the agent uses.
const CHUNK_BYTES: usize = 128 << 10;

/// The number of evenly spread blocks that are read from a new disk, in addition to both ends and
/// all offsets at which a signature can be. Each read takes about a millisecond on a cloud disk.
const SAMPLES: u64 = 256;

/// Proof that a device is blank: every byte was read as zero. A new device also counts as blank if
/// all samples are zero, or if it has no signature and [`Disk::accepts_uncleared`] is true. Only
/// [`prove`] and [`sample`] create this proof.
#[derive(Debug)]
pub(crate) struct Blank {
    volume: String,
    bytes: u64,
    is_sampled: bool,
}

impl Blank {
    /// Whether the proof is for this device.
    pub(in crate::filesystem) fn is_about(&self, volume: &str, bytes: u64) -> bool {
        self.volume == volume && self.bytes == bytes
    }

    /// Whether only samples were read, so that other bytes of the device may be nonzero.
    pub(in crate::filesystem) fn is_sampled(&self) -> bool {
        self.is_sampled
    }
}

/// The result of reading a device, or samples of it.
pub(super) enum Sweep {
    /// The device counts as blank.
    Blank(Blank),
    /// The first byte that is not zero is at this offset.
    Data(u64),
}

/// Reads the whole device, except the holes of its backing file, up to the first nonzero byte.
pub(super) fn prove(disk: &impl Disk, volume: &str) -> Result<Sweep, Failure> {
    disk.settle()?;
    disk.progress().advance(0, disk.bytes());
    let found = first_data(disk, CHUNK_BYTES, chunks(disk))?;
    Ok(found.unwrap_or_else(|| blank(disk, volume, false)))
}

/// Reads samples of a new device, in addition to `areas`, which were read already. Reads a small
/// device (up to 32 MiB) to its end. The caller must have found no signature on the device.
pub(super) fn sample(disk: &impl Disk, volume: &str, areas: &Areas) -> Result<Sweep, Failure> {
    match zeros_in_samples(disk, volume, areas)? {
        // The storage does not clear the blocks of deleted volumes, so a new disk may have nonzero
        // bytes. The caller has found no signature.
        Sweep::Data(at) if disk.accepts_uncleared() => {
            tracing::info!(
                id = volume,
                "the new disk is not all zeros (byte {at}), and is accepted (--uncleared=accept)"
            );
            Ok(blank(disk, volume, true))
        }
        swept => Ok(swept),
    }
}

fn zeros_in_samples(disk: &impl Disk, volume: &str, areas: &Areas) -> Result<Sweep, Failure> {
    let step = disk.bytes() / SAMPLES;
    if step <= CHUNK_BYTES as u64 {
        return prove(disk, volume);
    }
    let found = areas
        .each()
        .find_map(|(start, read)| Some(start + first_nonzero(read)? as u64));
    if let Some(at) = found {
        return Ok(Sweep::Data(at));
    }
    let middles = (step / 2..disk.bytes()).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    let blocks = middles.map(|middle| Ok((middle - middle % ALIGN_BYTES, ALIGN)));
    let found = first_data(disk, ALIGN, blocks)?;
    Ok(found.unwrap_or_else(|| blank(disk, volume, true)))
}

fn blank(disk: &impl Disk, volume: &str, is_sampled: bool) -> Sweep {
    Sweep::Blank(Blank {
        volume: volume.to_owned(),
        bytes: disk.bytes(),
        is_sampled,
    })
}

/// Returns the ranges of the device that may be nonzero, in chunks. Yields an error once the volume
/// is being unstaged.
fn chunks(disk: &impl Disk) -> impl Iterator<Item = Result<Extent, Failure>> {
    let (mut at, mut end) = (0, 0);
    std::iter::from_fn(move || {
        if let Err(failure) = disk.progress().refuse_given_up() {
            return Some(Err(failure));
        }
        if at >= end {
            let data = match disk.next_data(end) {
                Ok(data) => data?,
                Err(failure) => return Some(Err(failure)),
            };
            (at, end) = (data.start - data.start % ALIGN_BYTES, data.end);
        }
        let left = (end - at).next_multiple_of(ALIGN_BYTES);
        let length = usize::try_from(left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let chunk = (at, length);
        at += length as u64;
        Some(Ok(chunk))
    })
}

/// Finds the first nonzero byte of the ranges; returns `None` if all bytes are zero. The offsets of
/// the ranges ascend, so the first nonzero byte is in a range whose read was started before any
/// nonzero byte was found.
fn first_data(
    disk: &impl Disk,
    longest: usize,
    ranges: impl Iterator<Item = Result<Extent, Failure>>,
) -> Result<Option<Sweep>, Failure> {
    let mut first: Option<u64> = None;
    read_each(disk, longest, ranges, |at, read| {
        disk.progress()
            .advance(at + read.len() as u64, disk.bytes());
        let Some(index) = first_nonzero(read) else {
            return ControlFlow::Continue(());
        };
        let found = at + index as u64;
        first = Some(first.map_or(found, |first| first.min(found)));
        ControlFlow::Break(())
    })?;
    Ok(first.map(Sweep::Data))
}

/// A block of zeros, for comparison with the blocks of the device.
static ZEROS: [u8; ALIGN] = [0; ALIGN];

/// Returns the index of the first nonzero byte; `None` if all bytes are zero.
fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    // Compare whole blocks first: the C library's `memcmp` is faster than a loop in this program,
    // which is optimized for size.
    let is_dirty = |block: &[u8]| block != &ZEROS[..block.len()];
    let block = bytes.chunks(ALIGN).position(is_dirty)?;
    let start = block * ALIGN;
    bytes[start..]
        .iter()
        .position(|byte| *byte != 0)
        .map(|index| start + index)
}

#[cfg(test)]
mod tests {
    use super::super::disk::Area;
    use super::super::disk::read_full;
    use super::super::memory_disk::MemoryDisk;
    use super::*;

    /// Reads the device one range at a time, and then several ranges at once, which complete in
    /// another order. Asserts that the result is the same.
    fn swept(disk: &mut MemoryDisk) -> Option<u64> {
        let one = swept_once(disk);
        for at_once in [1, 2, 16] {
            let counts = (disk.reads.take(), disk.bytes_read.take());
            disk.at_once = at_once;
            assert_eq!(swept_once(disk), one, "{at_once} at once");
            if one.is_none() {
                assert_eq!(counts, (disk.reads.get(), disk.bytes_read.get()));
            }
        }
        one
    }

    fn swept_once(disk: &MemoryDisk) -> Option<u64> {
        match prove(disk, "vol-1").unwrap() {
            Sweep::Data(at) => Some(at),
            Sweep::Blank(blank) => {
                assert!(blank.is_about("vol-1", disk.bytes()));
                assert!(!blank.is_about("vol-1", 0) && !blank.is_about("vol-2", disk.bytes()));
                None
            }
        }
    }

    #[test]
    fn a_file_without_data_is_blank_without_a_read() {
        let mut disk = MemoryDisk::new(1 << 40);
        assert_eq!(swept(&mut disk), None);
        assert_eq!(disk.reads.get(), 0);
    }

    fn sampled(disk: &MemoryDisk) -> Sweep {
        let mut areas = Areas::default();
        areas.push(Area::read(disk, 0..8192).unwrap());
        sample(disk, "vol-1", &areas).unwrap()
    }

    #[test]
    fn samples_are_as_many_however_large_the_device_is_and_a_small_one_is_read_to_its_end() {
        for (bytes, is_whole) in [
            (SAMPLES * (128 << 10), true),
            (SAMPLES * (128 << 10) + SAMPLES, false),
            ((64 << 40) + 512, false),
        ] {
            let mut disk = MemoryDisk::new(bytes);
            disk.mapped = false;
            match sampled(&disk) {
                Sweep::Blank(blank) => assert_eq!(blank.is_sampled(), !is_whole, "{bytes}"),
                Sweep::Data(at) => panic!("{at}"),
            }
            let is_read = disk.bytes_read.get() >= bytes;
            assert_eq!(is_read, is_whole, "{bytes}");
            assert!(is_whole || disk.reads.get() <= 258, "{}", disk.reads.get());
        }
    }

    #[test]
    fn a_sample_names_the_byte_that_is_not_zero_also_where_it_was_read_before() {
        for (at, is_found) in [(5000, true), (8192, false), ((1 << 40) / 512 + 9, true)] {
            let mut disk = MemoryDisk::new(1 << 40);
            disk.mapped = false;
            disk.write(at, &[1]);
            let found = match sampled(&disk) {
                Sweep::Data(at) => Some(at),
                Sweep::Blank(_) => None,
            };
            assert_eq!(found, is_found.then_some(at));
        }
    }

    #[test]
    fn a_disk_that_was_not_cleared_is_blank_only_where_that_is_accepted() {
        for bytes in [1 << 40, 8 << 20] {
            for at in [5000, bytes / 512 + 9] {
                let mut disk = MemoryDisk::new(bytes);
                disk.mapped = false;
                disk.write(at, &[1]);
                assert!(matches!(sampled(&disk), Sweep::Data(_)), "{at}");
                disk.accepts_uncleared = true;
                match sampled(&disk) {
                    Sweep::Blank(blank) => assert!(blank.is_sampled(), "{at}"),
                    Sweep::Data(at) => panic!("{at}"),
                }
                // Nonzero bytes are accepted only on a new device.
                assert!(matches!(prove(&disk, "vol-1"), Ok(Sweep::Data(_))));
                disk.failing_read = Some(disk.reads.get());
                let mut areas = Areas::default();
                areas.push(Area::of(0, &[0; 8192]));
                let read = sample(&disk, "vol-1", &areas);
                assert!(read.is_err(), "{bytes}, {at}");
            }
        }
    }

    #[test]
    fn zeros_that_are_data_are_read_and_are_blank() {
        let mut disk = MemoryDisk::new(1 << 40);
        disk.write(5 << 30, &[0; 8192]);
        assert_eq!(swept(&mut disk), None);
        assert_eq!(disk.bytes_read.get(), 8192);
    }

    #[test]
    fn without_a_map_every_byte_is_read() {
        let mut disk = MemoryDisk::new((5 << 20) + 512);
        disk.mapped = false;
        assert_eq!(swept(&mut disk), None);
        assert_eq!(disk.bytes_read.get(), disk.bytes());
    }

    #[test]
    fn the_first_byte_that_is_not_zero_is_named_wherever_it_is() {
        let bytes = (3 << 20) + 512;
        for at in [
            0,
            1,
            4095,
            4096,
            (1 << 20) - 1,
            1 << 20,
            (2 << 20) + 77,
            bytes - 1,
        ] {
            for mapped in [true, false] {
                let mut disk = MemoryDisk::new(bytes);
                disk.mapped = mapped;
                disk.write(at, &[1]);
                assert_eq!(swept(&mut disk), Some(at), "mapped: {mapped}");
            }
        }
    }

    /// A filesystem with small blocks can have data that begins within a block of the device.
    #[test]
    fn data_that_begins_within_a_block_is_read_from_the_start_of_the_block() {
        for at in [4096 + 512, 4096 + 600, 8191] {
            let mut disk = MemoryDisk::new(1 << 20);
            disk.map_bytes = 512;
            disk.write(at, &[1]);
            assert_eq!(swept(&mut disk), Some(at));
        }
    }

    #[test]
    fn nothing_more_is_read_once_data_is_found() {
        let mut disk = MemoryDisk::new(64 << 20);
        disk.mapped = false;
        disk.write(0, &[1]);
        assert_eq!(swept_once(&disk), Some(0));
        assert_eq!(disk.reads.get(), 1);
    }

    #[test]
    fn short_reads_are_continued_and_change_nothing() {
        for read_bytes_max in [4096, 6000, 100_000] {
            let mut disk = MemoryDisk::new((1 << 20) + 512);
            disk.mapped = false;
            disk.read_bytes_max = read_bytes_max;
            for at in [(1 << 20) + 2, (1 << 20) - 100] {
                disk.write(at, &[7]);
                assert_eq!(swept(&mut disk), Some(at), "{read_bytes_max}");
            }
        }
    }

    #[test]
    fn a_device_that_ends_early_is_not_blank() {
        let mut disk = MemoryDisk::new(1 << 20);
        disk.mapped = false;
        disk.read_bytes_max = 0;
        assert!(prove(&disk, "vol-1").is_err());
        disk.read_bytes_max = 100;
        let failure = read_full(&disk, 8192, &mut [0; 8192]).unwrap_err();
        assert!(failure.message.contains(" at byte 8292 "), "{failure}");
    }

    #[test]
    fn an_error_at_any_read_is_an_error_of_the_whole() {
        for failing in 0..3 {
            let mut disk = MemoryDisk::new(3 << 20);
            disk.mapped = false;
            disk.failing_read = Some(failing);
            assert!(prove(&disk, "vol-1").is_err(), "read {failing}");
        }
    }
}
