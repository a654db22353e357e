//! How a signature is described, and how a table of them is held against a device.

use std::collections::BTreeSet;

use super::areas::Areas;
use super::disk::ALIGN_BYTES;

/// Where on a device a magic number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This many bytes from the start.
    Start(u64),
    /// This many bytes before the end, once the size is rounded down to a multiple.
    End { align: u64, back: u64 },
    /// The first block of the second of so many equal parts.
    Part(u64),
}

impl Place {
    /// The place on a device of `bytes` bytes, if it has it.
    pub(super) fn on(self, bytes: u64) -> Option<u64> {
        match self {
            Place::Start(at) => Some(at),
            Place::End { align, back } => (bytes - bytes % align).checked_sub(back),
            Place::Part(parts) => Some((bytes / ALIGN_BYTES).div_ceil(parts) * ALIGN_BYTES),
        }
        .filter(|at| *at < bytes)
    }
}

/// How much a signature says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// A few bytes that can be there by chance: names what is found, if nothing better does.
    Weak,
    /// A spare copy of what is described elsewhere: likewise. A mkfs that did not end leaves some.
    Copy,
    /// A spare copy that no mkfs of ours leaves without the original: likewise.
    Relic,
    /// Enough to go by where the filesystem that is also there has no data of users.
    Plain,
    /// Checksummed and sure of its own place: holds anywhere that is not a valid filesystem's.
    Decisive,
}

/// What else must be true, given the areas read so far, the place and the size of the device.
pub(super) type Check = fn(&Areas, u64, u64) -> bool;

/// One row of the table.
pub(super) struct Signature {
    /// What it is called in messages, with its article.
    pub(super) name: &'static str,
    /// The places of its magic number.
    pub(super) at: &'static [Place],
    /// The magic number. It lies within one block of [`ALIGN_BYTES`].
    pub(super) magic: &'static [u8],
    pub(super) weight: Weight,
    pub(super) check: Option<Check>,
}

/// A signature that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) name: &'static str,
    /// The byte of the device at which its magic number is.
    pub(super) at: u64,
    pub(super) weight: Weight,
}

/// Every signature that is within `areas` of a device of `bytes` bytes, in the table's order.
pub(super) fn scan(table: &'static [Signature], areas: &Areas, bytes: u64) -> Vec<Hit> {
    let rows = table
        .iter()
        .flat_map(|row| row.at.iter().map(move |place| (row, place)));
    let hits = rows.filter_map(|(row, place)| {
        let at = place.on(bytes)?;
        let is_there = areas.get(at, row.magic.len())? == row.magic
            && row.check.is_none_or(|check| check(areas, at, bytes));
        is_there.then_some(Hit {
            name: row.name,
            at,
            weight: row.weight,
        })
    });
    hits.collect()
}

/// The blocks that must still be read before every row of the table has been tried.
pub(super) fn blocks_left(table: &'static [Signature], areas: &Areas, bytes: u64) -> BTreeSet<u64> {
    let rows = table
        .iter()
        .flat_map(|row| row.at.iter().map(move |place| (row, place)));
    let unread = rows.filter_map(|(row, place)| {
        let at = place.on(bytes)?;
        areas
            .get(at, row.magic.len())
            .is_none()
            .then_some(at - at % ALIGN_BYTES)
    });
    unread.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_move_with_the_size_of_the_device() {
        let end = Place::End {
            align: 65_536,
            back: 65_536,
        };
        let cases = [
            (Place::Start(512), 1024, Some(512)),
            (Place::Start(512), 512, None),
            (end, 200_000, Some(131_072)),
            (end, 65_536, Some(0)),
            (end, 65_535, None),
            (end, 0, None),
            (Place::Part(4), 400 << 20, Some(100 << 20)),
            (Place::Part(4), (400 << 20) + 4096, Some((100 << 20) + 4096)),
        ];
        for (place, bytes, expected) in cases {
            assert_eq!(place.on(bytes), expected, "{place:?} of {bytes}");
        }
    }
}
