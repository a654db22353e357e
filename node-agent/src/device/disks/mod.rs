//! Disks that a cloud plugs into the node: virtio, SCSI and NVMe.
//!
//! A disk is a volume's if what the disk says of itself in sysfs is what the volume's disk is
//! recognised by, if no other disk says the same, and if it is no other volume's. No link in
//! `/dev/disk` is followed: it is udev's, which may be late, and need not run at all.

mod identity;
mod index;
mod missing;
#[cfg(test)]
mod tests;
mod volume;
mod volumes;

pub(crate) use index::DiskIndex;
pub(crate) use missing::Missing;
pub(super) use volume::{Plugged, VolumeDisk};
pub(crate) use volumes::DiskVolumes;
