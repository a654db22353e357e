//! Which filesystem a file begins with, as the kernel would look before it mounts it.

use super::sparse::Sparse;
use super::{btrfs, ext4, xfs};

/// A filesystem that can be mounted.
pub(super) struct Whole {
    pub(super) fs_type: &'static str,
    pub(super) bytes: u64,
}

/// The filesystem, if its superblock is whole.
pub(super) fn read(contents: &Sparse) -> Option<Whole> {
    let blocks_of = [
        ("ext4", ext4::blocks as fn(&Sparse) -> _),
        ("xfs", xfs::blocks),
        ("btrfs", btrfs::blocks),
    ];
    blocks_of.into_iter().find_map(|(fs_type, blocks)| {
        let bytes = blocks(contents)? * BLOCK_BYTES;
        Some(Whole { fs_type, bytes })
    })
}

/// The block size of everything made here.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// CRC-32C bit by bit, neither the start nor the end inverted (RFC 3720, appendix B.4).
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}
