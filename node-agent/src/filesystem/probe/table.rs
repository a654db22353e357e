//! The table of signatures, with the description, locations and bytes of each. The most specific
//! signatures come first, since messages name the findings in this order. The table does not
//! contain the superblocks of ext4, xfs and btrfs, which `identity.rs` judges.
//!
//! The numbers are from the Linux headers that the comments name, and from the on-disk format
//! documents of each project. All offsets are offsets of the magic number itself, in bytes.

use belay_contract::encryption::UNFINISHED;

use super::disk::Areas;
use super::field::{be16, le32};
use super::signature::Location::{self, End, Part, Start};
use super::signature::Weight::{self, Decisive, Plain, Weak};
use super::signature::{Hit, Signature};
use super::{ext4, md, xfs};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const fn row(name: &'static str, at: &'static [Location], magic: &'static [u8]) -> Signature {
    Signature {
        name,
        at,
        magic,
        weight: Plain,
        check: None,
    }
}

const fn copy(name: &'static str, at: &'static [Location], magic: &'static [u8]) -> Signature {
    Signature {
        name,
        at,
        magic,
        weight: Weight::Copy,
        check: None,
    }
}

const fn relic(name: &'static str, at: &'static [Location], magic: &'static [u8]) -> Signature {
    Signature {
        name,
        at,
        magic,
        weight: Weight::Relic,
        check: None,
    }
}

/// The names of the two copies of a LUKS2 header.
const LUKS2: &str = "a LUKS2 header";
const LUKS2_COPY: &str = "a second LUKS2 header";
/// The offset of the subsystem in each copy of a LUKS2 header, in bytes.
const LUKS2_SUBSYSTEM_AT: u64 = 208;

