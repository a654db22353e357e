//! Devices with arbitrary content, for fuzzing.

use super::examine::{Probed, examine_disk};
use super::mark::{self, MARK_AT};
use super::memory_disk::MemoryDisk;
use crate::filesystem::witness::{Attempt, Witness};

const BYTES: u64 = 1 << 30;
const VOLUME: &str = "vol-1";
/// The offsets of superblocks, signatures and their copies.
const PLACES: [u64; 16] = [
    0,
    512,
    1024,
    4096,
    8192,
    16 << 10,
    32 << 10,
    64 << 10,
    64 << 20,
    MARK_AT,
    128 << 20,
    BYTES / 4,
    BYTES / 2,
    BYTES - (128 << 10),
    BYTES - (64 << 10),
    BYTES - 4096,
];

/// Probes a device with the content that `data` describes. The first byte selects the record of the
/// device. Any number of writes follow: an index into [`PLACES`] (1 byte), a length (2 bytes,
/// little-endian) and that number of bytes. The last write may be truncated.
pub(crate) fn content(data: &[u8]) {
    let Some((record, mut rest)) = data.split_first() else {
        return;
    };
    let mut disk = MemoryDisk::new(BYTES);
    disk.witness = match record % 6 {
        0 => Witness::New,
        1 => Witness::NoFile,
        2 => Witness::Used,
        3 => Witness::UseBegun,
        4 => Witness::Formatting(Attempt::UNKNOWN),
        _ => Witness::Formatting(Attempt::of([7; 16])),
    };
    disk.mapped = disk.witness != Witness::NoFile || record & 0x40 != 0;
    disk.is_new = record & 0x80 != 0;
    let mut is_marked = false;
    while let [place, low, high, following @ ..] = rest {
        let at = PLACES[usize::from(*place) % PLACES.len()];
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let room = usize::try_from(BYTES - at).unwrap_or(usize::MAX);
        let (bytes, left) = following.split_at(length.min(following.len()).min(room));
        disk.write(at, bytes);
        is_marked |= at <= MARK_AT && at + bytes.len() as u64 > MARK_AT;
        rest = left;
    }
    let is_blank = disk.is_zero();
    match examine_disk(&disk, VOLUME) {
        Ok(Probed::Blank(_) | Probed::Emptied) => {
            // The samples of a new disk may miss a nonzero byte.
            assert!(is_blank || disk.is_new, "data is called blank");
        }
        Ok(Probed::Interrupted(_)) => assert!(is_marked, "a format without a mark"),
        Ok(Probed::Known(_) | Probed::Unsettled(_) | Probed::Foreign(_)) => {
            assert!(!is_blank, "zeros are called data");
        }
        Ok(Probed::Unreadable(_)) | Err(_) => unreachable!("memory cannot fail"),
    }
    mark::decode(data);
}
