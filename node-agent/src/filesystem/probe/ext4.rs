//! Parses the superblock of the ext family (Linux: fs/ext4/ext4.h, Documentation/filesystems/ext4).

use std::ops::Range;

use belay_contract::mount_flags;
use belay_server::size::Exact;

use super::field::{crc32c, le16, le32};

/// The offset of the primary superblock, for any block size.
pub(in crate::filesystem) const AT: u64 = 1024;
/// The size of the superblock, in bytes.
pub(in crate::filesystem) const BYTES: usize = 1024;
/// The range that is reserved for boot loaders. ext neither reads nor writes it.
pub(super) const UNUSED: Range<u64> = 0..AT;
/// The offset of the little-endian magic number in the superblock.
pub(super) const MAGIC_AT: u64 = 0x38;
/// The magic number, as the bytes on disk.
pub(super) const MAGIC: &[u8] = &[0x53, 0xef];

/// `s_journal_uuid` and `s_journal_dev`: zeros unless the journal is on another device.
const JOURNAL_UUID: Range<usize> = 0xd0..0xe0;
const JOURNAL_DEV: Range<usize> = 0xe4..0xe8;
const CHECKSUM_AT: usize = 0x3fc;
/// The only value of `s_checksum_type`.
const CRC32C: u8 = 1;

/// `s_state` of a new filesystem, one unmounted cleanly, or one whose journal the kernel replays.
const STATE_VALID: u16 = 0x1;
/// `s_state` if the kernel has found errors, or a tool was interrupted in the middle of a change.
const STATE_ERROR: u16 = 0x2;

const COMPAT_HAS_JOURNAL: u32 = 0x4;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
const INCOMPAT_64BIT: u32 = 0x80;
const RO_COMPAT_BIGALLOC: u32 = 0x200;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;
const RO_COMPAT_PROJECT: u32 = 0x2000;
/// The features of ext3: filetype, recover, meta_bg, and sparse_super, large_file, btree_dir.
const EXT3_INCOMPAT: u32 = 0x2 | 0x4 | 0x10;
const EXT3_RO_COMPAT: u32 = 0x1 | 0x2 | 0x4;
/// `EXT4_MAX_BLOCK_LOG_SIZE` minus `EXT4_MIN_BLOCK_LOG_SIZE`: the block size is 1 to 64 KiB.
const LOG_BLOCK_SIZE_MAX: u32 = 6;

/// The fields that are needed to check and grow an ext4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::filesystem) struct Superblock {
    /// The size of a block in bytes.
    pub(in crate::filesystem) block_bytes: u64,
    /// The total number of blocks.
    pub(in crate::filesystem) blocks: u64,
    /// The first block of group 0: 1 if the block size is 1 KiB, otherwise 0.
    pub(in crate::filesystem) first_block: u64,
    /// The number of blocks in a group.
    pub(in crate::filesystem) group_blocks: u64,
    /// The number of blocks in a cluster, the unit of allocation; 1 without bigalloc.
    pub(in crate::filesystem) cluster_blocks: u64,
    /// The number of blocks of a group's inode table.
    pub(in crate::filesystem) inode_blocks: u64,
    /// The number of blocks of the superblock copy and the descriptors, in a group that has them.
    pub(in crate::filesystem) copy_blocks: u64,
    /// Whether the filesystem can have project quotas.
    pub(in crate::filesystem) has_projects: bool,
    /// Whether the superblock records errors, or the filesystem has no journal and was not
    /// unmounted cleanly. The kernel mounts such a filesystem with a warning, without a repair. A
    /// journal that must be replayed is no reason for a check.
    pub(in crate::filesystem) wants_check: bool,
    /// Whether the filesystem was not unmounted cleanly, and has a journal that must be replayed.
    pub(in crate::filesystem) needs_recovery: bool,
    /// Whether the superblock requests `errors=panic`: see [`panics`].
    pub(in crate::filesystem) panics: bool,
    /// The reason why the mount options in the superblock are refused; `None` if they are accepted.
    pub(in crate::filesystem) refused_options: Option<String>,
}

impl Superblock {
    /// Returns the size of the filesystem in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes)
    }
}

