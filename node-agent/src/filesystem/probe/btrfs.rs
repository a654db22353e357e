//! Parses the superblock of btrfs (Linux: include/uapi/linux/btrfs_tree.h, `struct
//! btrfs_super_block`), which is little-endian.

use std::ops::Range;

use belay_server::size::Exact;

use super::field::{crc32c, le16, le32, le64};

/// `BTRFS_SUPER_INFO_OFFSET`: the offset of the primary superblock, from which the kernel mounts.
pub(super) const AT: u64 = 64 << 10;
/// `BTRFS_SUPER_INFO_SIZE`.
pub(super) const BYTES: usize = 4096;
/// The range that is reserved for boot loaders. btrfs neither reads nor writes it.
pub(super) const UNUSED: Range<u64> = 0..AT;

/// `BTRFS_DEVICE_RANGE_RESERVED` (Linux: fs/btrfs/fs.h): the offset before which there is no user
/// data.
pub(super) const USERS_AT: u64 = 1 << 20;

const MAGIC_AT: usize = 0x40;
/// `BTRFS_MAGIC`, as the bytes on disk.
const MAGIC: &[u8] = b"_BHRfS_M";
/// The temporary magic number. mkfs.btrfs replaces it with [`MAGIC`] once everything else is on the
/// disk.
const MAGIC_UNFINISHED: &[u8] = b"!BHRfS_M";

/// The length of the checksum field, with space for the longest checksum. The checksum covers the
/// following bytes.
const CHECKSUM_BYTES: usize = 32;
const CHECKSUM_TYPE_CRC32C: u16 = 0;
/// The highest checksum type: crc32c, xxhash64, sha256 and blake2b are defined (`enum
/// btrfs_csum_type`).
const CHECKSUM_TYPE_MAX: u16 = 3;
/// `BTRFS_SUPER_FLAG_SEEDING`: the filesystem is a read-only seed, to which other devices are
/// added.
const FLAG_SEEDING: u64 = 1 << 32;
/// `BTRFS_SUPER_FLAG_METADUMP` and `BTRFS_SUPER_FLAG_METADUMP_V2`: a dump of the metadata without
/// data.
const FLAG_METADUMP: u64 = 1 << 33 | 1 << 34;
const BLOCK_BYTES_MAX: u32 = 65_536;

/// The fields of a btrfs superblock that the agent needs before the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::filesystem) struct Superblock {
    /// The number of bytes of the device that the filesystem uses.
    pub(super) bytes: u64,
    /// `incompat_flags`: a kernel that does not support one of these features refuses to mount.
    pub(in crate::filesystem) incompat: u64,
    /// `compat_ro_flags`: a kernel that does not support one of these features mounts only
    /// read-only.
    pub(in crate::filesystem) compat_ro: u64,
}

/// The result of judging the 4096 bytes of a superblock.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::filesystem) enum Verdict {
    /// There is no btrfs superblock.
    Absent,
    /// A valid filesystem that uses only this device.
    Sound(Superblock),
    /// A filesystem whose mkfs was interrupted.
    Unfinished,
    /// A filesystem that must not be mounted; the text describes the filesystem.
    Other(String),
}

/// Judges the block that was read at [`AT`] from a device of `device_bytes` bytes.
pub(in crate::filesystem) fn judge(block: &[u8], device_bytes: u64) -> Verdict {
    let magic = block.get(MAGIC_AT..MAGIC_AT + 8).unwrap_or_default();
    let other = |what: &str| Verdict::Other(what.to_owned());
    if magic == MAGIC_UNFINISHED {
        return Verdict::Unfinished;
    }
    if magic != MAGIC {
        return Verdict::Absent;
    }
    let checksum_type = le16(block, 0xc4);
    if checksum_type == CHECKSUM_TYPE_CRC32C && !has_right_checksum(block) {
        return other("a damaged btrfs superblock (wrong checksum)");
    }
    let (sector_bytes, node_bytes) = (le32(block, 0x90), le32(block, 0x94));
    let is_block_size =
        |bytes: u32| bytes.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&bytes);
    let (devices, used_bytes) = (le64(block, 0x88), le64(block, 0xd1));
    let is_possible = checksum_type <= CHECKSUM_TYPE_MAX
        && le64(block, 0x30) == AT
        && is_block_size(sector_bytes)
        && is_block_size(node_bytes)
        && node_bytes >= sector_bytes
        && devices != 0
        && used_bytes != 0;
    if !is_possible {
        return other("a damaged btrfs superblock (impossible values)");
    }
    let flags = le64(block, 0x38);
    if devices != 1 {
        return Verdict::Other(format!("one of {devices} devices of a btrfs filesystem"));
    }
    if flags & FLAG_SEEDING != 0 {
        return other("a seed of btrfs filesystems");
    }
    if flags & FLAG_METADUMP != 0 {
        return other("a dump of a btrfs filesystem without its data");
    }
    if used_bytes > device_bytes {
        return Verdict::Other(format!(
            "a btrfs filesystem of {}, too large for a device of {}",
            Exact(used_bytes),
            Exact(device_bytes)
        ));
    }
    Verdict::Sound(Superblock {
        bytes: used_bytes,
        incompat: le64(block, 0xbc),
        compat_ro: le64(block, 0xb4),
    })
}

