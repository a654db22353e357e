//! What a volume is stored in, as this node has it, whatever that is.

use belay_server::call::Failure;

use super::held::Split;
use super::{Guard, Held, Purpose, disks, loops, mixed_up};
use crate::kernel::Kernel;

/// A volume's file, or its disk.
pub(crate) enum Storage<K: Kernel> {
    File(loops::VolumeFile<K>),
    Disk(disks::VolumeDisk),
}

impl<K: Kernel> Storage<K> {
    /// The device that an earlier operation left attached; a file's lock is taken where there is
    /// none. A disk that is plugged in is attached.
    ///
    /// # Errors
    /// `ABORTED` when another process has the file; `FAILED_PRECONDITION` when another volume has.
    /// `UNAVAILABLE` for a disk that does not open.
    pub(crate) fn left(&self, kernel: &K) -> Result<Option<Held<K>>, Failure> {
        match self {
            Storage::File(file) => Ok(file.left(kernel)?.map(|left| left.guarded(Guard::Loop))),
            Storage::Disk(disk) => Ok(disk.open(kernel)?.map(|disk| disk.guarded(Guard::Disk))),
        }
    }

    /// A device for that purpose, which has this storage: a new one, or that of [`Storage::left`].
    ///
    /// # Errors
    /// `ABORTED` when no device can be had, while the file is open elsewhere or the device that is
    /// left is in use; `NOT_FOUND` when the file was deleted meanwhile, `UNAVAILABLE` when the disk
    /// was removed.
    pub(crate) fn hold(
        self,
        kernel: &K,
        left: Option<Held<K>>,
        purpose: Purpose,
    ) -> Result<Held<K>, Failure> {
        match (self, left.map(Held::split)) {
            (Storage::File(file), None) => {
                let device = file.hold(kernel, None, purpose)?;
                Ok(device.guarded(Guard::Loop))
            }
            (Storage::File(file), Some(Split::Loop(left))) => {
                let device = file.hold(kernel, Some(left), purpose)?;
                Ok(device.guarded(Guard::Loop))
            }
            (Storage::Disk(disk), None) => Err(disk.removed()),
            (Storage::Disk(_), Some(Split::Disk(left))) => {
                let device = left.hold(kernel, purpose)?;
                Ok(device.guarded(Guard::Disk))
            }
            _ => Err(mixed_up()),
        }
    }

    /// Detaches a device that nothing known is mounted from. A disk stays plugged in, and must not
    /// be in use.
    ///
    /// # Errors
    /// `ABORTED` while the device is open elsewhere.
    pub(crate) fn free(&self, kernel: &K, left: Held<K>) -> Result<(), Failure> {
        match (self, left.split()) {
            (Storage::File(file), Split::Loop(left)) => file.free(kernel, left),
            (Storage::Disk(_), Split::Disk(left)) => left.refuse_claimed(kernel),
            _ => Err(mixed_up()),
        }
    }
}