/// The offsets of a second LUKS2 header. Each offset is a possible size of the first header.
const LUKS2_SECOND: &[Location] = &[
    Start(16 * KIB),
    Start(32 * KIB),
    Start(64 * KIB),
    Start(128 * KIB),
    Start(256 * KIB),
    Start(512 * KIB),
    Start(MIB),
    Start(2 * MIB),
    Start(4 * MIB),
];
/// The offsets of the first name in the name-value list of each of the four ZFS labels. Each label
/// is 256 KiB long, and two lengths precede the name.
const ZFS_LABELS: &[Location] = &[
    Start(16 * KIB + 20),
    Start(272 * KIB + 20),
    End {
        align: 256 * KIB,
        back: 496 * KIB - 20,
    },
    End {
        align: 256 * KIB,
        back: 240 * KIB - 20,
    },
];
/// The signature of swap space is in the last 10 bytes of the first page, for each page size of
/// Linux.
const SWAP_PAGES: &[Location] = &[
    Start(4 * KIB - 10),
    Start(8 * KIB - 10),
    Start(16 * KIB - 10),
    Start(32 * KIB - 10),
    Start(64 * KIB - 10),
];
const LVM_LABELS: &[Location] = &[Start(0x18), Start(0x218), Start(0x418), Start(0x618)];
/// The superblock copies in groups 1, 3 and 5, for block sizes of 1, 2 and 4 KiB. The number of
/// blocks in a group is 8 times the block size in bytes.
const EXT_COPIES: &[Location] = &[
    Start(8 * MIB + KIB + ext4::MAGIC_AT),
    Start(24 * MIB + KIB + ext4::MAGIC_AT),
    Start(40 * MIB + KIB + ext4::MAGIC_AT),
    Start(32 * MIB + ext4::MAGIC_AT),
    Start(96 * MIB + ext4::MAGIC_AT),
    Start(160 * MIB + ext4::MAGIC_AT),
    Start(128 * MIB + ext4::MAGIC_AT),
    Start(384 * MIB + ext4::MAGIC_AT),
    Start(640 * MIB + ext4::MAGIC_AT),
];
/// The copies of a btrfs superblock. mkfs.btrfs writes their magic number only after the first
/// superblock is on the disk.
const BTRFS_COPIES: &[Location] = &[Start(64 * MIB + 0x40), Start(256 * GIB + 0x40)];
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
/// The metadata of DRBD, after its activity log and bitmap. The table has the magic numbers of
/// versions 8.0 to 8.3, 8.4 after a crash, and 9.
const DRBD: &[Location] = &[End {
    align: 4 * KIB,
    back: 4 * KIB - 60,
}];
const GPT_COPY: &[Location] = &[
    End {
        align: 512,
        back: 512,
    },
    End {
        align: 4 * KIB,
        back: 4 * KIB,
    },
];

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    // Encryption: cryptsetup (docs/on-disk-format-luks2.pdf), Microsoft.
    row("a LUKS1 header", &[Start(0)], b"LUKS\xba\xbe\x00\x01"),
    row(LUKS2, &[Start(0)], b"LUKS\xba\xbe\x00\x02"),
    relic(LUKS2_COPY, LUKS2_SECOND, b"SKUL\xba\xbe\x00\x02"),
    row("a BitLocker volume", &[Start(3)], b"-FVE-FS-"),
    // Volume managers and RAID: LVM2 (lib/label), raid/md_p.h, drbd_meta_data.h, vendors' formats.
    row("an LVM2 physical volume", LVM_LABELS, b"LVM2 001"),
    Signature { name: "a member of a software RAID (md 1.1)", at: &[Start(0)],
        magic: md::MAGIC, weight: Decisive, check: Some(is_md_1) },
    Signature { name: "a member of a software RAID (md 1.2)", at: &[Start(4 * KIB)],
        magic: md::MAGIC, weight: Decisive, check: Some(is_md_1) },
    Signature { name: "a member of a software RAID (md 1.0)",
        at: &[End { align: 4 * KIB, back: 8 * KIB }],
        magic: md::MAGIC, weight: Decisive, check: Some(is_md_1) },
    Signature { name: "a member of a software RAID (md 0.90)",
        at: &[End { align: 64 * KIB, back: 64 * KIB }],
        magic: md::MAGIC, weight: Decisive, check: Some(is_md_0) },
    row("a member of an Intel RAID", &[End { align: 512, back: KIB }], b"Intel Raid ISM Cfg Sig. "),
    row("a member of a DDF RAID", &[End { align: 512, back: 512 }], b"\xde\x11\xde\x11"),
    row("a DRBD device", DRBD, b"\x83\x74\x02\x6b"),
    row("a DRBD device", DRBD, b"\x83\x74\x02\x6c"),
    row("a DRBD device", DRBD, b"\x83\x74\x02\x6d"),
    row("a Stratis device", &[Start(516), Start(4612)], b"!Stra0tis\x86\xff\x02^\x41rh"),
    row("an Oracle ASM disk", &[Start(32)], b"ORCLDISK"),
    // Device mapper targets (drivers/md/dm-*.c, vdo) and caches (drivers/md/bcache/super.c).
    row("a dm-integrity device", &[Start(0)], b"integrt\0"),
    row("a dm-verity hash tree", &[Start(0)], b"verity\0\0"),
    row("a dm-snapshot store", &[Start(0)], b"SnAp"),
    row("a VDO device", &[Start(0)], b"dmvdo001"),
    row("a bcache device", &[Start(4 * KIB + 24)], BCACHE),
    // Filesystems and object stores.
    row("a bcachefs filesystem", &[Start(4 * KIB + 24), Start(2 * MIB + 24)], BCACHEFS),
    row("a Ceph BlueStore device", &[Start(0)], b"bluestore block device"),
    relic("a second btrfs superblock", BTRFS_COPIES, b"_BHRfS_M"), // uapi/linux/btrfs_tree.h
    row("a zfs label", ZFS_LABELS, b"\0\0\0\x07version\0"), // include/sys/vdev_impl.h, XDR
    row("swap space", SWAP_PAGES, b"SWAPSPACE2"), // include/linux/swap.h
    row("swap space", SWAP_PAGES, b"SWAP-SPACE"),
    row("swap space with a hibernated system", SWAP_PAGES, b"S1SUSPEND\0"), // kernel/power/swap.c
    row("an f2fs filesystem", &[Start(KIB), Start(5 * KIB)], b"\x10\x20\xf5\xf2"), // f2fs_fs.h
    row("an erofs filesystem", &[Start(KIB)], b"\xe2\xe1\xf5\xe0"), // fs/erofs/erofs_fs.h
    row("a squashfs filesystem", &[Start(0)], b"hsqs"), // fs/squashfs/squashfs_fs.h
    row("a squashfs filesystem", &[Start(0)], b"sqsh"),
    row("a cramfs filesystem", &[Start(0)], b"\x45\x3d\xcd\x28"), // uapi/linux/cramfs_fs.h
    row("a romfs filesystem", &[Start(0)], b"-rom1fs-"), // uapi/linux/romfs_fs.h
    row("a reiserfs filesystem", &[Start(64 * KIB + 52)], b"ReIsEr2Fs"),
    row("a reiserfs filesystem", &[Start(64 * KIB + 52)], b"ReIsEr3Fs"),
    row("a reiserfs filesystem", &[Start(64 * KIB + 52), Start(8 * KIB + 52)], b"ReIsErFs"),
    row("a reiser4 filesystem", &[Start(64 * KIB)], b"ReIsEr4"),
    row("a jfs filesystem", &[Start(32 * KIB)], b"JFS1"), // fs/jfs/jfs_superblock.h
    row("a gfs2 filesystem", &[Start(64 * KIB)], b"\x01\x16\x19\x70\0\0\0\x01"), // gfs2_ondisk.h
    row("an ocfs2 filesystem", &[Start(KIB), Start(2 * KIB), Start(4 * KIB), Start(8 * KIB)],
        b"OCFSV2"), // fs/ocfs2/ocfs2_fs.h, by block size
    row("a zonefs filesystem", &[Start(0)], b"SFOZ"), // fs/zonefs/zonefs.h
    row("a VMFS volume", &[Start(MIB)], b"\x0d\xd0\x01\xc0"),
    row("a VMFS filesystem", &[Start(2 * MIB)], b"\x5e\xf1\xab\x2f"),
    row("a vxfs filesystem", &[Start(KIB)], b"\xf5\xfc\x01\xa5"), // fs/freevxfs/vxfs.h
    row("a ufs filesystem", &[Start(8 * KIB + 1372), Start(64 * KIB + 1372)], b"\x54\x19\x01\x00"),
    row("a ufs2 filesystem", &[Start(8 * KIB + 1372), Start(64 * KIB + 1372)], b"\x19\x01\x54\x19"),
    row("an apfs container", &[Start(32)], b"NXSB"), // Apple File System Reference
    Signature { name: "an hfs+ filesystem", at: &[Start(KIB)], magic: b"H+",
        weight: Weak, check: Some(is_hfs_plus) },
    Signature { name: "an hfs+ filesystem", at: &[Start(KIB)], magic: b"HX",
        weight: Weak, check: Some(is_hfs_plus) },
    Signature { name: "a nilfs2 filesystem", at: &[Start(KIB + 6)], magic: b"\x34\x34",
        weight: Weak, check: Some(is_nilfs2) }, // uapi/linux/nilfs2_ondisk.h
    row("an iso9660 filesystem", &[Start(ISO_DESCRIPTOR as u64 + 1)], ISO_MAGIC),
    row("a udf filesystem", &[Start(32 * KIB + 1)], b"BEA01"), // fs/udf/ecma_167.h
    row("an exfat filesystem", &[Start(3)], b"EXFAT   "), // fs/exfat/exfat_raw.h
    row("an ntfs filesystem", &[Start(3)], b"NTFS    "), // fs/ntfs3/ntfs.h
    row("an ReFS filesystem", &[Start(3)], b"ReFS\0"),
    row("a vfat filesystem", &[Start(FAT32.0 as u64)], FAT32.1),
    row("a vfat filesystem", &[Start(FAT16.0 as u64)], FAT16.1),
    row("a vfat filesystem", &[Start(FAT12.0 as u64)], FAT12.1),
    // Partition tables: UEFI 2.10 section 5.3, block/partitions/.
    row("a GPT partition table", &[Start(512), Start(4 * KIB)], b"EFI PART"),
    relic("a copy of a GPT partition table", GPT_COPY, b"EFI PART"),
    Signature { name: "an MBR partition table", at: &[Start(MBR_MAGIC_AT)],
        magic: MBR_MAGIC, weight: Plain, check: Some(is_mbr) },
    row("a BSD disklabel", &[Start(64), Start(512)], b"\x57\x45\x56\x82"),
    // Remains of a filesystem whose primary superblock was overwritten.
    Signature { name: "a copy of an ext superblock", at: EXT_COPIES, magic: ext4::MAGIC,
        weight: Weight::Copy, check: Some(is_ext_copy) },
    // mkfs.xfs makes 4 allocation groups by default, and 2 if the agent formats a small device.
    copy("a copy of an xfs superblock", &[Part(4), Part(2)], xfs::MAGIC),
    Signature { name: "a boot sector", at: &[Start(MBR_MAGIC_AT)],
        magic: MBR_MAGIC, weight: Weak, check: None },
];

