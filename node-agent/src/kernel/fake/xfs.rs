//! The superblock of XFS, reduced to the fields that the agent checks (Linux:
//! fs/xfs/libxfs/xfs_format.h).

use super::sparse::Sparse;
use super::superblock::crc32c;

const BYTES: usize = 512;
pub(super) const UUID_AT: u64 = 32;
const CHECKSUM_AT: usize = 224;
const IN_PROGRESS_AT: usize = 126;
/// The offset of the log. mkfs leaves the log empty, except for the first record, which the agent
/// ignores.
const LOG_AT: u64 = 48 << 20;

/// Returns the number of blocks; `None` if the superblock is invalid or mkfs has not completed.
pub(super) fn blocks(contents: &Sparse) -> Option<u64> {
    let mut sector = [0; BYTES];
    contents.read(0, &mut sector);
    if !sector.starts_with(b"XFSB") {
        return None;
    }
    let found = sector;
    seal(&mut sector);
    let is_whole = found == sector && found[IN_PROGRESS_AT] == 0;
    is_whole.then(|| u64::from_be_bytes(found[8..16].try_into().unwrap()))
}

/// Writes a log record, as a mounted xfs does as soon as it syncs data.
pub(super) fn log(contents: &mut Sparse) {
    contents.write(LOG_AT + 1024, &[0xfe; 1024]);
}

/// Writes the superblock of a filesystem of this size. `in_progress`: mkfs has not completed.
pub(super) fn write(contents: &mut Sparse, blocks: u64, uuid: [u8; 16], in_progress: bool) {
    let mut sector = [0; BYTES];
    sector[..4].copy_from_slice(b"XFSB");
    sector[4..8].copy_from_slice(&4096_u32.to_be_bytes());
    sector[8..16].copy_from_slice(&blocks.to_be_bytes());
    sector[32..48].copy_from_slice(&uuid);
    sector[48..56].copy_from_slice(&(LOG_AT / 4096).to_be_bytes());
    // A shift by 32 bits (`sb_agblklog`), so that all block addresses are in group 0.
    sector[124] = 32;
    sector[88..92].copy_from_slice(&2_u32.to_be_bytes());
    sector[100..102].copy_from_slice(&0xb4a5_u16.to_be_bytes());
    sector[102..104].copy_from_slice(&512_u16.to_be_bytes());
    sector[IN_PROGRESS_AT] = u8::from(in_progress);
    sector[216..220].copy_from_slice(&0xb_u32.to_be_bytes());
    seal(&mut sector);
    contents.write(0, &sector);
}

/// Enables more features: bits of `sb_features_incompat`.
pub(super) fn enable(contents: &mut Sparse, incompat: u32) {
    let mut sector = [0; BYTES];
    contents.read(0, &mut sector);
    let old = u32::from_be_bytes(sector[216..220].try_into().unwrap());
    sector[216..220].copy_from_slice(&(old | incompat).to_be_bytes());
    seal(&mut sector);
    contents.write(0, &sector);
}

/// Returns the features of `incompat` that remain after mkfs has omitted the features that `args`
/// disable.
pub(super) fn without(incompat: u32, args: &[String]) -> u32 {
    args.iter().fold(incompat, |left, arg| match arg.as_str() {
        "nrext64=0" => left & !0x20,
        "exchange=0" => left & !0x40,
        "parent=0" => left & !0x80,
        _ => left,
    })
}

fn seal(sector: &mut [u8; BYTES]) {
    sector[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = !crc32c(!0, &sector[..]);
    sector[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
}
