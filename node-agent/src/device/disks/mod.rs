//! Disks that a cloud plugs into the node: virtio, SCSI and NVMe.
//!
//! A disk belongs to a volume if its identity in sysfs matches the identity of the volume's disk,
//! if no other disk matches, and if it does not belong to another volume. Symlinks in `/dev/disk`
//! are not used, because udev creates them, possibly late, and udev may not be running.

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
