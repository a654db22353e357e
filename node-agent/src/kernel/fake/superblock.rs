//! Detects the filesystem at the start of a file, as the kernel does before it mounts it.

use super::sparse::Sparse;
use super::{btrfs, ext4, xfs};

/// A filesystem that can be mounted.
pub(super) struct Whole {
    pub(super) fs_type: &'static str,
    pub(super) bytes: u64,
}

/// The filesystem, if its superblock is valid.
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

/// The block size of every filesystem made here.
pub(super) const BLOCK_BYTES: u64 = 4096;

const CRC_OF_BYTE: [u32; 256] = crc_of_byte();

/// The CRC of each byte for the polynomial 0x1edc6f41, bits reversed (RFC 3720, appendix B.4).
const fn crc_of_byte() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

/// CRC-32C, with neither the initial nor the final inversion.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        (crc >> 8) ^ CRC_OF_BYTE[usize::from(low)]
    })
}
