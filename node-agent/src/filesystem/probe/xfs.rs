//! Parses the superblock of XFS (Linux: fs/xfs/libxfs/xfs_format.h, `struct xfs_dsb`), which is
//! big-endian except for the checksum.

use std::ops::{Range, RangeInclusive};

use belay_server::size::Exact;

use super::field::{be16, be32, be64, crc32c, le32};

/// The maximum size of a superblock in bytes. A superblock fills one sector.
pub(super) const BYTES_MAX: usize = 32_768;
/// `XFS_SB_MAGIC`, as the bytes on disk at offset 0.
pub(super) const MAGIC: &[u8] = b"XFSB";

/// The range from the end of the superblock's fields to the end of the first block. The range
/// contains zeros, and the headers of the first allocation group, which have other magic numbers.
pub(super) const UNUSED: Range<u64> = 304..4096;

/// The offsets of `sb_rblocks`, and of `sb_rtstart`, which is nonzero if the realtime blocks are on
/// this device (Linux 6.15).
const REALTIME_BLOCKS_AT: usize = 16;
const REALTIME_START_AT: usize = 288;
/// The offset of `sb_logstart`, which is 0 if the log is on another device.
const LOG_START_AT: usize = 48;
const CHECKSUM_AT: usize = 224;
const SECTOR_BYTES_MIN: usize = 512;
const BLOCK_BYTES: RangeInclusive<u64> = 512..=65_536;

/// Facts about an XFS filesystem, read from its superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::filesystem) struct Superblock {
    /// `sb_features_incompat`: a kernel that does not know one of these features refuses to mount
    /// the filesystem.
    pub(in crate::filesystem) incompat: u32,
    /// The size of the filesystem, in bytes.
    pub(super) bytes: u64,
    /// `sb_uuid`: the UUID of the filesystem.
    pub(super) uuid: [u8; 16],
    /// Whether `sb_lsn` still has the value that mkfs.xfs writes: the filesystem was never mounted
    /// for writing and then unmounted. A mount that was not followed by an unmount is visible only
    /// in the log: see [`LOG_BLANK`].
    pub(super) is_untouched: bool,
    /// The offset of the log on the device, in bytes; `None` if it is past the end of the
    /// filesystem.
    pub(super) log_at: Option<u64>,
}

/// The range of the log that mkfs.xfs leaves as zeros, after its own record at the start of the log
/// (xfsprogs, `libxfs_log_clear`). The first record of a mounted filesystem is in this range. On a
/// disk with larger sectors, the record of mkfs.xfs is longer and looks like the record of a mount.
pub(super) const LOG_BLANK: Range<u64> = 1024..8192;

/// The result of judging the start of a device.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::filesystem) enum Verdict {
    /// There is no XFS superblock.
    Absent,
    /// A valid filesystem.
    Sound(Superblock),
    /// A filesystem whose mkfs was interrupted.
    Unfinished,
    /// A filesystem that cannot be mounted; the text describes the filesystem.
    Other(String),
}