fn has_right_checksum(block: &[u8]) -> bool {
    let Some(covered) = block.get(CHECKSUM_BYTES..BYTES) else {
        return false;
    };
    !crc32c(!0, covered) == le32(block, 0)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE_BYTES: u64 = 1 << 30;

    /// A superblock as mkfs.btrfs writes it for 1 GiB, reduced to the fields that are checked.
    pub(in crate::filesystem) fn superblock() -> Vec<u8> {
        let mut block = vec![0; BYTES];
        block[MAGIC_AT..MAGIC_AT + 8].copy_from_slice(MAGIC);
        put(&mut block, 0x30, &AT.to_le_bytes());
        put(&mut block, 0x38, &1_u64.to_le_bytes());
        put(&mut block, 0x88, &1_u64.to_le_bytes());
        put(&mut block, 0x90, &4096_u32.to_le_bytes());
        put(&mut block, 0x94, &16_384_u32.to_le_bytes());
        put(&mut block, 0xb4, &3_u64.to_le_bytes());
        put(&mut block, 0xbc, &0x341_u64.to_le_bytes());
        put(&mut block, 0xc9, &1_u64.to_le_bytes());
        put(&mut block, 0xd1, &DEVICE_BYTES.to_le_bytes());
        block
    }

    /// Writes a field, and updates the checksum of the superblock.
    pub(in crate::filesystem) fn put(block: &mut [u8], at: usize, value: &[u8]) {
        block[at..at + value.len()].copy_from_slice(value);
        let checksum = !crc32c(!0, &block[CHECKSUM_BYTES..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_sound_superblock_tells_its_features() {
        let expected = Superblock {
            bytes: DEVICE_BYTES,
            incompat: 0x341,
            compat_ro: 3,
        };
        let verdict = judge(&superblock(), DEVICE_BYTES);
        assert_eq!(verdict, Verdict::Sound(expected));
        assert_eq!(judge(&vec![0; BYTES], DEVICE_BYTES), Verdict::Absent);
    }

    #[test]
    fn another_checksum_than_crc32c_is_left_to_the_kernel() {
        let mut block = superblock();
        put(&mut block, 0xc4, &1_u16.to_le_bytes());
        block[..CHECKSUM_BYTES].fill(7);
        assert!(matches!(judge(&block, DEVICE_BYTES), Verdict::Sound(_)));
    }

    #[test]
    fn what_must_not_be_mounted_is_not_sound() {
        let mut unfinished = superblock();
        put(&mut unfinished, MAGIC_AT, MAGIC_UNFINISHED);
        assert_eq!(judge(&unfinished, DEVICE_BYTES), Verdict::Unfinished);
        let cases: [(&str, usize, u64); 9] = [
            ("one of 2 devices", 0x88, 2),
            ("impossible values", 0x88, 0),
            ("impossible values", 0x30, 64 << 20),
            ("impossible values", 0x90, 4096),
            ("impossible values", 0x90, 16_384 << 32 | 4095),
            ("a seed", 0x38, FLAG_SEEDING | 1),
            ("without its data", 0x38, 1 << 34),
            ("too large", 0xd1, DEVICE_BYTES + 4096),
            ("impossible values", 0xd1, 0),
        ];
        for (reason, at, value) in cases {
            let mut block = superblock();
            put(&mut block, at, &value.to_le_bytes());
            let verdict = judge(&block, DEVICE_BYTES);
            assert!(
                matches!(&verdict, Verdict::Other(what) if what.contains(reason)),
                "{reason}: {verdict:?}"
            );
        }
        let mut block = superblock();
        put(&mut block, 0xc4, &4_u16.to_le_bytes());
        assert!(matches!(judge(&block, DEVICE_BYTES), Verdict::Other(_)));
    }

    proptest! {
        #[test]
        fn one_changed_bit_is_never_sound(bit in 0..BYTES * 8) {
            let mut block = superblock();
            block[bit / 8] ^= 1 << (bit % 8);
            // Exclude the unused part of the checksum field, and the field with the checksum's
            // type.
            prop_assume!(!(4..CHECKSUM_BYTES).contains(&(bit / 8)));
            prop_assume!(!(0xc4..0xc6).contains(&(bit / 8)));
            prop_assert!(!matches!(judge(&block, DEVICE_BYTES), Verdict::Sound(_)));
        }

        #[test]
        fn no_block_makes_it_panic(
            mut block in proptest::collection::vec(any::<u8>(), 72..BYTES + 9),
            device_bytes in any::<u64>(),
        ) {
            judge(&block, device_bytes);
            block[MAGIC_AT..MAGIC_AT + 8].copy_from_slice(MAGIC);
            judge(&block, device_bytes);
        }
    }
}
