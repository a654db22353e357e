//! The functions of a transport whose devices this agent attaches and detaches. A cloud attaches
//! and detaches disks without the agent.

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Transport;
use crate::device::{Guard, LoopDir, LoopDirs, OpenDevice, Verdict};
use crate::kernel::{Dev, Kernel};

impl<K: Kernel> Transport<K> {
    /// Returns the directories of the volumes; `None` if volumes are disks.
    pub(crate) fn folders(&self) -> Option<&LoopDirs<K>> {
        match self {
            Transport::Loops(dirs) => Some(dirs),
            Transport::Disks(_) => None,
        }
    }

    /// Returns the directory that has the volume's file; `None` if volumes are disks.
    ///
    /// # Errors
    /// Returns the errors of [`LoopDirs::of`].
    pub(crate) fn folder(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<&LoopDir<K>>, Failure> {
        let folders = self.folders();
        folders.map(|dirs| dirs.of(kernel, volume)).transpose()
    }

    /// Whether the controller needs the volume unstaged, because it must delete the volume.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_wanted_back(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        match self {
            Transport::Loops(dirs) => dirs.of(kernel, volume)?.is_wanted_back(kernel, volume),
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
            Transport::Loops(dirs) => match dirs.of(kernel, volume)?.find_if_any(kernel, volume)? {
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
            Transport::Loops(dirs) => {
                let dir = dirs.of(kernel, volume)?;
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
        let Some(dir) = self.folder(kernel, volume)? else {
            return Ok(Verdict::Unbound);
        };
        Ok(dir.left(kernel, volume, is_mounted)?.guarded(Guard::Loop))
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
        let mut found = Ok(Verdict::Unbound);
        // The file does not exist, so any disk may have the device.
        for dir in self.folders().into_iter().flat_map(LoopDirs::open) {
            match dir.stale(kernel, volume, &is_mounted) {
                Ok(verdict) if verdict.held().is_none() => {}
                Ok(verdict) => return Ok(verdict.guarded(Guard::Loop)),
                Err(failure) => found = Err(failure),
            }
        }
        found
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
