//! An open device: of either transport, or a mapper over such a device.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use super::{Guard, Label, crypt};
use crate::kernel::{self, Cause, Dev, Inode, Kernel, Open, Patience, failed_busy, while_busy};

/// An attached device that is open, so that its number is not reused.
pub(crate) struct OpenDevice<K: Kernel, G = Guard<K>> {
    // Declared before its guard, so that the device is closed first.
    pub(super) fd: K::Fd,
    pub(super) path: PathBuf,
    pub(super) guard: G,
    /// Whether a mount in another namespace, or a mkfs that has outlived an earlier agent, had
    /// claimed the device when it was attached. The field is true until the agent has checked the
    /// device.
    pub(crate) is_shared: bool,
    /// Whether the agent could verify, when the device was attached, that no other process had its
    /// storage open.
    pub(crate) is_checked: bool,
}

impl<K: Kernel, G> OpenDevice<K, G> {
    /// Returns the device's descriptor.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Returns the path of the device's node, which is the source of its mounts.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the device's number.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn dev(&self, kernel: &K) -> kernel::Result<Dev> {
        Ok(kernel.stat(&self.fd)?.rdev)
    }

    /// Returns the name under which the device is bound for the volume; `None` without sequence
    /// numbers (before Linux 5.15).
    ///
    /// # Errors
    /// Returns an error if the device cannot be queried.
    pub(crate) fn label(
        &self,
        kernel: &K,
        driver: &DriverName,
        volume: &VolumeId,
    ) -> kernel::Result<Option<Label>> {
        let diskseq = kernel.diskseq(&self.fd)?;
        Ok(Label::new(driver, volume, diskseq, &self.path))
    }

    /// Whether the device is claimed: by a mount in any namespace, or by a running mkfs. A process
    /// that only reads the device does not claim it.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened.
    pub(crate) fn is_claimed(&self, kernel: &K) -> kernel::Result<bool> {
        let exclusive = || kernel.reopen(&self.fd, Open::DeviceExclusive);
        match while_busy(kernel, Patience::Moment, failed_busy, exclusive) {
            Ok(_) => Ok(false),
            Err(error) if error.cause() == Cause::Busy => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Refuses a claimed device, for operations that need the device exclusively.
    ///
    /// # Errors
    /// Returns `ABORTED` while the device is claimed.
    pub(crate) fn refuse_claimed(&self, kernel: &K) -> Result<(), Failure> {
        match self.is_claimed(kernel)? {
            false => Ok(()),
            true => Err(self.claimed()),
        }
    }

    /// Returns the error for a device that must not be claimed. A claimed device can be mounted
    /// again, but not formatted.
    pub(crate) fn claimed(&self) -> Failure {
        Failure::busy(format!(
            "{} is still in use for this volume, by a mount elsewhere or by an mkfs or e2fsck \
             of an earlier attempt that has not exited; retry",
            self.path.display()
        ))
    }

    /// Returns the same device with a guard of another type.
    pub(super) fn guarded<H>(self, guard: impl FnOnce(G) -> H) -> OpenDevice<K, H> {
        OpenDevice {
            fd: self.fd,
            path: self.path,
            guard: guard(self.guard),
            is_shared: self.is_shared,
            is_checked: self.is_checked,
        }
    }
}

impl<K: Kernel> OpenDevice<K> {
    /// Returns the device's backing file, which records the volume's use; `None` for a disk, and
    /// for a mapper, whose content is not that of the file.
    pub(crate) fn backing_file(&self) -> Option<&K::Fd> {
        match &self.guard {
            Guard::Loop(bound) => bound.file().map(|file| file.fd()),
            Guard::Disk(_) | Guard::Crypt(_) => None,
        }
    }

    /// Removes the attribute by which the controller claims the volume's file for deletion, because
    /// the volume is staged again.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn end_claim(&self, kernel: &K) -> Result<(), Failure> {
        match &self.guard {
            Guard::Loop(bound) => bound.file().map_or(Ok(()), |file| file.end_claim(kernel)),
            Guard::Disk(_) => Ok(()),
            Guard::Crypt(opened) => opened.below.end_claim(kernel),
        }
    }

    /// Returns the identity of the device's backing file, if it is known; `None` for a disk.
    pub(crate) fn backing_inode(&self) -> Option<Inode> {
        match &self.guard {
            Guard::Loop(bound) => bound.file().map(|file| file.inode()),
            Guard::Disk(_) => None,
            Guard::Crypt(opened) => opened.below.backing_inode(),
        }
    }

    /// Refuses a device whose file may also belong to another volume.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if the file has more hard links than Belay creates.
    pub(crate) fn refuse_linked(&self) -> Result<(), Failure> {
        match &self.guard {
            Guard::Loop(bound) => bound.file().map_or(Ok(()), |file| file.refuse_linked()),
            Guard::Disk(_) => Ok(()),
            Guard::Crypt(opened) => opened.below.refuse_linked(),
        }
    }

    /// Whether writes to the device fail; `None` if unknown.
    pub(crate) fn is_read_only(&self) -> Option<bool> {
        match &self.guard {
            Guard::Loop(bound) => bound.is_read_only(),
            Guard::Disk(_) => None,
            Guard::Crypt(opened) => opened.below.is_read_only(),
        }
    }

    /// Whether the agent keeps the device attached when no process uses it. Always false for a
    /// disk, which the cloud attaches.
    pub(crate) fn is_kept(&self) -> bool {
        match &self.guard {
            Guard::Loop(bound) => bound.is_kept(),
            Guard::Disk(_) => false,
            Guard::Crypt(opened) => opened.below.is_kept(),
        }
    }

    /// Returns the size of the transport's device in bytes, which a mapper's header is a part of,
    /// after this device has adopted a new size of its storage. If the size is below `least`, first
    /// makes the kernel read the size of a disk again.
    ///
    /// # Errors
    /// Returns an error if the device cannot be queried.
    pub(crate) fn bytes(&self, kernel: &K, least: u64) -> kernel::Result<u64> {
        match &self.guard {
            Guard::Loop(bound) => bound.bytes(kernel, &self.fd),
            Guard::Disk(disk) => disk.bytes(kernel, &self.fd, least),
            Guard::Crypt(opened) => opened.below.bytes(kernel, least),
        }
    }

    /// Makes the agent keep the device attached when no process uses it.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn keep(&self, kernel: &K) -> kernel::Result<()> {
        match &self.guard {
            Guard::Loop(bound) => bound.keep(kernel, &self.fd),
            Guard::Disk(_) => Ok(()),
            Guard::Crypt(opened) => opened.below.keep(kernel),
        }
    }

    /// Refuses a disk that was removed since it was opened.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` if the disk was removed.
    pub(crate) fn refuse_removed(&self, kernel: &K) -> Result<(), Failure> {
        match &self.guard {
            Guard::Loop(_) => Ok(()),
            Guard::Disk(disk) => disk.refuse_removed(kernel),
            Guard::Crypt(opened) => opened.below.refuse_removed(kernel),
        }
    }

    /// Detaches the device at its last close, and closes a mapper before. If the caller has the
    /// volume's storage, the caller can check afterwards whether the device was detached; otherwise
    /// this function queries the device. If the device is a disk, this function only closes it.
    ///
    /// # Errors
    /// Returns the kernel's error; or `ABORTED` while another process has the device open, if the
    /// caller does not have its storage.
    pub(crate) fn release(self, kernel: &K) -> Result<(), Failure> {
        match self.split() {
            Split::Loop(device) => device.release(kernel),
            Split::Disk(_) => Ok(()),
            Split::Crypt(fd, opened) => {
                drop(fd);
                crypt::close(kernel, &opened.mapper)?;
                opened.below.release(kernel)
            }
        }
    }

    /// Splits the device by its kind.
    pub(super) fn split(self) -> Split<K> {
        let OpenDevice {
            fd,
            path,
            guard,
            is_shared,
            is_checked,
        } = self;
        match guard {
            Guard::Loop(guard) => Split::Loop(OpenDevice {
                fd,
                path,
                guard,
                is_shared,
                is_checked,
            }),
            Guard::Disk(guard) => Split::Disk(OpenDevice {
                fd,
                path,
                guard,
                is_shared,
                is_checked,
            }),
            Guard::Crypt(opened) => Split::Crypt(fd, opened),
        }
    }
}

/// An open device, as the type of its transport, or an opened mapper and its descriptor.
pub(super) enum Split<K: Kernel> {
    Loop(OpenDevice<K, super::loops::Bound<K>>),
    Disk(OpenDevice<K, super::disks::Plugged>),
    Crypt(K::Fd, Box<crypt::Opened<K>>),
}
