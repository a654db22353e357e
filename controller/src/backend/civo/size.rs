//! The capacity of a volume, which README.md explains. The disk of a Civo volume is smaller than
//! the volume itself: a volume of 10 GiB had a disk of 9.45 GiB. A capacity is therefore either the
//! size of the Civo volume, as in civo-csi, or the minimum size of its disk; the [`Promise`]
//! selects one of them. Sizes in bytes in this module are capacities.

use crate::backend::{Sizes, Usage};
use belay_server::call::Failure;
use belay_server::request::Context;

/// The StorageClass parameter that selects the [`Promise`].
pub(super) const CAPACITY: &str = "capacity";
const OF_VOLUME: &str = "volume";
pub(super) const OF_DISK: &str = "disk";

/// The unit of `size_gb` in the API, in bytes.
pub(super) const GIB: u64 = 1 << 30;

const MIB: u64 = 1 << 20;

/// The capacity of a volume without a requested size, as in civo-csi.
pub(super) const DEFAULT_BYTES: u64 = 10 * GIB;

/// The minimum size of a disk for each GiB of its volume, in bytes: 0.945 GiB, rounded down to
/// whole pages of 4 KiB.
const DISK_STEP: u64 = GIB * 945 / 1000 / 4096 * 4096;

/// The minimum size of a disk, in thousandths of its volume. A smaller disk cannot belong to the
/// volume.
pub(super) const LEAST_PER_MILLE: u64 = 900;

/// The maximum size of a volume, in GiB. The account's quota is lower; Civo's error then states the
/// reason.
const GIB_MAX: u64 = 1 << 16;

/// Selects the size that is the capacity of a volume: the size of the Civo volume, or the size of
/// its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// The capacity is the size of the Civo volume. The disk is smaller.
    Volume,
    /// The capacity is the size of the disk. The Civo volume is larger.
    Disk,
}

impl Promise {
    /// Returns the promise for the parameters of a StorageClass. Without the parameter, the
    /// capacity of a filesystem is the size of the volume, as in civo-csi. The capacity of a raw
    /// block device is the size of the disk, since CSI requires at least the requested size.
    ///
    /// # Errors
    /// Returns `Invalid` for an unknown value of the parameter.
    pub(super) fn of(parameters: &Context, usage: &Usage) -> Result<Self, Failure> {
        match (parameters.get(CAPACITY), usage) {
            (Some(OF_VOLUME), _) | (None, Usage::Filesystem(_)) => Ok(Self::Volume),
            (Some(OF_DISK), _) | (None, Usage::Block) => Ok(Self::Disk),
            (Some(other), _) => {
                let why = format_args!("{CAPACITY} {other:?}: must be {OF_VOLUME} or {OF_DISK}");
                Err(Failure::invalid("parameters", why))
            }
        }
    }

    fn step(self) -> u64 {
        match self {
            Self::Volume => GIB,
            Self::Disk => DISK_STEP,
        }
    }

    /// Returns the capacities that a volume can have, in bytes.
    pub(super) fn sizes(self) -> Sizes {
        let step = self.step();
        Sizes {
            step,
            min: step,
            max: step * GIB_MAX,
        }
    }

    /// Returns the capacity of a Civo volume of `gib` GiB, in bytes.
    pub(super) fn bytes(self, gib: u64) -> u64 {
        gib.saturating_mul(self.step())
    }

    /// Returns the minimum capacity, in bytes, that a PersistentVolumeClaim for a copy of a volume
    /// of `gib` GiB must request. If the capacity is the size of the disk, the result is the
    /// smallest capacity that requires a volume of `gib` GiB, since the PersistentVolumeClaim of
    /// the source may have requested this capacity.
    pub(super) fn least_of_copy(self, gib: u64) -> u64 {
        match (self, gib.checked_sub(1)) {
            (Self::Volume, _) | (Self::Disk, None) => self.bytes(gib),
            (Self::Disk, Some(less)) => (self.bytes(less) + 1).next_multiple_of(MIB),
        }
    }

