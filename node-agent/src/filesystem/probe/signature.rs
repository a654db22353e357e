//! The description of a signature, and the search of a device for a table of them.

use std::collections::BTreeSet;

use super::disk::{ALIGN_BYTES, Areas};

/// The location of a magic number on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// This many bytes from the start of the device.
    Start(u64),
    /// This many bytes before the end of the device, once its size is rounded down to a multiple.
    End { align: u64, back: u64 },
    /// The first block of the second part, if the device is divided into this number of parts.
    Part(u64),
}

impl Location {
    /// The offset on a device of `bytes` bytes, if the device is large enough.
    pub(super) fn on(self, bytes: u64) -> Option<u64> {
        match self {
            Location::Start(at) => Some(at),
            Location::End { align, back } => (bytes - bytes % align).checked_sub(back),
            Location::Part(parts) => Some((bytes / ALIGN_BYTES).div_ceil(parts) * ALIGN_BYTES),
        }
        .filter(|at| *at < bytes)
    }
}

/// The conclusiveness of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// A few bytes that can occur by chance: names the content if no better signature does.
    Weak,
    /// A backup copy of another structure, as inconclusive as [`Weight::Weak`]. An interrupted mkfs
    /// leaves some.
    Copy,
    /// A backup copy that no mkfs of ours leaves without the original, as inconclusive as
    /// [`Weight::Weak`].
    Relic,
    /// Conclusive where a filesystem on the same device has no user data.
    Plain,
    /// With a checksum and its own offset: conclusive anywhere but in a valid filesystem.
    Decisive,
}

/// An additional check, given the areas read so far, the offset and the size of the device.
pub(super) type Check = fn(&Areas, u64, u64) -> bool;

/// A row of the table of signatures.
pub(super) struct Signature {
    /// The description for messages, with an article.
    pub(super) name: &'static str,
    /// The locations of its magic number.
    pub(super) at: &'static [Location],
    /// The magic number, within one block of [`ALIGN_BYTES`].
    pub(super) magic: &'static [u8],
    pub(super) weight: Weight,
    pub(super) check: Option<Check>,
}

/// A signature that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) name: &'static str,
    /// The offset of its magic number on the device.
    pub(super) at: u64,
    pub(super) weight: Weight,
}

/// Every signature within `areas` of a device of `bytes` bytes, in the table's order.
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

/// The blocks that must still be read to check every row of the table.
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
