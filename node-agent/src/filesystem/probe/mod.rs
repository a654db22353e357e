//! Determines the content of a device. Reads only; never writes, never mounts, starts no process.
//!
//! In this order, cheapest first: superblocks and signatures at both ends, the witness of a format
//! and its mark, signatures at the offsets of backups, and last every byte that can be other than
//! zero. Only the last step can return [`Probed::Blank`]; the signatures before it select the
//! filesystem, or name other content.

mod blank;
mod btrfs;
mod disk;
mod examine;
#[cfg(test)]
mod ext4_sizes;
mod field;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod identity;
mod mark;
mod md;
#[cfg(any(test, feature = "fuzz"))]
mod memory_disk;
mod ranges;
mod signature;
mod table;

pub(super) mod ext4;
pub(super) mod xfs;

pub(crate) use disk::DeviceUnderTest;
pub(crate) use examine::{Probed, Unsettled, examine, examine_ends};
pub(crate) use identity::{Sound, ext4_blocks, may_have_project_quotas};
pub(crate) use mark::Origin;
pub(crate) use table::{FAT12, FAT16, FAT32, ISO_DESCRIPTOR, ISO_MAGIC};

pub(super) use blank::Blank;
pub(super) use identity::{Identity, ext4_superblock, identify};
pub(super) use mark::{
    Interrupted, MARK_AT, MARK_BYTES, Proof, attempt, encode as encode_mark, has_secret_of, is_of,
};

#[cfg(test)]
pub(super) mod tests {
    pub(in crate::filesystem) use super::md::tests::{
        version_0 as md_version_0, version_1 as md_version_1,
    };
    pub(in crate::filesystem) use super::xfs::tests::sector_with as xfs_sector_with;
}