/// Judges the first bytes of a device of `device_bytes` bytes.
pub(in crate::filesystem) fn judge(head: &[u8], device_bytes: u64) -> Verdict {
    if !head.starts_with(MAGIC) {
        return Verdict::Absent;
    }
    let other = |what: &str| Verdict::Other(what.to_owned());
    let version = be16(head, 100) & 0xf;
    let sector_bytes = usize::from(be16(head, 102));
    let block_bytes = u64::from(be32(head, 4));
    let blocks = be64(head, 8);
    let is_possible = BLOCK_BYTES.contains(&block_bytes)
        && block_bytes.is_power_of_two()
        && (SECTOR_BYTES_MIN..=BYTES_MAX).contains(&sector_bytes)
        && sector_bytes.is_power_of_two()
        && blocks != 0
        && be32(head, 88) != 0
        && (version == 4 || version == 5);
    if !is_possible {
        return other("a damaged xfs superblock (impossible sizes)");
    }
    if version == 5 && !has_right_checksum(head, sector_bytes) {
        return other("a damaged xfs superblock (wrong checksum)");
    }
    // mkfs.xfs clears `sb_inprogress` with its last write. While `sb_inprogress` is set, the kernel
    // refuses to mount the filesystem.
    if head[126] != 0 {
        return Verdict::Unfinished;
    }
    // The kernel refuses to mount a filesystem with an external log or a realtime device unless a
    // flag names that device.
    if be64(head, LOG_START_AT) == 0 {
        return other("an xfs with an external log");
    }
    let is_inside = version == 5 && be64(head, REALTIME_START_AT) != 0;
    if be64(head, REALTIME_BLOCKS_AT) != 0 && !is_inside {
        return other("an xfs with a realtime device");
    }
    match blocks.checked_mul(block_bytes) {
        Some(bytes) if bytes <= device_bytes => {
            let incompat = if version == 5 { be32(head, 216) } else { 0 };
            let mut uuid = [0; 16];
            uuid.copy_from_slice(&head[32..48]);
            Verdict::Sound(Superblock {
                incompat,
                bytes,
                uuid,
                is_untouched: version == 5 && be64(head, 240) == 0,
                log_at: log_at(head, block_bytes).filter(|at| *at < bytes),
            })
        }
        _ => Verdict::Other(format!(
            "an xfs filesystem of {blocks} blocks of {block_bytes} bytes, too large for a device \
             of {}",
            Exact(device_bytes)
        )),
    }
}

/// Returns the offset of the log in bytes. The upper bits of `sb_logstart` are the number of an
/// allocation group, and the lower bits are a block of that group.
fn log_at(head: &[u8], block_bytes: u64) -> Option<u64> {
    let (start, group_blocks, shift) = (
        be64(head, LOG_START_AT),
        be32(head, 84),
        u32::from(head[124]),
    );
    let group = start.checked_shr(shift)?;
    let within = start - group.checked_shl(shift)?;
    let block = group
        .checked_mul(group_blocks.into())?
        .checked_add(within)?;
    block.checked_mul(block_bytes).filter(|at| *at != 0)
}

