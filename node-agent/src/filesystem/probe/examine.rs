//! Determines the content of a device.

use std::fmt;
use std::ops::{ControlFlow, Range};

use belay_server::call::{Failure, Kind};

use super::blank::{self, Blank, Sweep};
use super::btrfs;
use super::disk::{ALIGN, Area, Areas, DeviceUnderTest, Disk, KernelDisk};
use super::identity::{Identity, Sound, unfinished};
use super::mark::{self, Interrupted, MARK_AT, read_mark};
use super::ranges::read_each;
use super::signature::{Hit, Weight, blocks_left, scan};
use super::table::{TABLE, is_unfinished_header};
use super::xfs::LOG_BLANK;
use crate::filesystem::FsType;
use crate::filesystem::witness::{Attempt, Witness};
use crate::kernel::Kernel;

/// The number of bytes that are read at the start of a device. The start of a device includes the
/// superblocks of ext4, xfs and btrfs (at 64 KiB), and the signature of swap space with pages of 64
/// KiB.
const HEAD_BYTES: u64 = 72 << 10;
/// The alignment of the first byte that is read at the end of a device: see [`tail`]. The end
/// includes the superblocks of software RAID that are stored there, and the backup GPT.
const TAIL_ALIGN_BYTES: u64 = 64 << 10;

/// The content of a device.
#[derive(Debug)]
pub(crate) enum Probed {
    /// A mountable filesystem, without any contradicting signature.
    Known(Sound),
    /// A mountable filesystem whose file does not record yet that the volume is in use, or whose
    /// disk still has its format mark.
    Unsettled(Unsettled),
    /// The device is proven blank: see [`Blank`].
    Blank(Blank),
    /// Every byte is zero, but no record shows that the volume is new, so the volume's data is
    /// lost.
    Emptied,
    /// The remains of an interrupted format of this volume.
    Interrupted(Interrupted),
    /// Other content, which the agent must not change.
    Foreign(Foreign),
    /// The device could not be read in full, so its content is unknown.
    Unreadable(Failure),
}

/// Content that is neither a known filesystem nor blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// The description of the content, with an article.
    pub(crate) what: String,
    /// The offset on the device at which the content begins, in bytes.
    pub(crate) at: u64,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

/// A filesystem whose backing file does not record yet that the volume is in use, or whose disk
/// still has its format mark. This filesystem must not be mounted for writing yet: otherwise, a
/// mark that a user writes might be valid, and a device of zeros might count as blank.
/// [`crate::filesystem::settle`] makes the filesystem mountable.
#[derive(Debug)]
pub(crate) struct Unsettled {
    sound: Sound,
    pub(in crate::filesystem) witness: Witness,
}

impl Unsettled {
    /// Returns the type of the filesystem.
    pub(crate) fn fs_type(&self) -> FsType {
        self.sound.fs
    }

    /// Returns the filesystem. Without [`crate::filesystem::settle`], only a filesystem on a disk
    /// may be mounted, and only read-only, because the disk keeps its format mark.
    pub(crate) fn unsettled(self) -> Sound {
        self.sound
    }
}

/// Determines the content of a device. Only reads.
///
/// In the usual case, a volume with a filesystem, the probe reads only the start and the end of the
/// device, and an attribute of the backing file.
pub(crate) fn examine<K: Kernel>(kernel: &K, device: &DeviceUnderTest<'_, K::Fd>) -> Probed {
    let disk = KernelDisk { kernel, device };
    examine_disk(&disk, device.volume).unwrap_or_else(Probed::Unreadable)
}

/// Examines only the start, the end and the format mark of a device. Returns `None` if nothing was
/// found there, so that the rest of the device must be read.
pub(crate) fn examine_ends<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Option<Probed> {
    match look_at_ends(&KernelDisk { kernel, device }, device.volume) {
        Ok(Ends::Probed(found)) => Some(found),
        Ok(Ends::Nothing { .. }) => None,
        Err(failure) => Some(Probed::Unreadable(failure)),
    }
}

/// Examines any implementation of [`Disk`].
pub(super) fn examine_disk(disk: &impl Disk, volume: &str) -> Result<Probed, Failure> {
    match look_at_ends(disk, volume)? {
        Ends::Probed(found) => Ok(found),
        Ends::Nothing { areas, witness } => look_deeper(disk, volume, areas, witness),
    }
}

/// The content of both ends of a device.
enum Ends {
    Probed(Probed),
    /// No superblock, signature or format mark was found. Contains the areas that were read.
    Nothing {
        areas: Areas,
        witness: Witness,
    },
}

