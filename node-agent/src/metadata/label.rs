//! The label of an iso9660 or vfat filesystem, by what its first sectors say. Such disks are
//! mounted only if the label is that of a config drive.

use crate::filesystem::boot::{FAT12, FAT16, FAT32, ISO_DESCRIPTOR, ISO_MAGIC};

/// What must be read of a device: up to the end of the first volume descriptor.
pub(super) const BYTES: usize = ISO_DESCRIPTOR + ISO_SECTOR;

const ISO_SECTOR: usize = 2048;
/// The type of the primary descriptor, before the standard's name, and the version behind it.
const ISO_PRIMARY: u8 = 1;
const ISO_VERSION: u8 = 1;
/// Offset and bytes of the volume identifier.
const ISO_LABEL: (usize, usize) = (40, 32);

/// The end of a boot sector.
const FAT_SIGNATURE: (usize, &[u8]) = (510, b"\x55\xaa");
/// In an extended boot record: a label and a type follow.
const FAT_EXTENDED: u8 = 0x29;
/// Offset from the record, and bytes, of the label; the type is behind it.
const FAT_LABEL: (usize, usize) = (5, 11);

/// A filesystem and its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// The name of the filesystem for fsopen(2).
    pub(super) fs_type: &'static str,
    text: Vec<u8>,
}

impl Label {
    /// Whether it is this one. Tools for vfat make a label upper-case.
    pub(super) fn is(&self, label: &str) -> bool {
        self.text.eq_ignore_ascii_case(label.as_bytes())
    }
}

/// The label by the first [`BYTES`] of a device, or fewer of a smaller one. For vfat it is that of
/// the boot sector; mkfs.fat(8) and mlabel(1) keep the one in the root directory equal.
pub(super) fn of(start: &[u8]) -> Option<Label> {
    let label = |fs_type, text: &[u8]| Label {
        fs_type,
        text: text.trim_ascii_end().to_owned(),
    };
    let iso = start.get(ISO_DESCRIPTOR..).unwrap_or_default();
    if let [ISO_PRIMARY, named @ ..] = iso
        && let Some([ISO_VERSION, ..]) = named.strip_prefix(ISO_MAGIC)
    {
        return Some(label("iso9660", part(iso, ISO_LABEL)?));
    }
    let (signature, expected) = FAT_SIGNATURE;
    if part(start, (signature, expected.len()))? != expected {
        return None;
    }
    [FAT12, FAT16, FAT32].into_iter().find_map(|(at, kind)| {
        let record = start.get(at - FAT_LABEL.0 - FAT_LABEL.1..)?;
        let is_it = record.first() == Some(&FAT_EXTENDED) && start.get(at..)?.starts_with(kind);
        Some(label("vfat", part(record, FAT_LABEL)?)).filter(|_| is_it)
    })
}

fn part(bytes: &[u8], (offset, length): (usize, usize)) -> Option<&[u8]> {
    bytes.get(offset..)?.get(..length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut start = vec![0; BYTES];
        for (at, part) in parts {
            start[*at..at + part.len()].copy_from_slice(part);
        }
        start
    }

    fn found(parts: &[(usize, &[u8])], fs_type: &str) -> bool {
        of(&with(parts)).is_some_and(|label| label.is("config-2") && label.fs_type == fs_type)
    }

    #[test]
    fn each_filesystem_has_its_label_in_its_own_offset() {
        let iso: [(usize, &[u8]); 2] = [
            (32_768, b"\x01CD001\x01"),
            (32_808, b"config-2                        "),
        ];
        assert!(found(&iso, "iso9660"));
        let fat16: [(usize, &[u8]); 3] = [
            (38, b"\x29abcdCONFIG-2   "),
            (54, b"FAT16   "),
            (510, b"\x55\xaa"),
        ];
        assert!(found(&fat16, "vfat"));
        assert!(!found(&fat16[..2], "vfat"), "no signature");
        assert!(!found(&[fat16[0], fat16[2]], "vfat"), "no type");
        let fat32: [(usize, &[u8]); 3] = [
            (66, b"\x29abcdconfig-2   "),
            (82, b"FAT32   "),
            (510, b"\x55\xaa"),
        ];
        assert!(found(&fat32, "vfat"));
        // A hybrid image starts with a partition table.
        assert!(found(&[iso[0], iso[1], fat16[2]], "iso9660"));
        let other = of(&with(&[iso[0], (32_808, b"config-22")])).unwrap();
        assert!(!other.is("config-2"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&with(&[])), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            start in proptest::collection::vec(any::<u8>(), 0..600),
            cut in 0_usize..2048,
        ) {
            drop(of(&start));
            let mut iso = vec![0; ISO_DESCRIPTOR];
            iso.extend(b"\x01CD001\x01");
            iso.extend(&start);
            drop(of(&iso[..(ISO_DESCRIPTOR + cut).min(iso.len())]));
        }
    }
}