/// The result of judging the 1024 bytes of a superblock.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::filesystem) enum Verdict {
    /// There is no ext superblock.
    Absent,
    /// A valid ext4 filesystem.
    Sound(Superblock),
    /// A filesystem of the ext family that must not be mounted; the text describes the filesystem.
    Other(String),
    /// A superblock with a wrong checksum or impossible values; the text describes the damage.
    Damaged(String),
}

/// Judges a superblock on a device of `device_bytes` bytes; sound if the kernel can mount it.
pub(in crate::filesystem) fn judge(block: &[u8], device_bytes: u64) -> Verdict {
    if block.len() < BYTES || !block[0x38..].starts_with(MAGIC) {
        return Verdict::Absent;
    }
    let (compat, incompat, ro_compat) = (le32(block, 0x5c), le32(block, 0x60), le32(block, 0x64));
    let has_checksum = ro_compat & RO_COMPAT_METADATA_CSUM != 0;
    if has_checksum && !has_right_checksum(block) {
        return Verdict::Damaged("a damaged ext4 superblock (wrong checksum)".to_owned());
    }
    if incompat & INCOMPAT_JOURNAL_DEV != 0 {
        return Verdict::Other("an external journal of ext3 or ext4".to_owned());
    }
    // The kernel and e2fsck would open and write the journal's device, perhaps another volume.
    if [JOURNAL_UUID, JOURNAL_DEV].iter().any(|range| {
        let named = &block[range.clone()];
        named.iter().any(|byte| *byte != 0)
    }) {
        return Verdict::Other("an ext4 with an external journal".to_owned());
    }
    let Some(superblock) = geometry(block, incompat, ro_compat) else {
        return Verdict::Damaged("a damaged ext superblock (impossible sizes)".to_owned());
    };
    if incompat & !EXT3_INCOMPAT == 0 && ro_compat & !EXT3_RO_COMPAT == 0 {
        let name = if compat & COMPAT_HAS_JOURNAL == 0 {
            "ext2"
        } else {
            "ext3"
        };
        return Verdict::Other(format!("an {name} filesystem"));
    }
    match superblock.blocks.checked_mul(superblock.block_bytes) {
        Some(bytes) if bytes <= device_bytes => Verdict::Sound(superblock),
        _ => Verdict::Other(format!(
            "an ext4 filesystem of {} blocks of {} bytes, too large for a device of {}",
            superblock.blocks,
            superblock.block_bytes,
            Exact(device_bytes)
        )),
    }
}

/// Whether the block is a plausible copy of the superblock at the start of a block group.
pub(super) fn is_copy(block: &[u8]) -> bool {
    let features = (le32(block, 0x60), le32(block, 0x64));
    le16(block, 0x5a) != 0 && geometry(block, features.0, features.1).is_some()
}

fn has_right_checksum(block: &[u8]) -> bool {
    block[0x175] == CRC32C && crc32c(!0, &block[..CHECKSUM_AT]) == le32(block, CHECKSUM_AT)
}