fn has_right_checksum(head: &[u8], sector_bytes: usize) -> bool {
    let Some(sector) = head.get(..sector_bytes) else {
        return false;
    };
    // The checksum covers the whole sector, with zeros in the field of the checksum.
    let crc = crc32c(!0, &sector[..CHECKSUM_AT]);
    let crc = crc32c(crc, &[0; 4]);
    !crc32c(crc, &sector[CHECKSUM_AT + 4..]) == le32(sector, CHECKSUM_AT)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE_BYTES: u64 = 1 << 30;

    /// A superblock as mkfs.xfs writes it for 1 GiB, reduced to the fields that are checked.
    pub(in crate::filesystem) fn sector() -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[..4].copy_from_slice(MAGIC);
        sector[4..8].copy_from_slice(&4096_u32.to_be_bytes());
        sector[8..16].copy_from_slice(&262_144_u64.to_be_bytes());
        // The log is in the middle, at the start of the third of four groups.
        sector[48..56].copy_from_slice(&(2_u64 << 16).to_be_bytes());
        sector[84..88].copy_from_slice(&65_536_u32.to_be_bytes());
        sector[124] = 16;
        sector[88..92].copy_from_slice(&4_u32.to_be_bytes());
        sector[100..102].copy_from_slice(&0xb4a5_u16.to_be_bytes());
        sector[102..104].copy_from_slice(&512_u16.to_be_bytes());
        sector[216..220].copy_from_slice(&0xb_u32.to_be_bytes());
        seal(&mut sector);
        sector
    }

    pub(in crate::filesystem) fn sector_of(uuid: &[u8; 16], lsn: u64) -> Vec<u8> {
        let mut sector = sector();
        sector[32..48].copy_from_slice(uuid);
        sector[240..248].copy_from_slice(&lsn.to_be_bytes());
        seal(&mut sector);
        sector
    }

    /// Returns the first sector of a filesystem with other features.
    pub(in crate::filesystem) fn sector_with(incompat: u32) -> Vec<u8> {
        let mut sector = sector();
        sector[216..220].copy_from_slice(&incompat.to_be_bytes());
        seal(&mut sector);
        sector
    }

    /// Returns the first sector as it is before the last write of mkfs.xfs.
    pub(in crate::filesystem) fn unfinished() -> Vec<u8> {
        let mut sector = sector();
        sector[126] = 1;
        seal(&mut sector);
        sector
    }

    fn seal(sector: &mut [u8]) {
        sector[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        let checksum = !crc32c(!0, sector);
        sector[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_sound_superblock_tells_its_features() {
        let expected = Superblock {
            incompat: 0xb,
            bytes: DEVICE_BYTES,
            uuid: [0; 16],
            is_untouched: true,
            log_at: Some(512 << 20),
        };
        assert_eq!(judge(&sector(), DEVICE_BYTES), Verdict::Sound(expected));
    }

    /// The upper bits of the log's first block number are the number of its allocation group.
    #[test]
    fn a_log_is_where_its_group_is_and_none_is_past_the_end() {
        for (start, log_at) in [
            (3 << 16 | 65_535, Some(DEVICE_BYTES - 4096)),
            (4 << 16, None),
        ] {
            let mut sector = sector();
            sector[48..56].copy_from_slice(&u64::to_be_bytes(start));
            seal(&mut sector);
            match judge(&sector, DEVICE_BYTES) {
                Verdict::Sound(found) => assert_eq!(found.log_at, log_at, "{start:#x}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn version_4_has_no_checksum_and_is_sound() {
        let mut sector = sector();
        sector[101] = 0xa4;
        sector[CHECKSUM_AT] ^= 1;
        let expected = Superblock {
            incompat: 0,
            bytes: DEVICE_BYTES,
            uuid: [0; 16],
            is_untouched: false,
            log_at: Some(512 << 20),
        };
        assert_eq!(judge(&sector, DEVICE_BYTES), Verdict::Sound(expected));
    }

    #[test]
    fn what_the_kernel_would_refuse_is_not_sound() {
        assert_eq!(judge(&unfinished(), DEVICE_BYTES), Verdict::Unfinished);
        let cases: [(&str, usize, u8); 5] = [
            ("impossible sizes", 101, 0xa6),
            ("impossible sizes", 6, 0x11),
            ("too large", 12, 1),
            ("an external log", 53, 0),
            ("a realtime device", 23, 1),
        ];
        for (reason, at, value) in cases {
            let mut sector = sector();
            sector[at] = value;
            seal(&mut sector);
            let verdict = judge(&sector, DEVICE_BYTES);
            assert!(
                matches!(&verdict, Verdict::Other(what) if what.contains(reason)),
                "{at}"
            );
        }
    }

    #[test]
    fn realtime_blocks_on_the_same_device_are_sound() {
        let mut sector = sector();
        (sector[23], sector[295]) = (1, 1);
        seal(&mut sector);
        assert!(matches!(judge(&sector, DEVICE_BYTES), Verdict::Sound(_)));
    }

    proptest! {
        #[test]
        fn one_changed_bit_is_never_sound(bit in 0..512 * 8_usize) {
            let mut sector = sector();
            sector[bit / 8] ^= 1 << (bit % 8);
            // The changed bit makes this a superblock of version 4, which has no checksum.
            prop_assume!(bit != 101 * 8);
            prop_assert!(!matches!(judge(&sector, DEVICE_BYTES), Verdict::Sound(_)));
        }

        #[test]
        fn no_block_makes_it_panic(
            mut head in proptest::collection::vec(any::<u8>(), 4..2048),
            device_bytes in any::<u64>(),
        ) {
            judge(&head, device_bytes);
            head[..4].copy_from_slice(MAGIC);
            judge(&head, device_bytes);
            if head.len() > 104 {
                head[100..104].copy_from_slice(&[0, 5, 2, 0]);
                head[4..8].copy_from_slice(&[0, 0, 16, 0]);
            }
            judge(&head, device_bytes);
        }
    }
}