fn look_at_ends(disk: &impl Disk, volume: &str) -> Result<Ends, Failure> {
    let bytes = disk.bytes();
    if bytes == 0 {
        return Err(Failure::new(
            Kind::System,
            "the device has a size of zero bytes",
        ));
    }
    let mut areas = Areas::default();
    areas.push(Area::read(disk, 0..HEAD_BYTES)?);
    areas.push(Area::read(disk, tail(bytes))?);
    let identity = Identity::of(&areas, bytes);
    let hits = scan(TABLE, &areas, bytes);
    let contradiction = hits.iter().any(|hit| identity.contradicts(hit));
    let sound = identity.sound().filter(|_| !contradiction);

    let witness = match mark::witness(disk, volume) {
        // A bad sector at the mark's offset must not prevent the mount of a valid filesystem.
        Err(_) if sound.is_some() && !disk.has_file() => Witness::NoFile,
        witness => witness?,
    };
    let attempt = match witness {
        Witness::Formatting(attempt) => attempt,
        Witness::New | Witness::UseBegun | Witness::Used | Witness::NoFile => Attempt::UNKNOWN,
    };
    let is_half_made = identity.may_be_half_made(attempt) && !has_log(disk, &identity)?;
    // In a valid filesystem, a format mark is a user's data, or is older than a restored backup, so
    // the mark is ignored.
    if let Some(sound) = sound.clone().filter(|_| !is_half_made) {
        if let (Witness::NoFile, Identity::Xfs(xfs)) = (witness, &identity)
            && xfs.is_untouched
            && let Some(interrupted) = read_mark(disk)?.of_attempt(volume, bytes, xfs.uuid)
            && !has_log(disk, &identity)?
        {
            return Ok(Ends::Probed(Probed::Interrupted(interrupted)));
        }
        return Ok(Ends::Probed(match witness {
            Witness::Used | Witness::NoFile => Probed::Known(sound),
            Witness::New | Witness::UseBegun | Witness::Formatting(_) => {
                Probed::Unsettled(Unsettled { sound, witness })
            }
        }));
    }
    let mark = read_mark(disk)?;
    let is_proven = matches!(witness, Witness::Formatting(_));
    if let (Some(interrupted), Witness::Formatting(_) | Witness::NoFile) =
        (mark.interrupted(volume, bytes, is_proven), witness)
    {
        let hits = scan_all(disk, &mut areas)?;
        // An interrupted mkfs does not leave this signature or superblock, so the device has been
        // used since the interrupted format. An interrupted luksFormat leaves its own header.
        let is_left = |hit: &Hit| is_proven && is_unfinished_header(&areas, hit);
        let is_later = |hit: &Hit| hit.weight >= Weight::Relic && !is_left(hit);
        let is_used = hits.iter().any(is_later) || !is_half_made;
        return Ok(Ends::Probed(match is_used {
            true => Probed::Foreign(name(identity, &hits)),
            false => Probed::Interrupted(interrupted),
        }));
    }
    if let Some(what) = mark.foreign_name(volume) {
        let foreign = Foreign { what, at: MARK_AT };
        return Ok(Ends::Probed(Probed::Foreign(foreign)));
    }
    if let Some(sound) = sound {
        let unsettled = Unsettled { sound, witness };
        return Ok(Ends::Probed(Probed::Unsettled(unsettled)));
    }
    if identity != Identity::Nothing || !hits.is_empty() {
        return Ok(Ends::Probed(Probed::Foreign(name(identity, &hits))));
    }
    Ok(Ends::Nothing { areas, witness })
}

/// Whether the log of an xfs shows that the filesystem was mounted for writing. Returns `false` for
/// other content, because only an xfs can be valid and incomplete.
fn has_log(disk: &impl Disk, identity: &Identity) -> Result<bool, Failure> {
    let Identity::Xfs(xfs) = identity else {
        return Ok(false);
    };
    let Some(at) = xfs.log_at else {
        return Ok(true);
    };
    let area = Area::read(disk, at..at + LOG_BLANK.end)?;
    let length = usize::try_from(LOG_BLANK.end - LOG_BLANK.start).unwrap_or(usize::MAX);
    let records = area.get(at + LOG_BLANK.start, length);
    Ok(records.is_none_or(|bytes| bytes.iter().any(|byte| *byte != 0)))
}

