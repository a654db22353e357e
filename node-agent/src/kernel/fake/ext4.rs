//! The superblock of ext4, reduced to the fields that the agent checks (Linux: fs/ext4/ext4.h).

use rustix::io::Errno;

use super::sparse::Sparse;
use super::state::Answer;
use super::superblock::crc32c;

const AT: u64 = 1024;
const BYTES: usize = 1024;
const CHECKSUM_AT: usize = 0x3fc;
const STATE_AT: usize = 0x3a;
/// `s_state` of a filesystem without errors.
pub(super) const VALID: u16 = 1;
/// `s_state` of a filesystem with errors.
pub(super) const ERRORS: u16 = 1 | 2;
/// `s_feature_incompat`, and its bit `RECOVER`: the journal must be replayed.
const INCOMPAT_AT: usize = 0x60;
const RECOVER: u8 = 0x4;
/// The offset of the simulated journal. The journal contains a magic number, then the number of
/// blocks in the journal's copy of the superblock.
const JOURNAL_AT: u64 = 36 << 20;
const JOURNAL: [u8; 8] = 0xc03b_3998_u64.to_be_bytes();
/// Offsets and bits of the features: has_journal; filetype, extents, 64bit; sparse_super,
/// large_file, huge_file, metadata_csum.
const FEATURES: [(usize, u32); 3] = [(0x5c, 0x4), (0x60, 0x2 | 0x40 | 0x80), (0x64, 0x40b)];

/// Returns the number of blocks; `None` if the superblock is invalid.
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

/// Writes a superblock for this number of blocks.
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

/// Enables the feature that project quotas need.
pub(super) fn add_projects(contents: &mut Sparse) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    block[0x65] |= 0x20;
    seal(contents, &mut block);
}

/// The offset of `s_errors`, and the value of `s_errors` for a panic.
const ERRORS_AT: usize = 0x3c;
const PANIC: u8 = 3;

/// Sets `errors=panic` in the superblock.
pub(super) fn ask_panic(contents: &mut Sparse) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    block[ERRORS_AT] = PANIC;
    seal(contents, &mut block);
}

/// Whether a mount with these parameters would halt the machine after an error. Returns EINVAL if
/// the superblock does not allow one of the parameters.
pub(super) fn halts(contents: &Sparse, parameters: &[(String, Option<String>)]) -> Answer<bool> {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    let has = |asked: &str| parameters.iter().any(|(name, _)| name == asked);
    match block[0x65] & 0x20 == 0 && has("prjquota") {
        true => Err(Errno::INVAL),
        false => Ok(block[ERRORS_AT] == PANIC && !has("errors")),
    }
}

/// Writes `s_state`.
pub(super) fn record(contents: &mut Sparse, state: u16) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    block[STATE_AT..STATE_AT + 2].copy_from_slice(&state.to_le_bytes());
    seal(contents, &mut block);
}

/// Whether `s_state` records no errors, so that the filesystem needs no check.
pub(super) fn is_valid(contents: &Sparse) -> bool {
    let mut state = [0; 2];
    contents.read(AT + STATE_AT as u64, &mut state);
    u16::from_le_bytes(state) == VALID
}

/// Writes the number of blocks to the journal, as the kernel does before it changes the superblock.
pub(super) fn log(contents: &mut Sparse, blocks: u64) {
    contents.write(JOURNAL_AT, &JOURNAL);
    contents.write(JOURNAL_AT + 8, &blocks.to_be_bytes());
}

/// Writes `errors=panic` to the journal, as the kernel does before it changes the superblock.
pub(super) fn log_panic(contents: &mut Sparse) {
    contents.write(JOURNAL_AT + 16, &[PANIC]);
}

/// Marks the journal as not replayed, as if the filesystem had not been unmounted.
pub(super) fn leave_dirty(contents: &mut Sparse) {
    set_incompat(contents, |flags| flags | RECOVER);
}

/// Replays the journal, and returns whether this has grown the filesystem.
pub(super) fn replay(contents: &mut Sparse) -> bool {
    let mut journal = [0; 17];
    contents.read(JOURNAL_AT, &mut journal);
    let mut flags = [0];
    contents.read(AT + INCOMPAT_AT as u64, &mut flags);
    let logged = u64::from_be_bytes(journal[8..16].try_into().unwrap());
    let before = blocks(contents).unwrap();
    let grows = flags[0] & RECOVER != 0 && journal[..8] == JOURNAL && logged > before;
    if grows {
        let is_valid = is_valid(contents);
        write(contents, logged);
        record(contents, if is_valid { VALID } else { ERRORS });
    }
    if flags[0] & RECOVER != 0 && journal[16] == PANIC {
        ask_panic(contents);
    }
    set_incompat(contents, |flags| flags & !RECOVER);
    grows
}

fn set_incompat(contents: &mut Sparse, change: impl Fn(u8) -> u8) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    block[INCOMPAT_AT] = change(block[INCOMPAT_AT]);
    seal(contents, &mut block);
}

fn seal(contents: &mut Sparse, block: &mut [u8; BYTES]) {
    let checksum = crc32c(!0, &block[..CHECKSUM_AT]).to_le_bytes();
    block[CHECKSUM_AT..].copy_from_slice(&checksum);
    contents.write(AT, block);
}
