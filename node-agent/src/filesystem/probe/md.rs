//! Recognises superblocks of Linux software RAID (Linux: include/uapi/linux/raid/md_p.h,
//! drivers/md/md.c). A member of a RAID 1 with its superblock at the end begins like the filesystem
//! on the array, so a RAID superblock takes precedence over a filesystem. The magic number alone
//! does not prove that a RAID superblock exists: the checksum must be right too.

use super::field::{le16, le32, le64};

/// `MD_SB_MAGIC`, as the bytes on disk.
pub(super) const MAGIC: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
/// `MD_SB_BYTES`: the maximum size of a superblock of either version, in bytes.
pub(super) const BYTES: usize = 4096;

/// The size of the fixed part of a version 1 superblock, which precedes the device roles.
const FIXED_BYTES: usize = 256;
/// The offset of `sb_csum` in a version 1 superblock.
const CHECKSUM_AT: usize = 216;
/// The offset of `sb_csum`, word 38, in a version 0.90 superblock.
const OLD_CHECKSUM_AT: usize = 152;
/// `MD_RESERVED_BYTES`: the bytes that version 0.90 reserves at the end of a device.
const OLD_RESERVED_BYTES: u64 = 64 << 10;

/// Whether `block` is a valid superblock of version 1.0, 1.1 or 1.2 that records `at` as its own
/// offset.
pub(super) fn is_version_1(block: &[u8], at: u64) -> bool {
    let length = usize::from(le16(block, 220)) * 2 + FIXED_BYTES;
    let Some(covered) = block.get(..length) else {
        return false;
    };
    le32(block, 4) == 1
        && le64(block, 144) == at / 512
        && fold(sum(covered).wrapping_sub(u64::from(le32(block, CHECKSUM_AT))))
            == le32(block, CHECKSUM_AT)
}

/// Whether `block` is a valid superblock of version 0.90, of an array that fits a device of
/// `device_bytes` bytes.
pub(super) fn is_version_0(block: &[u8], device_bytes: u64) -> bool {
    let Some(covered) = block.get(..BYTES) else {
        return false;
    };
    let stored = le32(block, OLD_CHECKSUM_AT);
    let data_bytes = u64::from(le32(block, 32)) * 1024;
    // Like the kernel, compare the sums folded to 16 bits, since architectures differ in the other
    // bits.
    le32(block, 4) == 0
        && data_bytes + OLD_RESERVED_BYTES <= device_bytes
        && halves(fold(sum(covered).wrapping_sub(u64::from(stored)))) == halves(stored)
}

fn sum(covered: &[u8]) -> u64 {
    let words = covered.chunks(4).map(|word| match word.len() {
        4 => le32(word, 0),
        _ => u32::from(le16(word, 0)),
    });
    words.fold(0, |sum, word| sum.wrapping_add(u64::from(word)))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low half of the sum is used"
)]
fn fold(sum: u64) -> u32 {
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

fn halves(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The superblock that mdadm writes for a member of an array of two, at byte `at`.
    pub(in crate::filesystem) fn version_1(at: u64) -> Vec<u8> {
        let mut block = vec![0; BYTES];
        block[..4].copy_from_slice(MAGIC);
        block[4] = 1;
        block[16..32].copy_from_slice(b"0123456789abcdef");
        block[144..152].copy_from_slice(&(at / 512).to_le_bytes());
        block[220] = 128;
        block[256..512].fill(0xff);
        let checksum = fold(sum(&block[..FIXED_BYTES + 256]));
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// The superblock that mdadm writes for an array of `data_bytes` with version 0.90 metadata.
    pub(in crate::filesystem) fn version_0(data_bytes: u64) -> Vec<u8> {
        let mut block = vec![0; BYTES];
        block[..4].copy_from_slice(MAGIC);
        block[8] = 90;
        let kibibytes = u32::try_from(data_bytes / 1024).unwrap();
        block[32..36].copy_from_slice(&kibibytes.to_le_bytes());
        block[200..2000].fill(0xa5);
        let checksum = fold(sum(&block));
        block[OLD_CHECKSUM_AT..OLD_CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    #[test]
    fn a_superblock_counts_only_where_it_says_it_is() {
        assert!(is_version_1(&version_1(4096), 4096));
        assert!(!is_version_1(&version_1(4096), 0));
        assert!(is_version_0(&version_0(1 << 20), 2 << 20));
        assert!(!is_version_0(&version_0(1 << 20), 1 << 20));
    }

    /// Architectures store different high bits of the sum.
    #[test]
    fn an_old_sum_counts_folded_to_16_bits() {
        let mut block = vec![0; BYTES];
        block[..4].copy_from_slice(MAGIC);
        for (stored, is_right) in [
            (0xa92b_4efc_u32, true),
            (0xf827, true),
            (0x0001_f826, true),
            (0xf826, false),
            (0x0001_f827, false),
        ] {
            block[OLD_CHECKSUM_AT..OLD_CHECKSUM_AT + 4].copy_from_slice(&stored.to_le_bytes());
            assert_eq!(is_version_0(&block, 1 << 20), is_right, "{stored:#x}");
        }
    }

    /// Both sums exceed 32 bits. The expected checksums were computed by hand as in Linux
    /// (drivers/md/md.c): the words are added in 64 bits, then the high half is added to the low
    /// half.
    #[test]
    fn the_high_half_of_the_sum_counts() {
        assert_eq!(le32(&version_1(4096), CHECKSUM_AT), 0xdc5a_5385);
        assert_eq!(le32(&version_0(1 << 20), OLD_CHECKSUM_AT), 0xd658_8083);
    }

    proptest! {
        #[test]
        fn a_changed_bit_is_seen(bit in 32..512 * 8_usize) {
            let mut block = version_1(4096);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_version_1(&block, 4096));
            let mut block = version_0(1 << 20);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_version_0(&block, 2 << 20));
        }

        #[test]
        fn no_block_makes_it_panic(
            block in proptest::collection::vec(any::<u8>(), 0..=BYTES),
            at in any::<u64>(),
        ) {
            is_version_1(&block, at);
            is_version_0(&block, at);
        }
    }
}
