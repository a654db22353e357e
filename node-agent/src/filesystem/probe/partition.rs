//! The partition table of PCs (Linux: block/partitions/msdos.c). Every boot sector has its two
//! magic bytes, so the entries decide.

use super::field::le32;

/// The last two bytes of the first sector.
pub(super) const MAGIC: &[u8] = &[0x55, 0xaa];
/// Their offset.
pub(super) const MAGIC_AT: u64 = 510;

const ENTRIES_AT: usize = 446;
const ENTRY_BYTES: usize = 16;
/// The type of the protective entry of a GPT.
const PROTECTIVE: u8 = 0xee;

/// Four plausible entries, at least one of them in use and not protective.
pub(super) fn is_table(sector: &[u8]) -> bool {
    let Some(entries) = sector.get(ENTRIES_AT..ENTRIES_AT + 4 * ENTRY_BYTES) else {
        return false;
    };
    let entries = || entries.chunks_exact(ENTRY_BYTES);
    let is_plausible = |entry: &[u8]| matches!(entry[0], 0x00 | 0x80);
    let is_used = |entry: &[u8]| {
        entry[4] != 0 && entry[4] != PROTECTIVE && le32(entry, 8) != 0 && le32(entry, 12) != 0
    };
    entries().all(is_plausible) && entries().any(is_used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(entries: &[[u8; ENTRY_BYTES]]) -> Vec<u8> {
        let mut sector = vec![0; 512];
        for (index, entry) in entries.iter().enumerate() {
            let at = ENTRIES_AT + index * ENTRY_BYTES;
            sector[at..at + ENTRY_BYTES].copy_from_slice(entry);
        }
        sector
    }

    const LINUX: [u8; 16] = [0x80, 0, 1, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0];

    #[test]
    fn an_entry_in_use_makes_a_table() {
        assert!(is_table(&sector(&[LINUX])));
        assert!(is_table(&sector(&[[0; 16], [0; 16], [0; 16], LINUX])));
    }

    #[test]
    fn a_boot_sector_or_a_guard_of_gpt_is_no_table() {
        let mut guard = LINUX;
        guard[4] = PROTECTIVE;
        let mut text = LINUX;
        text[0] = b'N';
        for entries in [&[][..], &[guard], &[LINUX, text]] {
            assert!(!is_table(&sector(entries)), "{entries:?}");
        }
        assert!(!is_table(&[0; 100]));
    }
}
