//! The functions of a transport whose devices this agent attaches and detaches. A cloud attaches
//! and detaches disks without the agent.

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Transport;
use crate::device::loops::Bound;
use crate::device::{Guard, LoopDir, OpenDevice, Verdict};
use crate::kernel::{Dev, Kernel};

impl<K: Kernel> Transport<K> {
    /// Returns the directory of the volumes; `None` if volumes are disks.
    pub(crate) fn folder(&self) -> Option<&LoopDir<K>> {
        match self {
            Transport::Loops(dir) => Some(dir),
            Transport::Disks(_) => None,
        }
    }

    /// Whether the controller needs the volume unstaged, because it must delete the volume.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_wanted_back(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        match self {
            Transport::Loops(dir) => dir.is_wanted_back(kernel, volume),
            Transport::Disks(_) => Ok(false),
        }
    }

    /// Removes the attribute by which the controller claims the volume's file for deletion, because
    /// the volume is staged.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn end_claim(&self, kernel: &K, volume: &VolumeId) -> Result<(), Failure> {
        match self {
            Transport::Loops(dir) => match dir.find_if_any(kernel, volume)? {
                Some(file) => file.end_claim(kernel),
                None => Ok(()),
            },
            Transport::Disks(_) => Ok(()),
        }
    }

    /// Calls `each` for every device of a volume whose file cannot be read. Returns `false` if the
    /// file can be read, or if a device whose file has that name cannot be identified.
    ///
    /// # Errors
    /// Returns the error of `each`, or an error if a device cannot be queried.
    pub(crate) fn unread(
        &self,
        kernel: &K,
        volume: &VolumeId,
        mut each: impl FnMut(OpenDevice<K>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        match self {
            Transport::Loops(dir) => {
                dir.unread(kernel, volume, |device| each(device.guarded(Guard::Loop)))
            }
            Transport::Disks(_) => Ok(false),
        }
    }

    /// Returns the device that is still attached for the volume. The device is [`Verdict::Stale`]
    /// if its file was removed or moved, and another file has the volume's name.
    ///
    /// # Errors
    /// Returns the errors of `Storage::left`, or an error if sysfs or a device cannot be queried.
    pub(crate) fn left(
        &self,
        kernel: &K,
        volume: &VolumeId,
        is_mounted: impl Fn(Dev) -> bool,
    ) -> Result<Verdict<K>, Failure> {
        self.kept(|dir| dir.left(kernel, volume, is_mounted))
    }

    /// Returns the device that is still attached for the volume, whose file was removed, renamed or
    /// replaced.
    ///
    /// # Errors
    /// Returns an error if sysfs, a device or the directory cannot be queried.
    pub(crate) fn stale(
        &self,
        kernel: &K,
        volume: &VolumeId,
        is_mounted: impl Fn(Dev) -> bool,
    ) -> Result<Verdict<K>, Failure> {
        self.kept(|dir| dir.stale(kernel, volume, is_mounted))
    }

    /// Returns a device that the agent has kept attached to a file; `Verdict::Unbound` for disks.
    fn kept(
        &self,
        find: impl FnOnce(&LoopDir<K>) -> Result<Verdict<K, Bound<K>>, Failure>,
    ) -> Result<Verdict<K>, Failure> {
        match self {
            Transport::Loops(dir) => Ok(find(dir)?.guarded(Guard::Loop)),
            Transport::Disks(_) => Ok(Verdict::Unbound),
        }
    }
}

impl<K: Kernel> Transport<K> {
    /// Returns the minimum size, in bytes, of the device of a volume with `bytes` bytes. In some
    /// clouds, the disk of a volume is smaller than the volume.
    pub(crate) fn least_of_device(&self, bytes: u64) -> u64 {
        if let Transport::Disks(disks) = self {
            return disks.profile().least_of_disk(bytes);
        }
        bytes
    }
}
