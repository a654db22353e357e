//! The mark "a format of this volume is in progress". It is written before mkfs and erased after
//! it, always before the first mount. If it is found, the volume may be formatted again.
//!
//! On disk, at byte 100 MiB, little-endian: magic (16 bytes), version (u32), length of the volume
//! id (u32), the id, zeros; at byte 508 the CRC-32C of all bytes before it; zeros up to 4096. All
//! of it is in the first 512 bytes, which disks write atomically, so a mark cannot be torn.
//!
//! Once the device is in use, users can write such a mark too: it counts only with its witness
//! (`filesystem/witness.rs`).

use crate::filesystem::crc32c::crc32c;
use crate::filesystem::witness::FORMATTING;

use super::field;

/// The offset of the mark. Fixed, since the volume may grow before a format is retried; and at 100
/// MiB, since mkfs of ext4 and xfs do not write there (`mkfs.rs` has the options for that).
pub(in crate::filesystem) const MARK_AT: u64 = 100 << 20;
/// The size of the mark, one block for any device.
pub(in crate::filesystem) const MARK_BYTES: usize = 4096;

const MAGIC: &[u8; 16] = b"BELAY-MKFS-MARK\n";
const VERSION: u32 = 1;
const ID_AT: usize = 24;
/// The maximum length of a CSI volume id.
const ID_BYTES_MAX: usize = 128;
const CHECKSUM_AT: usize = 508;

/// A format of this volume that was interrupted. Only a mark can make one.
#[derive(Debug)]
pub(crate) struct Interrupted {
    volume: String,
    bytes: u64,
}

impl Interrupted {
    /// Whether the mark was read from this device.
    pub(in crate::filesystem) fn is_about(&self, volume: &str, bytes: u64) -> bool {
        self.volume == volume && self.bytes == bytes
    }
}

/// The content at the mark's offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// No mark.
    Absent,
    /// A damaged mark, or of an unknown version.
    Unreadable,
    /// A valid mark of this volume.
    Of(String),
}

impl Mark {
    /// The permission to format `volume` again, if the mark is its own.
    pub(super) fn interrupted(&self, volume: &str, bytes: u64) -> Option<Interrupted> {
        match self {
            Mark::Of(id) if id == volume => Some(Interrupted {
                volume: id.clone(),
                bytes,
            }),
            _ => None,
        }
    }

    /// Its description if it does not permit formatting `volume`.
    pub(super) fn foreign_name(&self, volume: &str) -> Option<String> {
        match self {
            Mark::Absent => None,
            Mark::Of(id) if id == volume => Some(format!(
                "a format mark without its witness ({FORMATTING} on the volume's file)"
            )),
            Mark::Unreadable => Some("a format mark that cannot be read".to_owned()),
            Mark::Of(id) => Some(format!("the format mark of volume {id:?}")),
        }
    }
}

/// The mark of a volume; `None` for an id that is not valid in CSI.
pub(in crate::filesystem) fn encode(volume: &str) -> Option<[u8; MARK_BYTES]> {
    if !(1..=ID_BYTES_MAX).contains(&volume.len()) {
        return None;
    }
    let mut block = [0; MARK_BYTES];
    block[..16].copy_from_slice(MAGIC);
    block[16..20].copy_from_slice(&VERSION.to_le_bytes());
    block[20..24].copy_from_slice(&u32::try_from(volume.len()).ok()?.to_le_bytes());
    block[ID_AT..ID_AT + volume.len()].copy_from_slice(volume.as_bytes());
    let checksum = !crc32c(!0, &block[..CHECKSUM_AT]);
    block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    Some(block)
}

/// Reads the block at the mark's offset. A mark counts only if it equals, to the last byte, the
/// output of [`encode`] for the volume that it names.
pub(super) fn decode(block: &[u8]) -> Mark {
    if !block.starts_with(MAGIC) {
        return Mark::Absent;
    }
    let length = usize::try_from(field::le32(block, 20)).unwrap_or(usize::MAX);
    let id = block.get(ID_AT..).and_then(|rest| rest.get(..length));
    let id = id.and_then(|id| std::str::from_utf8(id).ok());
    match id {
        Some(id) if encode(id).is_some_and(|mark| mark == block) => Mark::Of(id.to_owned()),
        _ => Mark::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_same_volume_may_format_again() {
        let mark = decode(&encode("vol-1").unwrap());
        assert!(mark.interrupted("vol-1", 7).unwrap().is_about("vol-1", 7));
        assert!(mark.interrupted("vol-10", 7).is_none());
        assert!(mark.foreign_name("vol-10").unwrap().contains("\"vol-1\""));
        assert!(mark.foreign_name("vol-1").unwrap().contains("witness"));
    }

    #[test]
    fn everything_is_in_the_first_sector() {
        let mark = encode(&"v".repeat(ID_BYTES_MAX)).unwrap();
        assert!(mark[512..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn an_id_that_cannot_be_has_no_mark() {
        assert_eq!(encode(""), None);
        assert_eq!(encode(&"v".repeat(ID_BYTES_MAX + 1)), None);
    }

    proptest! {
        #[test]
        fn a_mark_names_its_volume(id in "[ -~]{1,128}") {
            prop_assert_eq!(decode(&encode(&id).unwrap()), Mark::Of(id));
        }

        #[test]
        fn one_changed_bit_is_no_valid_mark(bit in 0..MARK_BYTES * 8) {
            let mut block = encode("vol-0123456789abcdef").unwrap();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(decode(&block), Mark::Of(_)));
        }

        #[test]
        fn no_block_makes_it_panic(mut block in proptest::collection::vec(any::<u8>(), 0..600)) {
            decode(&block);
            let length = block.len().min(16);
            block[..length].copy_from_slice(&MAGIC[..length]);
            prop_assert!(!matches!(decode(&block), Mark::Of(_)));
        }
    }
}