/// Examines the rest of a device, after nothing was found at its ends. Reads the whole device if
/// necessary, once in a volume's lifecycle.
fn look_deeper(
    disk: &impl Disk,
    volume: &str,
    mut areas: Areas,
    witness: Witness,
) -> Result<Probed, Failure> {
    if disk.is_new() {
        // Search for copies of superblocks, which samples can miss.
        let hits = scan_all(disk, &mut areas)?;
        if !hits.is_empty() {
            return Ok(Probed::Foreign(name(Identity::Nothing, &hits)));
        }
    }
    let swept = match disk.is_new() {
        true => blank::sample(disk, volume, &areas)?,
        false => blank::prove(disk, volume)?,
    };
    let at = match swept {
        Sweep::Blank(_) if matches!(witness, Witness::Used | Witness::UseBegun) => {
            return Ok(Probed::Emptied);
        }
        Sweep::Blank(blank) => return Ok(Probed::Blank(blank)),
        Sweep::Data(at) => at,
    };
    let hits = scan_all(disk, &mut areas)?;
    Ok(Probed::Foreign(if hits.is_empty() {
        Foreign {
            what: "unknown data".to_owned(),
            at,
        }
    } else {
        name(Identity::Nothing, &hits)
    }))
}

/// Returns every signature of the table on the device. Reads the blocks that are not in `areas`
/// yet.
fn scan_all(disk: &impl Disk, areas: &mut Areas) -> Result<Vec<Hit>, Failure> {
    let blocks = blocks_left(TABLE, areas, disk.bytes()).into_iter();
    read_each(disk, ALIGN, blocks.map(|at| Ok((at, ALIGN))), |at, read| {
        areas.push(Area::of(at, read));
        ControlFlow::Continue(())
    })?;
    Ok(scan(TABLE, areas, disk.bytes()))
}

/// Returns the last 64 to 128 KiB of a device, from the offset of the superblock of software RAID
/// 0.90 on.
fn tail(bytes: u64) -> Range<u64> {
    let aligned = bytes - bytes % TAIL_ALIGN_BYTES;
    aligned.saturating_sub(TAIL_ALIGN_BYTES)..bytes
}

/// Describes each finding once, with the offset of the first finding.
fn name(identity: Identity, hits: &[Hit]) -> Foreign {
    let mut found: Vec<(String, u64)> = Vec::new();
    match identity {
        Identity::Nothing => {}
        Identity::Ext4(_) => found.push(("an ext4 filesystem".to_owned(), 1024)),
        Identity::Xfs(_) => found.push(("an xfs filesystem".to_owned(), 0)),
        Identity::Btrfs(_) => found.push(("a btrfs filesystem".to_owned(), btrfs::AT)),
        Identity::Unfinished { fs, at } => found.push((unfinished(fs), at)),
        Identity::Odd { what, at } => found.push((what, at)),
    }
    // Name a weak signature or a backup copy only if nothing more conclusive was found.
    let strongest = hits.iter().map(|hit| hit.weight).max();
    let is_wanted = |hit: &&Hit| match strongest {
        Some(strongest) if strongest < Weight::Plain => found.is_empty() && hit.weight == strongest,
        _ => hit.weight >= Weight::Plain,
    };
    let wanted: Vec<&Hit> = hits.iter().filter(is_wanted).collect();
    for hit in wanted {
        if !found.iter().any(|(what, _)| what == hit.name) {
            found.push((hit.name.to_owned(), hit.at));
        }
    }
    let at = found.first().map_or(0, |(_, at)| *at);
    let names: Vec<String> = found.into_iter().map(|(what, _)| what).collect();
    Foreign {
        what: names.join(" and "),
        at,
    }
}

#[cfg(test)]
mod tests {
    use belay_contract::encryption::UNFINISHED;
    use proptest::prelude::*;

    use super::super::mark::encode as encode_mark;
    use super::super::memory_disk::MemoryDisk;
    use super::super::{ext4, md, xfs};
    use super::*;

    const BYTES: u64 = 1 << 30;

    fn is_sound(found: &Probed, fs: FsType) -> bool {
        matches!(found, Probed::Unsettled(made) if made.fs_type() == fs)
    }

    /// Blocks and their offsets.
    type Contents = Vec<(u64, Vec<u8>)>;

    fn disk(contents: &[(u64, &[u8])]) -> MemoryDisk {
        let mut disk = MemoryDisk::new(BYTES);
        for (at, bytes) in contents {
            disk.write(*at, bytes);
        }
        disk
    }

    fn foreign(contents: &[(u64, &[u8])]) -> (String, u64) {
        match examine_disk(&disk(contents), "vol-1") {
            Ok(Probed::Foreign(foreign)) => (foreign.what, foreign.at),
            other => panic!("{other:?}"),
        }
    }

    fn gpt() -> (u64, &'static [u8]) {
        (512, b"EFI PART\0\0\x01\0")
    }