    /// Returns the size of the smallest Civo volume with at least this capacity, in GiB.
    pub(super) fn gib(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.step())
    }

    /// Returns the minimum size of the disk of a Civo volume of `gib` GiB, in bytes. A smaller disk
    /// belongs to another volume, or has less than the promised capacity.
    pub(super) fn least_of_disk(self, gib: u64) -> u64 {
        match self {
            Self::Volume => self.bytes(gib) / 1000 * LEAST_PER_MILLE / 4096 * 4096,
            Self::Disk => self.bytes(gib),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(value: Option<&str>) -> Context {
        let entry = value.map(|value| (CAPACITY.to_owned(), value.to_owned()));
        Context::new("parameters", entry).unwrap()
    }

    #[test]
    fn the_class_says_which_size_is_promised_and_a_raw_device_is_as_large_as_requested() {
        let files = Usage::Filesystem("xfs".to_owned());
        for (value, usage, promise) in [
            (None, &files, Promise::Volume),
            (None, &Usage::Block, Promise::Disk),
            (Some("volume"), &Usage::Block, Promise::Volume),
            (Some("disk"), &files, Promise::Disk),
        ] {
            assert_eq!(Promise::of(&class(value), usage), Ok(promise), "{value:?}");
        }
        let refused = Promise::of(&class(Some("Disk")), &files).unwrap_err();
        assert!(
            refused.message.starts_with("parameters: capacity \"Disk\""),
            "{refused}"
        );
    }

    #[test]
    fn a_promised_disk_is_not_larger_than_the_disk_of_any_volume() {
        // The size of the disk of 10 GB in the vendor's guide.
        let seen = 10_146_860_544;
        assert!(Promise::Disk.bytes(10) <= seen);
        assert!(Promise::Disk.bytes(10) > seen - 10 * 8192);
        for requested in [1, GIB, 10 * GIB, 10 * GIB + 1, 1000 * GIB] {
            let gib = Promise::Disk.gib(requested);
            let disk = u128::from(gib) * u128::from(GIB) * 945 / 1000;
            assert!(disk >= u128::from(requested), "{requested}: {gib} GiB");
            let less = u128::from(gib - 1) * u128::from(GIB) * 945 / 1000;
            // Rounding to whole pages costs a few pages of the last GiB.
            assert!(less < u128::from(requested) + 1000 * 8192, "{requested}");
        }
        assert_eq!(Promise::Disk.gib(10 * GIB), 11);
        assert_eq!(Promise::Volume.gib(10 * GIB), 10);
    }

    #[test]
    fn a_copy_can_be_claimed_with_the_size_of_its_source_and_never_gets_a_smaller_volume() {
        for claimed in [1, MIB, GIB, GIB * 3 / 2, 10 * GIB, 1000 * GIB] {
            let gib = Promise::Disk.gib(claimed);
            let least = Promise::Disk.least_of_copy(gib);
            assert!(least <= claimed.next_multiple_of(MIB), "{claimed}: {least}");
            assert_eq!(Promise::Disk.gib(least), gib, "{claimed}");
        }
        assert_eq!(Promise::Volume.least_of_copy(10), 10 * GIB);
        let unknown = [Promise::Volume, Promise::Disk].map(|promise| promise.least_of_copy(0));
        assert_eq!(unknown, [0, 0]);
    }

    #[test]
    fn the_node_accepts_each_disk_that_was_seen_and_no_disk_of_a_much_smaller_volume() {
        for (gib, disk) in [(10, 10_146_860_544), (20, 19 * GIB + GIB / 2)] {
            assert!(Promise::Volume.least_of_disk(gib) <= disk);
            assert!(Promise::Disk.least_of_disk(gib) <= disk);
        }
        assert!(Promise::Volume.least_of_disk(12) > 10_146_860_544);
    }

    #[test]
    fn the_capacity_of_a_disk_is_that_of_no_volume() {
        for gib in 1..=GIB_MAX {
            assert_ne!(Promise::Disk.bytes(gib) % GIB, 0, "{gib}");
        }
    }
}
