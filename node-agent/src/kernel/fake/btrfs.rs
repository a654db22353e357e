//! The superblock of btrfs, reduced to the fields that the agent and the kernel check (Linux:
//! include/uapi/linux/btrfs_tree.h).

use super::sparse::Sparse;
use super::superblock::{BLOCK_BYTES, crc32c};

const AT: u64 = 64 << 10;
const BYTES: usize = 4096;
const CHECKSUM_BYTES: usize = 32;
const MAGIC_AT: usize = 0x40;
const MAGIC: &[u8; 8] = b"_BHRfS_M";
const MAGIC_UNFINISHED: &[u8; 8] = b"!BHRfS_M";
const SIZE_AT: usize = 0xd1;

/// Features that are newer than Linux 5.14.
#[derive(Clone, Copy, Default)]
pub(crate) struct Features {
    pub(crate) compat_ro: u64,
    pub(crate) incompat: u64,
}

impl Features {
    /// Returns the features that remain after mkfs has omitted the features that `args` name with a
    /// `^`.
    pub(super) fn without(self, args: &[String]) -> Self {
        let all = args.iter().flat_map(|arg| arg.split(','));
        all.fold(self, |left, name| match name {
            "^block-group-tree" => Self {
                compat_ro: left.compat_ro & !0x8,
                ..left
            },
            "^raid-stripe-tree" => Self {
                incompat: left.incompat & !0x4000,
                ..left
            },
            _ => left,
        })
    }
}

/// Returns the number of blocks; `None` if the superblock is invalid or mkfs has not completed.
pub(super) fn blocks(contents: &Sparse) -> Option<u64> {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    if !block[MAGIC_AT..].starts_with(MAGIC) {
        return None;
    }
    let found = block;
    seal(&mut block);
    let bytes = u64::from_le_bytes(found[SIZE_AT..SIZE_AT + 8].try_into().unwrap());
    (found == block).then_some(bytes / BLOCK_BYTES)
}

/// Writes the superblock of a filesystem of this size. `in_progress`: mkfs has not completed.
pub(super) fn write(contents: &mut Sparse, blocks: u64, in_progress: bool) {
    let mut block = [0; BYTES];
    block[MAGIC_AT..MAGIC_AT + 8].copy_from_slice(match in_progress {
        true => MAGIC_UNFINISHED,
        false => MAGIC,
    });
    // Set the superblock's address, the flag `WRITTEN`, one device with ID 1, the features, and the
    // device's size.
    for (at, value) in [
        (0x30, AT),
        (0x38, 1),
        (0x88, 1),
        (0x90, BLOCK_BYTES | 16_384 << 32),
        (0xb4, 0x3),
        (0xbc, 0x361),
        (0xc9, 1),
        (SIZE_AT, blocks * BLOCK_BYTES),
    ] {
        block[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    seal(&mut block);
    contents.write(AT, &block);
}

/// Enables more features: bits of `compat_ro_flags` and of `incompat_flags`.
pub(super) fn enable(contents: &mut Sparse, features: Features) {
    let mut block = [0; BYTES];
    contents.read(AT, &mut block);
    for (at, bits) in [(0xb4, features.compat_ro), (0xbc, features.incompat)] {
        let old = u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        block[at..at + 8].copy_from_slice(&u64::to_le_bytes(old | bits));
    }
    seal(&mut block);
    contents.write(AT, &block);
}

fn seal(block: &mut [u8; BYTES]) {
    block[..CHECKSUM_BYTES].fill(0);
    let checksum = !crc32c(!0, &block[CHECKSUM_BYTES..]);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
}