    #[test]
    fn the_tail_begins_at_or_before_the_oldest_raid_superblock() {
        let kib = 1 << 10;
        for (bytes, start) in [
            (1000, 0),
            (64 * kib, 0),
            (128 * kib, 64 * kib),
            (BYTES, BYTES - 64 * kib),
            (BYTES + 512, BYTES - 64 * kib),
            (BYTES - 512, BYTES - 128 * kib),
        ] {
            assert_eq!(tail(bytes), start..bytes);
        }
    }

    #[test]
    fn a_mark_is_read_where_it_fits_and_no_smaller_device_has_one() {
        let end = MARK_AT + 4096;
        for (bytes, is_marked) in [(MARK_AT - 4096, false), (end - 512, false), (end, true)] {
            let mut disk = MemoryDisk::new(bytes);
            disk.write(MARK_AT, &encode_mark("vol-1", None).unwrap());
            let mark = read_mark(&disk).unwrap();
            assert_eq!(mark.interrupted("vol-1", bytes, true).is_some(), is_marked);
            assert_eq!(disk.reads.get(), usize::from(is_marked), "{bytes}");
        }
    }

    #[test]
    fn short_signatures_name_what_their_other_fields_confirm() {
        let mut table = vec![0; 512];
        table[446 + 4] = 0x83;
        table[446 + 8..446 + 16].copy_from_slice(&[0, 8, 0, 0, 0, 1, 0, 0]);
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(foreign(&[(0, &table)]).0, "an MBR partition table");
        table[446 + 4] = 0;
        assert_eq!(foreign(&[(0, &table)]).0, "a boot sector");
        assert_eq!(foreign(&[(1024, b"H+\0\x04")]).0, "an hfs+ filesystem");
        assert_eq!(foreign(&[(1024, b"HX\0\x05")]).0, "an hfs+ filesystem");
        assert_eq!(foreign(&[(1024, b"H+\0\x07")]).0, "unknown data");
        let nilfs2 = |level| [level, 0, 0, 0, 0, 0, 0x34, 0x34];
        assert_eq!(foreign(&[(1024, &nilfs2(2))]).0, "a nilfs2 filesystem");
        assert_eq!(foreign(&[(1024, &nilfs2(1))]).0, "unknown data");
    }

    #[test]
    fn a_volume_with_a_filesystem_costs_two_reads() {
        let contents: [(u64, Vec<u8>, FsType); 3] = [
            (1024, ext4::tests::superblock(), FsType::Ext4),
            (0, xfs::tests::sector(), FsType::Xfs),
            (btrfs::AT, btrfs::tests::superblock(), FsType::Btrfs),
        ];
        for (at, superblock, expected) in contents {
            let disk = disk(&[(at, &superblock)]);
            let found = examine_disk(&disk, "vol-1").unwrap();
            assert!(is_sound(&found, expected), "{found:?}");
            assert_eq!(disk.reads.get(), 2);
            assert!(disk.bytes_read.get() <= (72 + 128) << 10);
        }
    }

    #[test]
    fn a_blank_device_is_blank() {
        assert!(matches!(
            examine_disk(&disk(&[]), "vol-1"),
            Ok(Probed::Blank(_))
        ));
        assert!(matches!(
            examine_disk(&disk(&[(7 << 20, &[0; 9])]), "vol-1"),
            Ok(Probed::Blank(_))
        ));
    }

    #[test]
    fn one_byte_anywhere_is_unknown_data() {
        for at in [0, 513, 5 << 20, MARK_AT, MARK_AT + 4095, BYTES - 1] {
            assert_eq!(foreign(&[(at, &[9])]), ("unknown data".to_owned(), at));
        }
    }

    #[test]
    fn no_size_or_a_failed_read_says_nothing() {
        assert!(examine_disk(&MemoryDisk::new(0), "vol-1").is_err());
        for contents in [
            &[][..],
            &[(1024, &ext4::tests::superblock()[..])],
            &[(BYTES / 2, &[1])],
        ] {
            let reads = {
                let disk = disk(contents);
                examine_disk(&disk, "vol-1").unwrap();
                disk.reads.get()
            };
            for failing in 0..reads {
                let mut disk = disk(contents);
                disk.failing_read = Some(failing);
                assert!(
                    examine_disk(&disk, "vol-1").is_err(),
                    "read {failing} of {reads}"
                );
            }
        }
    }

