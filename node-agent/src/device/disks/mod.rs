//! Disks that a cloud plugs into the node: virtio, SCSI and NVMe.
//!
//! A disk is a volume's if its identity in sysfs matches that of the volume's disk, if no other
//! disk matches, and if it is not another volume's. Symlinks in `/dev/disk` are not used: udev
//! makes them, perhaps late, and udev need not run.

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod identity;
mod index;
#[cfg(test)]
mod tests;
mod volume;
mod volumes;

pub(crate) use index::{DiskIndex, DiskSeen, DiskUser};
pub(crate) use volume::Missing;
pub(super) use volume::{Plugged, VolumeDisk};
pub(crate) use volumes::{ANSWER_MAX, DiskRules, DiskVolumes};
