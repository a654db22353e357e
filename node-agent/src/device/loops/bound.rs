//! Opens, queries and unbinds a loop device that is bound to a file.

use std::path::PathBuf;

use belay_server::call::Failure;

use super::file::{VolumeFile, still_open};
use super::sysfs::loop_path;
use crate::device::OpenDevice;
use crate::kernel::{self, Cause, Inode, Kernel, LoopMode, LoopStatus, Open, Patience, while_busy};

/// The guard of a bound device: the device's number, and the known facts about its file.
pub(crate) struct Bound<K: Kernel> {
    pub(super) number: u32,
    /// The volume's file, if the device is bound to it.
    pub(super) file: Option<VolumeFile<K>>,
    /// The device's mode when it was bound or last queried; `None` if it has not been queried.
    pub(super) mode: Option<LoopMode>,
    /// The inode of the device's file when the device was bound or last queried; `None` if it has
    /// not been queried.
    pub(super) inode: Option<Inode>,
}

impl<K: Kernel> Bound<K> {
    /// Returns the volume's file, if the device is bound to it.
    pub(in crate::device) fn file(&self) -> Option<&VolumeFile<K>> {
        self.file.as_ref()
    }

    /// Whether writes to the device fail; `None` if unknown.
    pub(in crate::device) fn is_read_only(&self) -> Option<bool> {
        self.mode.map(|mode| mode.read_only)
    }

    /// Whether the device stays bound when no process uses it.
    pub(in crate::device) fn is_kept(&self) -> bool {
        self.mode.is_some_and(|mode| !mode.autoclear)
    }

    /// Returns the size of the device in bytes, after the device has adopted a larger size of its
    /// file.
    ///
    /// # Errors
    /// Returns an error if the device cannot be queried.
    pub(in crate::device) fn bytes(&self, kernel: &K, fd: &K::Fd) -> kernel::Result<u64> {
        let bytes = kernel.device_bytes(fd)?;
        let is_behind = |file: &VolumeFile<K>| bytes < file.bytes();
        if !self.file.as_ref().is_some_and(is_behind) {
            return Ok(bytes);
        }
        kernel.loop_set_capacity(fd)?;
        kernel.device_bytes(fd)
    }

    /// Makes the device stay bound when no process uses it.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub(in crate::device) fn keep(&self, kernel: &K, fd: &K::Fd) -> kernel::Result<()> {
        match self.mode {
            Some(mode) if mode.autoclear => kernel.loop_set_autoclear(fd, false),
            _ => Ok(()),
        }
    }
}

/// An open loop device.
pub(super) type Device<K> = OpenDevice<K, Bound<K>>;

impl<K: Kernel> Device<K> {
    /// Opens a device that was bound a moment ago. Returns `None` if the device was unbound and
    /// removed since, or its disk fails.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened.
    pub(super) fn open(kernel: &K, number: u32) -> kernel::Result<Option<Self>> {
        let path = loop_path(number);
        let fd = match kernel.open(&path, Open::DeviceRead) {
            Ok(fd) => fd,
            Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let guard = Bound {
            number,
            file: None,
            mode: None,
            inode: None,
        };
        Ok(Some(OpenDevice {
            fd,
            path,
            guard,
            // Assume that the device has other users until it has been queried.
            is_shared: true,
            is_checked: true,
        }))
    }

    /// Queries the device's status; `None` if the device is not bound.
    ///
    /// # Errors
    /// Returns an error if the filesystem of the device's file does not respond to the query.
    pub(super) fn ask(&mut self, kernel: &K) -> kernel::Result<Option<LoopStatus>> {
        let status = kernel.loop_status(&self.fd)?;
        self.guard.mode = status.as_ref().map(|status| status.mode);
        self.guard.inode = status.as_ref().map(LoopStatus::inode);
        Ok(status)
    }

    /// Opens the device and queries its status. Returns `None` if the device does not exist or is
    /// not bound.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened or queried.
    pub(super) fn open_bound(
        kernel: &K,
        number: u32,
    ) -> kernel::Result<Option<(Self, LoopStatus)>> {
        let Some(mut device) = Self::open(kernel, number)? else {
            return Ok(None);
        };
        let status = device.ask(kernel)?;
        Ok(status.map(|status| (device, status)))
    }

    /// Whether the device has no partitions, and only root may open its node.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(super) fn is_plain(&self, kernel: &K) -> kernel::Result<bool> {
        let partitions = kernel.loop_partitions(self.guard.number, true)?;
        Ok(partitions.is_empty() && kernel.is_private(&self.fd)?)
    }