    #[test]
    fn a_later_partition_table_or_label_contradicts_a_filesystem() {
        let ext4 = ext4::tests::superblock();
        let xfs = xfs::tests::sector();
        let (what, at) = foreign(&[(1024, &ext4), gpt()]);
        assert_eq!(what, "an ext4 filesystem and a GPT partition table");
        assert_eq!(at, 1024);
        let (what, _) = foreign(&[(0, &xfs), gpt()]);
        assert_eq!(what, "an xfs filesystem and a GPT partition table");
        let btrfs = btrfs::tests::superblock();
        let (what, at) = foreign(&[(btrfs::AT, &btrfs), gpt()]);
        assert_eq!(what, "a btrfs filesystem and a GPT partition table");
        assert_eq!(at, btrfs::AT);
        let (what, _) = foreign(&[(1024, &ext4), (0x218, b"LVM2 001")]);
        assert_eq!(what, "an ext4 filesystem and an LVM2 physical volume");
        let (what, _) = foreign(&[(0, &xfs), (1024, &ext4)]);
        assert_eq!(what, "both an xfs and an ext4 superblock");
    }

    #[test]
    fn what_a_user_stored_does_not_make_a_volume_foreign() {
        let ext4 = ext4::tests::superblock();
        let xfs = xfs::tests::sector();
        let stored: [(u64, &[u8]); 9] = [
            (510, b"\x55\xaa"),
            (64 << 10, &btrfs::tests::superblock()),
            (32_769, b"CD001"),
            (BYTES - 512, b"EFI PART"),
            (BYTES - 4096 + 60, b"\x83\x74\x02\x6d"),
            (BYTES - 8192, &md::tests::version_1(BYTES - 8192)),
            (BYTES - 65_536, &md::tests::version_0(512 << 20)),
            (MARK_AT, &encode_mark("vol-1", None).unwrap()),
            (MARK_AT, &encode_mark("vol-2", None).unwrap()),
        ];
        for what in stored {
            let found = examine_disk(&disk(&[(1024, &ext4), what]), "vol-1").unwrap();
            assert!(is_sound(&found, FsType::Ext4), "{found:?}");
            if what.0 >= 512 {
                let found = examine_disk(&disk(&[(0, &xfs), what]), "vol-1").unwrap();
                assert!(is_sound(&found, FsType::Xfs), "{found:?}");
            }
        }
        let btrfs = btrfs::tests::superblock();
        for what in [
            (64 << 20 | 0x40, &b"_BHRfS_M"[..]),
            stored[3],
            stored[5],
            stored[6],
        ] {
            let found = examine_disk(&disk(&[(btrfs::AT, &btrfs), what]), "vol-1").unwrap();
            assert!(is_sound(&found, FsType::Btrfs), "{found:?}");
        }
    }

    #[test]
    fn a_btrfs_that_is_not_whole_or_not_alone_is_foreign() {
        let cases: [(&str, usize, &[u8]); 2] = [
            ("a btrfs filesystem that mkfs did not finish", 0x40, b"!"),
            ("one of 3 devices of a btrfs filesystem", 0x88, b"\x03"),
        ];
        for (expected, at, byte) in cases {
            let mut block = btrfs::tests::superblock();
            btrfs::tests::put(&mut block, at, byte);
            let expected = (expected.to_owned(), btrfs::AT);
            assert_eq!(foreign(&[(btrfs::AT, &block)]), expected);
        }
    }

    #[test]
    fn a_whole_raid_superblock_contradicts_where_the_filesystem_has_ended() {
        let contents: [(u64, Vec<u8>); 3] = [
            (1024, ext4::tests::superblock()),
            (0, xfs::tests::sector()),
            (btrfs::AT, btrfs::tests::superblock()),
        ];
        for (start, superblock) in contents {
            let raids = [
                // The first two arrays begin where the filesystem ends; the last begins at the
                // filesystem's start.
                (8192, 8192, md::tests::version_1(BYTES), "(md 1.0)"),
                (65_536, 65_536, md::tests::version_0(512 << 20), "(md 0.90)"),
                (0, BYTES - 4096, md::tests::version_1(4096), "(md 1.2)"),
            ];
            for (more, back, raid, expected) in raids {
                let mut disk = MemoryDisk::new(BYTES + more);
                disk.write(start, &superblock);
                disk.write(BYTES + more - back, &raid);
                match examine_disk(&disk, "vol-1").unwrap() {
                    Probed::Foreign(found) => assert!(found.what.ends_with(expected), "{found}"),
                    other => panic!("{other:?} instead of {expected}"),
                }
            }
            // The magic number alone does not prove that there is an array.
            for more in [8192, 65_536] {
                let mut disk = MemoryDisk::new(BYTES + more);
                disk.write(start, &superblock);
                disk.write(BYTES, md::MAGIC);
                let found = examine_disk(&disk, "vol-1").unwrap();
                assert!(matches!(found, Probed::Unsettled(_)), "{found:?}");
            }
        }
    }

