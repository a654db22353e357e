//! Detects the filesystem in a file, as the kernel does when it mounts the filesystem.

use super::sparse::Sparse;
use super::{btrfs, ext4, xfs};

/// A complete filesystem, which can be mounted.
pub(super) struct Whole {
    pub(super) fs_type: &'static str,
    pub(super) bytes: u64,
}

/// Returns the filesystem; `None` if there is no valid superblock.
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

/// The block size of every simulated filesystem, in bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;

const CRC_OF_BYTE: [u32; 256] = crc_of_byte();

/// Returns the CRC of each byte for the polynomial 0x1edc6f41 with reversed bits (RFC 3720,
/// appendix B.4).
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