fn is_md_1(areas: &Areas, at: u64, _: u64) -> bool {
    areas
        .get(at, md::BYTES)
        .is_some_and(|block| md::is_version_1(block, at))
}

fn is_md_0(areas: &Areas, at: u64, bytes: u64) -> bool {
    areas
        .get(at, md::BYTES)
        .is_some_and(|block| md::is_version_0(block, bytes))
}

fn is_mbr(areas: &Areas, _: u64, _: u64) -> bool {
    areas.get(0, 512).is_some_and(is_table)
}

fn is_ext_copy(areas: &Areas, at: u64, _: u64) -> bool {
    let start = at.checked_sub(ext4::MAGIC_AT);
    start
        .and_then(|start| areas.get(start, ext4::BYTES))
        .is_some_and(ext4::is_copy)
}

/// Whether the version is 4 (H+) or 5 (HX), as in Apple Technical Note 1150.
fn is_hfs_plus(areas: &Areas, at: u64, _: u64) -> bool {
    areas
        .get(at, 4)
        .is_some_and(|head| matches!(be16(head, 2), 4 | 5))
}

/// Whether `s_rev_level` is 2, as in every nilfs2 since 2009.
fn is_nilfs2(areas: &Areas, at: u64, _: u64) -> bool {
    at.checked_sub(6)
        .and_then(|at| areas.get(at, 4))
        .is_some_and(|head| le32(head, 0) == 2)
}