    #[test]
    fn a_uuid_that_looks_like_a_signature_is_just_a_uuid() {
        let xfs = xfs::tests::sector_of(b"NXSB0123ORCLDISK", 0);
        let found = examine_disk(&disk(&[(0, &xfs)]), "vol-1").unwrap();
        assert!(is_sound(&found, FsType::Xfs), "{found:?}");
    }

    /// The UUID of [`attempt`].
    const UUID: [u8; 16] = [7; 16];

    fn attempt() -> Witness {
        Witness::Formatting(Attempt::of(UUID))
    }

    /// Content that may have been restored over a format mark.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Is {
        /// The remains of a killed mkfs.
        Leftover,
        /// A valid filesystem.
        Whole,
        /// Content that is neither left by mkfs nor a valid filesystem.
        Damaged,
    }

    fn contents() -> Vec<(Contents, Is)> {
        let ext4 = ext4::tests::superblock();
        let mut torn = ext4.clone();
        torn[5] ^= 1;
        let btrfs = btrfs::tests::superblock();
        let mut unfinished = btrfs.clone();
        unfinished[0x40] = b'!';
        let mut torn_btrfs = btrfs.clone();
        torn_btrfs[0x200] ^= 1;
        let mut ext4_copy = ext4.clone();
        ext4_copy[0x5a] = 1;
        let btrfs_copy = (64 << 20 | 0x40, b"_BHRfS_M".to_vec());
        vec![
            (vec![], Is::Leftover),
            (vec![(1 << 20, vec![7; 100])], Is::Leftover),
            (vec![(128 << 20, ext4_copy)], Is::Leftover),
            (vec![(BYTES / 4, xfs::tests::sector())], Is::Leftover),
            (vec![(0, xfs::tests::unfinished())], Is::Leftover),
            (vec![(btrfs::AT, unfinished.clone())], Is::Leftover),
            (
                vec![(btrfs::AT, unfinished), btrfs_copy.clone()],
                Is::Damaged,
            ),
            (vec![btrfs_copy], Is::Damaged),
            (vec![(BYTES - 512, b"EFI PART".to_vec())], Is::Damaged),
            (
                vec![(16 << 10, b"SKUL\xba\xbe\x00\x02".to_vec())],
                Is::Damaged,
            ),
            (
                vec![(4 << 20, b"SKUL\xba\xbe\x00\x02".to_vec())],
                Is::Damaged,
            ),
            (vec![(1024, ext4)], Is::Whole),
            (vec![(0, xfs::tests::sector())], Is::Whole),
            (vec![(btrfs::AT, btrfs)], Is::Whole),
            (vec![(1024, torn)], Is::Damaged),
            (vec![(btrfs::AT, torn_btrfs)], Is::Damaged),
            (vec![(4086, b"SWAPSPACE2".to_vec())], Is::Damaged),
            (vec![(32 << 10, b"JFS1".to_vec())], Is::Damaged),
        ]
    }

    fn marked(contents: &[(u64, Vec<u8>)], witness: Witness) -> MemoryDisk {
        let mut disk = disk(&[(MARK_AT, &encode_mark("vol-1", None).unwrap())]);
        for (at, bytes) in contents {
            disk.write(*at, bytes);
        }
        disk.witness = witness;
        disk
    }

    #[test]
    fn our_own_mark_with_its_witness_is_leave_to_format_again_only_over_what_mkfs_left() {
        for (contents, is) in contents() {
            for witness in [attempt(), Witness::Formatting(Attempt::UNKNOWN)] {
                let found = examine_disk(&marked(&contents, witness), "vol-1").unwrap();
                let is_as_expected = match is {
                    Is::Leftover => matches!(found, Probed::Interrupted(_)),
                    Is::Whole => matches!(found, Probed::Unsettled(_)),
                    Is::Damaged => matches!(found, Probed::Foreign(_)),
                };
                assert!(is_as_expected, "{is:?}: {found:?}");
            }
        }
    }

    #[test]
    fn only_the_header_of_an_unfinished_luksformat_gives_way_to_the_attempt_that_made_it() {
        let copy = |magic: &[u8], subsystem: &[u8]| {
            let mut block = vec![0; 512];
            block[..8].copy_from_slice(magic);
            block[208..208 + subsystem.len()].copy_from_slice(subsystem);
            block
        };
        let both = |subsystem: &[u8]| {
            let first = copy(b"LUKS\xba\xbe\x00\x02", subsystem);
            let second = copy(b"SKUL\xba\xbe\x00\x02", subsystem);
            vec![(0, first), (16 << 10, second)]
        };
        let found = |contents: &[(u64, Vec<u8>)], witness| {
            examine_disk(&marked(contents, witness), "vol-1").unwrap()
        };
        let (ours, other) = (both(UNFINISHED.as_bytes()), both(b"other"));
        let repeated = found(&ours, attempt());
        assert!(matches!(repeated, Probed::Interrupted(_)), "{repeated:?}");
        for (contents, witness) in [
            (&other, attempt()),
            (&ours, Witness::NoFile),
            (&ours, Witness::New),
        ] {
            let found = found(contents, witness);
            assert!(matches!(found, Probed::Foreign(_)), "{found:?}");
        }
        // Without the mark, luksFormat is complete.
        let complete: Vec<(u64, &[u8])> = ours.iter().map(|(at, it)| (*at, &it[..])).collect();
        let mut disk = disk(&complete);
        disk.witness = attempt();
        let found = examine_disk(&disk, "vol-1").unwrap();
        assert!(matches!(found, Probed::Foreign(_)), "{found:?}");
    }

    #[test]
    fn an_xfs_gives_way_only_to_the_attempt_that_made_it_and_only_unmounted() {
        let found = |uuid: &[u8; 16], lsn: u64, witness| {
            let sector = xfs::tests::sector_of(uuid, lsn);
            examine_disk(&marked(&[(0, sector)], witness), "vol-1").unwrap()
        };
        let ours = found(&UUID, 0, attempt());
        assert!(matches!(ours, Probed::Interrupted(_)), "{ours:?}");
        let unknown = Witness::Formatting(Attempt::UNKNOWN);
        for found in [
            found(&[8; 16], 0, attempt()),
            found(&UUID, 0, unknown),
            found(&UUID, 1 << 32, attempt()),
        ] {
            assert!(is_sound(&found, FsType::Xfs), "{found:?}");
        }
        // After a mount, an xfs keeps its LSN for half a minute, but its log shows the mount.
        for (at, is_used) in [(1023, false), (1024, true), (8191, true), (8192, false)] {
            let log = (512 << 20) + at;
            let contents = [(0, xfs::tests::sector_of(&UUID, 0)), (log, vec![1])];
            let found = examine_disk(&marked(&contents, attempt()), "vol-1").unwrap();
            assert_eq!(is_sound(&found, FsType::Xfs), is_used, "{at}: {found:?}");
        }
        // The format mark is erased once the whole filesystem is on the disk.
        let mut disk = disk(&[(0, &xfs::tests::sector_of(&UUID, 0))]);
        disk.witness = attempt();
        let found = examine_disk(&disk, "vol-1").unwrap();
        assert!(is_sound(&found, FsType::Xfs), "{found:?}");
        // The probe reads both ends, the start of the log, and the format mark.
        assert_eq!(disk.bytes_read.get(), (72 + 64 + 8 + 4) << 10);
    }

    #[test]
    fn a_mark_without_its_witness_is_what_a_user_has_stored() {
        for (contents, is) in contents() {
            let found = examine_disk(&marked(&contents, Witness::New), "vol-1").unwrap();
            match found {
                Probed::Unsettled(_) => assert_eq!(is, Is::Whole, "{contents:?}"),
                Probed::Foreign(foreign) => {
                    assert_ne!(is, Is::Whole, "{contents:?}");
                    let start = "a format mark without its witness";
                    assert!(foreign.what.starts_with(start), "{foreign}");
                    assert_eq!(foreign.at, MARK_AT);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn where_there_is_no_file_a_mark_counts_only_over_what_mkfs_left() {
        for (contents, is) in contents() {
            let found = examine_disk(&marked(&contents, Witness::NoFile), "vol-1").unwrap();
            match found {
                Probed::Known(_) => assert_eq!(is, Is::Whole, "{contents:?}"),
                Probed::Interrupted(_) => assert_eq!(is, Is::Leftover, "{contents:?}"),
                Probed::Foreign(_) => assert_eq!(is, Is::Damaged, "{contents:?}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_filesystem_that_still_has_a_witness_is_not_yet_known() {
        let mut disk = disk(&[(0, &xfs::tests::sector_of(&UUID, 0))]);
        disk.witness = attempt();
        let found = examine_disk(&disk, "vol-1").unwrap();
        assert!(
            matches!(&found, Probed::Unsettled(made) if made.fs_type() == FsType::Xfs),
            "{found:?}"
        );
        // The volume was never in use, so the other volume's mark belongs to an interrupted format.
        disk.write(MARK_AT, &encode_mark("vol-2", None).unwrap());
        let found = examine_disk(&disk, "vol-1").unwrap();
        assert!(matches!(found, Probed::Foreign(_)), "{found:?}");
    }

    #[test]
    fn a_witness_alone_changes_nothing() {
        let mut blank = disk(&[]);
        blank.witness = attempt();
        assert!(matches!(
            examine_disk(&blank, "vol-1"),
            Ok(Probed::Blank(_))
        ));
        let mut dirty = disk(&[(1 << 20, &[7])]);
        dirty.witness = attempt();
        assert!(matches!(
            examine_disk(&dirty, "vol-1"),
            Ok(Probed::Foreign(_))
        ));
    }

    #[test]
    fn in_a_volume_in_use_no_mark_counts_and_zeros_are_a_loss() {
        for (contents, is) in contents() {
            for witness in [Witness::Used, Witness::UseBegun] {
                let found = examine_disk(&marked(&contents, witness), "vol-1").unwrap();
                let is_found = match (found, witness) {
                    (Probed::Known(_), Witness::Used) => is == Is::Whole,
                    // The filesystem is mounted once the record of its use is on the disk.
                    (Probed::Unsettled(_), Witness::UseBegun) => is == Is::Whole,
                    (Probed::Foreign(_), _) => is != Is::Whole,
                    (other, _) => panic!("{other:?}"),
                };
                assert!(is_found, "{contents:?}");
            }
        }
        for witness in [Witness::Used, Witness::UseBegun] {
            let mut disk = disk(&[(7 << 20, &[0; 9])]);
            disk.witness = witness;
            assert!(matches!(examine_disk(&disk, "vol-1"), Ok(Probed::Emptied)));
        }
    }

    #[test]
    fn a_mark_is_no_leave_once_the_device_is_used_for_something_else() {
        let raid = BYTES - 8192;
        let used: [(Contents, &str); 2] = [
            (vec![(gpt().0, gpt().1.to_vec())], "a GPT partition table"),
            (
                vec![(raid, md::tests::version_1(raid))],
                "a member of a software RAID (md 1.0)",
            ),
        ];
        for (contents, what) in used {
            match examine_disk(&marked(&contents, attempt()), "vol-1").unwrap() {
                Probed::Foreign(found) => assert_eq!(found.what, what),
                other => panic!("{other:?} instead of {what}"),
            }
        }
    }

    #[test]
    fn the_mark_of_another_volume_is_foreign() {
        let mark = encode_mark("vol-2", None).unwrap();
        let expected = ("the format mark of volume \"vol-2\"".to_owned(), MARK_AT);
        assert_eq!(foreign(&[(MARK_AT, &mark)]), expected);
        let mut torn = mark;
        torn[30] ^= 1;
        let (what, _) = foreign(&[(MARK_AT, &torn)]);
        assert_eq!(what, "a format mark that cannot be read");
    }

    #[test]
    fn a_copy_gives_a_wiped_filesystem_its_name() {
        let mut copy = ext4::tests::superblock();
        copy[0x5a] = 1;
        let (what, at) = foreign(&[(128 << 20, &copy)]);
        assert_eq!(
            (what.as_str(), at),
            ("a copy of an ext superblock", (128 << 20) + 0x38)
        );
        let (what, at) = foreign(&[(BYTES / 4, &xfs::tests::sector())]);
        assert_eq!(
            (what.as_str(), at),
            ("a copy of an xfs superblock", BYTES / 4)
        );
    }

    /// Every row of the table that can occur alone is found on an otherwise blank device.
    #[test]
    fn every_signature_is_found_where_it_is() {
        for row in TABLE.iter().filter(|row| row.check.is_none()) {
            for at in row.at.iter().filter_map(|place| place.on(BYTES)) {
                let (what, found_at) = foreign(&[(at, row.magic)]);
                assert_eq!((what.as_str(), found_at), (row.name, at));
            }
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_never_blank_nor_leave_to_format(
            bytes in proptest::collection::vec(any::<u8>(), 1..5000),
            at in prop_oneof![Just(0), Just(1024), Just(MARK_AT), 0..BYTES - 5000],
            size in prop_oneof![Just(BYTES), 5000..200_000_u64, MARK_AT..MARK_AT + 9000],
        ) {
            prop_assume!(bytes.iter().any(|byte| *byte != 0));
            let mut disk = MemoryDisk::new(size.next_multiple_of(512));
            disk.write(at % (size - bytes.len().min(4999) as u64), &bytes);
            let found = examine_disk(&disk, "vol-1").unwrap();
            let is_safe = matches!(found, Probed::Foreign(_));
            prop_assert!(is_safe, "{found:?}");
        }
    }
}