fn geometry(block: &[u8], incompat: u32, ro_compat: u32) -> Option<Superblock> {
    let log_block_size = le32(block, 0x18);
    if log_block_size > LOG_BLOCK_SIZE_MAX {
        return None;
    }
    let block_bytes = 1024_u64 << log_block_size;
    let is_64bit = incompat & INCOMPAT_64BIT != 0;
    let high = if is_64bit {
        u64::from(le32(block, 0x150)) << 32
    } else {
        0
    };
    let blocks = high | u64::from(le32(block, 0x4));
    let first_block = u64::from(le32(block, 0x14));
    let group_blocks = u64::from(le32(block, 0x20));
    if blocks <= first_block || group_blocks == 0 {
        return None;
    }
    let log_cluster = le32(block, 0x1c).checked_sub(log_block_size);
    let is_bigalloc = ro_compat & RO_COMPAT_BIGALLOC != 0;
    let cluster_blocks = match log_cluster {
        Some(log) if is_bigalloc => 1_u64.checked_shl(log)?,
        _ => 1,
    };
    // Revision 0 has inodes of 128 bytes and no field for their size.
    let inode_bytes = if le32(block, 0x4c) == 0 {
        128
    } else {
        u64::from(le16(block, 0x58))
    };
    let inode_blocks = (u64::from(le32(block, 0x28)) * inode_bytes).div_ceil(block_bytes);
    let descriptor_bytes = if is_64bit {
        u64::from(le16(block, 0xfe)).max(32)
    } else {
        32
    };
    let groups = (blocks - first_block).div_ceil(group_blocks);
    let descriptor_blocks = groups
        .saturating_mul(descriptor_bytes)
        .div_ceil(block_bytes);
    let copy_blocks = descriptor_blocks
        .saturating_add(1)
        .saturating_add(u64::from(le16(block, 0xce)));
    let state = le16(block, 0x3a);
    Some(Superblock {
        block_bytes,
        blocks,
        first_block,
        group_blocks,
        cluster_blocks,
        inode_blocks,
        copy_blocks,
        has_projects: ro_compat & RO_COMPAT_PROJECT != 0,
        wants_check: state & STATE_VALID == 0 || state & STATE_ERROR != 0,
        needs_recovery: incompat & INCOMPAT_RECOVER != 0,
        panics: panics(block),
        refused_options: check_options(block).err(),
    })
}

/// The offset of `s_errors`, and its value `EXT4_ERRORS_PANIC`.
const ERRORS_AT: usize = 0x3c;
const ERRORS_PANIC: u16 = 3;
/// The range of `s_mount_opts`: options that the kernel applies before the options of the mount.
/// The last byte is zero.
const MOUNT_OPTS: Range<usize> = 0x200..0x240;

/// Whether the superblock requests `errors=panic`, so that an error halts the node unless the mount
/// sets another value of `errors`.
pub(super) fn panics(block: &[u8]) -> bool {
    le16(block, ERRORS_AT) == ERRORS_PANIC
}