    /// Resets the settings that another process has made on the device, perhaps for another volume.
    /// The settings would make writes fail, or keep an fsync from reaching the disk.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn reset(&self, kernel: &K) -> kernel::Result<()> {
        kernel.allow_writes(&self.fd)?;
        match self.guard.mode {
            Some(mode) if mode.read_only => Ok(()),
            _ => kernel.loop_allow_flushes(self.guard.number),
        }
    }

    /// Resets the device's settings ([`OpenDevice::reset`]), and unbinds the device if the reset
    /// fails.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn reset_or_unbind(self, kernel: &K) -> Result<Self, Failure> {
        let Err(error) = self.reset(kernel) else {
            return Ok(self);
        };
        Err(match self.unbind(kernel) {
            Ok(_) => error.into(),
            Err(_) => Failure::from(error).may_be_running(),
        })
    }

    /// Returns the same device with the volume's file.
    pub(super) fn with(mut self, file: VolumeFile<K>) -> Self {
        self.guard.file = Some(file);
        self
    }

    /// Unbinds the loop device at its last close, as a part of [`OpenDevice::release`].
    ///
    /// # Errors
    /// Returns the kernel's error, or `ABORTED` while another process has the device open, if the
    /// caller does not have its file.
    pub(in crate::device) fn release(self, kernel: &K) -> Result<(), Failure> {
        let (path, guard) = self.unbind(kernel)?;
        let (number, inode) = (guard.number, guard.inode);
        if guard.file.is_some() {
            return Ok(());
        }
        let is_it = |status: LoopStatus| inode.is_none_or(|inode| status.inode() == inode);
        let is_bound = || match Device::open(kernel, number)? {
            None => Ok(false),
            Some(mut device) => match device.ask(kernel) {
                // The device's disk has failed.
                Err(error) if error.cause() == Cause::Io => {
                    Ok(kernel.loop_file_name(number)?.is_some())
                }
                status => Ok(status?.is_some_and(is_it)),
            },
        };
        let still = |bound: &kernel::Result<bool>| matches!(bound, Ok(true));
        match while_busy(kernel, Patience::Second, still, is_bound)? {
            true => Err(still_open(&path)),
            false => Ok(()),
        }
    }

    /// Unbinds the device, unless it is mounted, claimed or open elsewhere. Returns whether the
    /// device was unbound.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn release_unused(self, kernel: &K) -> kernel::Result<bool> {
        let (_, Bound { number, file, .. }) = self.unbind(kernel)?;
        // Only after the unbinding can the agent see whether other processes have the device open.
        let is_left = |left: &kernel::Result<Option<Self>>| matches!(left, Ok(Some(_)));
        let left = while_busy(kernel, Patience::Moment, is_left, || {
            let Some(mut device) = Device::open(kernel, number)? else {
                return Ok(None);
            };
            let status = device.ask(kernel)?;
            let is_it = status
                .zip(file.as_ref())
                .is_some_and(|(it, file)| file.is_behind(&it));
            Ok(is_it.then_some(device))
        })?;
        match left {
            None => Ok(true),
            Some(device) => {
                // Keep the device bound; otherwise it would be unbound when the other process
                // closes it.
                kernel.loop_set_autoclear(&device.fd, false)?;
                Ok(false)
            }
        }
    }

    /// Unbinds the device at its last close, which may be the close of this descriptor. Returns the
    /// device's node and guard. Succeeds if the device is already unbound.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn unbind(self, kernel: &K) -> kernel::Result<(PathBuf, Bound<K>)> {
        match kernel.loop_clr_fd(&self.fd) {
            Err(error) if error.cause() != Cause::NoDevice => return Err(error),
            _ => {}
        }
        Ok((self.path, self.guard))
    }
}