/// The offset of the first volume descriptor of ISO 9660, after 16 sectors of 2048 bytes
/// (ECMA-119). The descriptor begins with one byte for its type (uapi/linux/iso_fs.h).
pub(crate) const ISO_DESCRIPTOR: usize = 32_768;
/// The standard identifier of ISO 9660, which follows the type of a volume descriptor.
pub(crate) const ISO_MAGIC: &[u8] = b"CD001";

/// The filesystem type in the boot sector of a FAT filesystem, as mkfs.fat(8) and other tools write
/// it (uapi/linux/msdos_fs.h), and its offset on the device.
pub(crate) const FAT12: (usize, &[u8]) = (54, b"FAT12   ");
pub(crate) const FAT16: (usize, &[u8]) = (54, b"FAT16   ");
pub(crate) const FAT32: (usize, &[u8]) = (82, b"FAT32   ");

/// The magic number of a boot sector: the last two bytes of the first sector.
const MBR_MAGIC: &[u8] = &[0x55, 0xaa];
/// The offset of [`MBR_MAGIC`] on the device.
const MBR_MAGIC_AT: u64 = 510;

const ENTRIES_AT: usize = 446;
const ENTRY_BYTES: usize = 16;
/// The partition type of the protective entry that a GPT has in the MBR.
const PROTECTIVE: u8 = 0xee;

/// Whether the sector has an MBR partition table (Linux: block/partitions/msdos.c). Every boot
/// sector has the two magic bytes of the MBR, so the entries decide.
///
/// A table has four plausible entries, of which at least one is in use and not protective.
fn is_table(sector: &[u8]) -> bool {
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

/// Whether the signature is that of a LUKS2 header that an agent has not finished.
pub(super) fn is_unfinished_header(areas: &Areas, hit: &Hit) -> bool {
    let subsystem = areas.get(hit.at + LUKS2_SUBSYSTEM_AT, UNFINISHED.len());
    [LUKS2, LUKS2_COPY].contains(&hit.name) && subsystem == Some(UNFINISHED.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::probe::disk::ALIGN_BYTES;

    #[test]
    fn every_magic_number_lies_within_one_block() {
        let sizes = [1 << 30, (1 << 30) + 512, (1 << 40) - 512, 300 << 20];
        for row in TABLE {
            for at in row
                .at
                .iter()
                .flat_map(|place| sizes.map(|bytes| place.on(bytes)))
            {
                let Some(at) = at else { continue };
                let last = at + row.magic.len() as u64 - 1;
                assert_eq!(at / ALIGN_BYTES, last / ALIGN_BYTES, "{} at {at}", row.name);
            }
        }
    }

    /// The expected offsets are from the documents of the formats, for a device of 1 TiB and 512
    /// bytes.
    #[test]
    fn the_offsets_are_these() {
        let bytes = (1 << 40) + 512;
        let line = |row: &Signature| {
            let places = row.at.iter().filter_map(|place| place.on(bytes));
            let places: Vec<_> = places.map(|at| at.to_string()).collect();
            format!("{}: {}", row.name, places.join(" "))
        };
        let expected = include_str!("offsets.txt");
        for (row, expected) in TABLE.iter().zip(expected.lines()) {
            assert_eq!(line(row), expected);
        }
        assert_eq!(expected.lines().count(), TABLE.len());
    }

    #[test]
    fn short_magic_numbers_are_weak_or_checked() {
        for row in TABLE.iter().filter(|row| row.magic.len() < 4) {
            assert!(row.weight == Weak || row.check.is_some(), "{}", row.name);
        }
    }

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