/// Checks the mount options in the superblock, which no mount flag removes.
///
/// # Errors
/// Returns the refused option and the reason.
pub(super) fn check_options(block: &[u8]) -> Result<(), String> {
    let bytes = block.get(MOUNT_OPTS).unwrap_or_default();
    // Kernels have read past options without a terminating zero (CVE-2025-40198), and the first
    // fixed kernels stopped with an oops.
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.ok_or_else(|| "they have no end".to_owned())?;
    let checked = mount_flags::check_stored(&String::from_utf8_lossy(&bytes[..end]));
    // The text after the semicolon is advice about mount flags of a storage class.
    checked.map_err(|why| why.split(';').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE_BYTES: u64 = 1 << 30;

    /// A superblock as mke2fs writes it for 1 GiB, reduced to the fields that are checked.
    pub(in crate::filesystem) fn superblock() -> Vec<u8> {
        let mut block = vec![0; BYTES];
        let mut put = |at: usize, value: u32| {
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(0x4, 262_144);
        put(0x18, 2);
        put(0x1c, 2);
        put(0x20, 32_768);
        put(0x28, 8_192);
        put(0x38, 0x1_0000);
        put(0x4c, 1);
        put(0x58, 256);
        put(0x5c, 0x3c);
        put(0x60, 0x2c2);
        put(0x64, 0x46b);
        block[0x38..0x3a].copy_from_slice(MAGIC);
        block[0xce..0xd0].copy_from_slice(&127_u16.to_le_bytes());
        block[0xfe..0x100].copy_from_slice(&64_u16.to_le_bytes());
        block[0x175] = CRC32C;
        seal(&mut block);
        block
    }

    pub(in crate::filesystem) fn seal(block: &mut [u8]) {
        let checksum = crc32c(!0, &block[..CHECKSUM_AT]);
        block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_sound_superblock_tells_its_sizes() {
        let expected = Superblock {
            block_bytes: 4096,
            blocks: 262_144,
            first_block: 0,
            group_blocks: 32_768,
            cluster_blocks: 1,
            inode_blocks: 512,
            copy_blocks: 129,
            has_projects: false,
            wants_check: false,
            needs_recovery: false,
            panics: false,
            refused_options: None,
        };
        assert_eq!(judge(&superblock(), DEVICE_BYTES), Verdict::Sound(expected));
    }

    /// A state with errors or without the valid bit requires a check; a journal to replay does not.
    #[test]
    fn only_recorded_errors_and_an_unclean_state_want_a_check() {
        for (state, needs_recovery, expected) in [
            (0x1, false, false),
            (0x1, true, false),
            (0x3, false, true),
            (0x3, true, true),
            (0x2, false, true),
            (0x0, false, true),
            // The kernel is deleting files that were open; a replay of the journal completes this.
            (0x5, true, false),
        ] {
            let mut block = superblock();
            block[0x3a..0x3c].copy_from_slice(&u16::to_le_bytes(state));
            block[0x60] |= u8::from(needs_recovery) << 2;
            seal(&mut block);
            let verdict = judge(&block, DEVICE_BYTES);
            let Verdict::Sound(superblock) = verdict else {
                panic!("{state:#x}: {verdict:?}");
            };
            assert_eq!(superblock.wants_check, expected, "{state:#x}");
            assert_eq!(superblock.needs_recovery, needs_recovery, "{state:#x}");
        }
    }

    #[test]
    fn a_filesystem_larger_than_its_device_is_not_sound() {
        let verdict = judge(&superblock(), DEVICE_BYTES - 512);
        assert!(matches!(verdict, Verdict::Other(what) if what.contains("too large")));
    }

    #[test]
    fn the_family_is_told_apart_by_its_features() {
        let cases = [
            (0x3c, 0x2, 0x3, "an ext2 filesystem"),
            (0x3c, 0x6, 0x3, "an ext3 filesystem"),
            (0x38, 0x2, 0x3, "an ext2 filesystem"),
            (0x38, 0xa, 0x3, "an external journal of ext3 or ext4"),
        ];
        for (compat, incompat, ro_compat, name) in cases {
            let compat = if name.contains("ext2") {
                compat & !0x4
            } else {
                compat
            };
            let mut block = superblock();
            for (at, value) in [(0x5c, compat), (0x60, incompat), (0x64, ro_compat)] {
                block[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            }
            assert_eq!(judge(&block, DEVICE_BYTES), Verdict::Other(name.to_owned()));
        }
    }

    /// The features do not matter, because e2fsck searches all disks for the ID of the journal.
    #[test]
    fn an_ext4_that_names_another_device_as_its_journal_is_not_sound() {
        for at in [0xd0, 0xdf, 0xe4, 0xe7] {
            let mut block = superblock();
            block[at] = 1;
            seal(&mut block);
            let expected = Verdict::Other("an ext4 with an external journal".to_owned());
            assert_eq!(judge(&block, DEVICE_BYTES), expected, "{at:#x}");
        }
    }

    #[test]
    fn impossible_sizes_are_damage() {
        for (at, value) in [(0x4, 0), (0x18, 7), (0x18, u32::MAX), (0x20, 0)] {
            let mut block = superblock();
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
            seal(&mut block);
            let verdict = judge(&block, DEVICE_BYTES);
            assert!(
                matches!(verdict, Verdict::Damaged(_)),
                "{at:#x}={value}: {verdict:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn one_changed_bit_is_never_sound(bit in 0..BYTES * 8) {
            let mut block = superblock();
            block[bit / 8] ^= 1 << (bit % 8);
            // Without the feature bit, the superblock has no checksum.
            prop_assume!(bit != 0x64 * 8 + 10);
            prop_assert!(!matches!(judge(&block, DEVICE_BYTES), Verdict::Sound(_)));
        }

        #[test]
        fn no_block_makes_it_panic(
            mut block in proptest::collection::vec(any::<u8>(), 0..=BYTES),
            device_bytes in any::<u64>(),
        ) {
            judge(&block, device_bytes);
            is_copy(&block);
            if block.len() >= 0x66 {
                block[0x38..0x3a].copy_from_slice(MAGIC);
                block[0x65] &= !0x4;
            }
            judge(&block, device_bytes);
            block.resize(BYTES, 0x5a);
            judge(&block, device_bytes);
        }
    }
}
