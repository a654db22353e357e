//! Describes signatures, which are magic numbers at known offsets, and searches a device for the
//! signatures of a table.

use std::collections::BTreeSet;

use super::disk::{ALIGN_BYTES, Areas};

/// The location of a magic number on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The offset from the start of the device, in bytes.
    Start(u64),
    /// The offset `back` bytes before the end of the device, after its size is rounded down to a
    /// multiple of `align` bytes.
    End { align: u64, back: u64 },
    /// The first block of the second part, if the device is divided into this number of equal
    /// parts.
    Part(u64),
}

impl Location {
    /// Returns the offset on a device of `bytes` bytes; `None` if the device is too small.
    pub(super) fn on(self, bytes: u64) -> Option<u64> {
        match self {
            Location::Start(at) => Some(at),
            Location::End { align, back } => (bytes - bytes % align).checked_sub(back),
            Location::Part(parts) => Some((bytes / ALIGN_BYTES).div_ceil(parts) * ALIGN_BYTES),
        }
        .filter(|at| *at < bytes)
    }
}

/// The conclusiveness of a signature, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// A few bytes that can occur by chance. A weak signature describes the content only if no
    /// stronger signature is found.
    Weak,
    /// A backup copy of another structure, as inconclusive as [`Weight::Weak`]. An interrupted mkfs
    /// can leave such copies behind.
    Copy,
    /// A backup copy of another structure, as inconclusive as [`Weight::Weak`]. No mkfs that the
    /// agent runs leaves such a copy without the original.
    Relic,
    /// A conclusive signature, except in the parts of a valid filesystem that the filesystem or its
    /// users write.
    Plain,
    /// A signature that is verified by a checksum and by its recorded offset or size. It is
    /// conclusive, except in the user data of a valid filesystem.
    Decisive,
}

/// An additional check of a signature. The arguments are the areas read so far, the offset of the
/// magic number, and the size of the device in bytes.
pub(super) type Check = fn(&Areas, u64, u64) -> bool;

/// A row of the table of signatures.
pub(super) struct Signature {
    /// The description for messages, with an article.
    pub(super) name: &'static str,
    /// The locations at which the magic number can be.
    pub(super) at: &'static [Location],
    /// The magic number. At each location, the magic number is within one block of [`ALIGN_BYTES`].
    pub(super) magic: &'static [u8],
    pub(super) weight: Weight,
    pub(super) check: Option<Check>,
}

/// A signature that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) name: &'static str,
    /// The offset of the magic number on the device, in bytes.
    pub(super) at: u64,
    pub(super) weight: Weight,
}

/// Returns every signature of the table that is in `areas` of a device of `bytes` bytes, in the
/// table's order.
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

/// Returns the offsets of the blocks that must still be read to check every row of the table.
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
        let end = Location::End {
            align: 65_536,
            back: 65_536,
        };
        let cases = [
            (Location::Start(512), 1024, Some(512)),
            (Location::Start(512), 512, None),
            (end, 200_000, Some(131_072)),
            (end, 65_536, Some(0)),
            (end, 65_535, None),
            (end, 0, None),
            (Location::Part(4), 400 << 20, Some(100 << 20)),
            (
                Location::Part(4),
                (400 << 20) + 4096,
                Some((100 << 20) + 4096),
            ),
        ];
        for (place, bytes, expected) in cases {
            assert_eq!(place.on(bytes), expected, "{place:?} of {bytes}");
        }
    }
}
