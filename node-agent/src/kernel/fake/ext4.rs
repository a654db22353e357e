//! The superblock of ext4, reduced to the fields that the agent checks (Linux: fs/ext4/ext4.h).

use super::sparse::Sparse;
use super::superblock::crc32c;

const AT: u64 = 1024;
const BYTES: usize = 1024;
const CHECKSUM_AT: usize = 0x3fc;
const STATE_AT: usize = 0x3a;
/// `s_state`: nothing is wrong.
pub(super) const VALID: u16 = 1;
/// `s_state`: errors were found.
pub(super) const ERRORS: u16 = 1 | 2;
/// has_journal; filetype, extents, 64bit; sparse_super, large_file, huge_file, metadata_csum.
const FEATURES: [(usize, u32); 3] = [(0x5c, 0x4), (0x60, 0x2 | 0x40 | 0x80), (0x64, 0x40b)];

/// The number of blocks, if the superblock is valid.
pub(super) fn blocks(contents: &Sparse) -> Option<u64> {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    if block[0x38..0x3a] != [0x53, 0xef] {
        return None;
    }
    let is_whole = block[CHECKSUM_AT..] == crc32c(!0, &block[..CHECKSUM_AT]).to_le_bytes();
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    is_whole.then(|| u64::from(word(0x150)) << 32 | u64::from(word(0x4)))
}

/// Writes a superblock for so many blocks.
pub(super) fn write(contents: &mut Sparse, blocks: u64) {
    let mut block = [0; BYTES];
    let mut word = |at: usize, value: u64| {
        let value = u32::try_from(value & u64::from(u32::MAX)).unwrap();
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    word(0x4, blocks);
    word(0x150, blocks >> 32);
    // Blocks and clusters of 4 KiB, groups of 32768 blocks and 8192 inodes of 256 bytes.
    for (at, value) in [
        (0x18, 2),
        (0x1c, 2),
        (0x20, 32_768),
        (0x28, 8192),
        (0x4c, 1),
    ] {
        word(at, value);
    }
    for (at, value) in FEATURES {
        word(at, u64::from(value));
    }
    block[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    block[STATE_AT..STATE_AT + 2].copy_from_slice(&VALID.to_le_bytes());
    block[0x58..0x5a].copy_from_slice(&256_u16.to_le_bytes());
    block[0xfe..0x100].copy_from_slice(&64_u16.to_le_bytes());
    block[0x175] = 1;
    seal(contents, &mut block);
}

/// Turns on the feature that project quotas need.
pub(super) fn add_projects(contents: &mut Sparse) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    block[0x65] |= 0x20;
    seal(contents, &mut block);
}

/// Writes `s_state`.
pub(super) fn record(contents: &mut Sparse, state: u16) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    block[STATE_AT..STATE_AT + 2].copy_from_slice(&state.to_le_bytes());
    seal(contents, &mut block);
}

/// Whether `s_state` asks for no check.
pub(super) fn is_valid(contents: &Sparse) -> bool {
    let mut state = [0; 2];
    contents.read(AT + STATE_AT as u64, &mut state);
    u16::from_le_bytes(state) == VALID
}

fn seal(contents: &mut Sparse, block: &mut [u8; BYTES]) {
    let checksum = crc32c(!0, &block[..CHECKSUM_AT]).to_le_bytes();
    block[CHECKSUM_AT..].copy_from_slice(&checksum);
    contents.write(AT, block);
}
