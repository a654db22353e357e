//! A volume's storage on this node: a file or a disk.

use belay_server::call::Failure;

use super::open_device::Split;
use super::{Guard, IsShown, OpenDevice, Purpose, disks, loops, mixed_up};
use crate::kernel::Kernel;

/// The file or the disk of a volume.
pub(crate) enum Storage<K: Kernel> {
    File(loops::VolumeFile<K>),
    Disk(disks::VolumeDisk),
}

impl<K: Kernel> Storage<K> {
    /// Refuses a file that may also belong to another volume.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if the file has several hard links.
    pub(crate) fn refuse_linked(&self) -> Result<(), Failure> {
        match self {
            Storage::File(file) => file.refuse_linked(),
            Storage::Disk(_) => Ok(()),
        }
    }

    /// Returns the device that an earlier operation left attached. If there is no such device,
    /// locks the file. A disk that is plugged in counts as attached.
    ///
    /// # Errors
    /// Returns `ABORTED` if another process has locked the file; `FAILED_PRECONDITION` if the
    /// device of another volume has locked it; `UNAVAILABLE` for a disk that cannot be opened.
    pub(crate) fn left(&self, kernel: &K) -> Result<Option<OpenDevice<K>>, Failure> {
        match self {
            Storage::File(file) => Ok(file.left(kernel)?.map(|left| left.guarded(Guard::Loop))),
            Storage::Disk(disk) => Ok(disk.open(kernel)?.map(|disk| disk.guarded(Guard::Disk))),
        }
    }

    /// Refuses a file that its controller is copying or deleting.
    ///
    /// # Errors
    /// Returns `ABORTED` while the file is being copied, `NOT_FOUND` while it is being removed.
    pub(crate) fn refuse_claimed(&self, kernel: &K) -> Result<(), Failure> {
        match self {
            Storage::File(file) => file.refuse_claimed(kernel),
            Storage::Disk(_) => Ok(()),
        }
    }

    /// Returns a device for this purpose, with this storage: a new device that no mount shows
    /// (`is_shown`), or the device `left`, which an earlier operation left attached
    /// ([`Storage::left`]).
    ///
    /// # Errors
    /// Returns `ABORTED` if no device can be attached, the file is open elsewhere, or the device
    /// `left` is in use; `NOT_FOUND` if the file was deleted in the meantime; `UNAVAILABLE` if the
    /// disk was removed.
    pub(crate) fn hold(
        self,
        kernel: &K,
        left: Option<OpenDevice<K>>,
        purpose: Purpose,
        is_shown: IsShown<'_>,
    ) -> Result<OpenDevice<K>, Failure> {
        match (self, left.map(OpenDevice::split)) {
            (Storage::File(file), None) => {
                let device = file.hold(kernel, None, purpose, is_shown)?;
                Ok(device.guarded(Guard::Loop))
            }
            (Storage::File(file), Some(Split::Loop(left))) => {
                let device = file.hold(kernel, Some(left), purpose, is_shown)?;
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

    /// Detaches a device that has no known mount. A disk remains plugged in, and must not be in
    /// use.
    ///
    /// # Errors
    /// Returns `ABORTED` while another process has the device open.
    pub(crate) fn free(&self, kernel: &K, left: OpenDevice<K>) -> Result<(), Failure> {
        match (self, left.split()) {
            (Storage::File(file), Split::Loop(left)) => file.free(kernel, left),
            (Storage::Disk(_), Split::Disk(left)) => left.refuse_claimed(kernel),
            _ => Err(mixed_up()),
        }
    }
}
