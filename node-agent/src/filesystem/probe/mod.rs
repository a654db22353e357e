//! Determines the content of a device. The probe only reads the device: it does not write to it or
//! mount it, and starts no process.
//!
//! The probe reads, cheapest first, the superblocks and signatures at both ends of the device, the
//! witness (the record in an attribute of the backing file), and the format mark. If these areas
//! show no content, the probe reads every byte that may be nonzero, or samples of a new disk, and
//! searches for signatures at the offsets of backup superblocks. Only this last step of the probe
//! can return [`Probed::Blank`].

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
