//! Binds a raw device onto its staging path. The bind mount is the record that the volume is
//! staged. The mount table shows the device's name in `/dev/belay`, and this name identifies the
//! volume.

use std::path::{Path, PathBuf};
use std::sync::Once;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Context;
use crate::device::{Label, OpenDevice};
use crate::kernel::{Kernel, MountAttrs, Stat};
use crate::work::Phase;

/// The mode of the file onto which a device node is bound. The mode of this file does not affect
/// access, because the mode of the bound device node applies.
const DEVICE_MODE: u32 = 0o600;

impl<K: Kernel> Context<'_, K> {
    /// Binds the volume's device node onto the file at `path`, and creates the file if it does not
    /// exist.
    ///
    /// # Errors
    /// Returns `ABORTED` if another process mounted something at `path` meanwhile; otherwise the
    /// kernel's error.
    pub(super) fn bind_raw(
        &self,
        volume: &VolumeId,
        path: &Path,
        device: &OpenDevice<K>,
    ) -> Result<(), Failure> {
        let kernel = &self.kernel;
        let dev = device.dev(kernel)?;
        let named = self.name(volume, device)?;
        if device.is_mapper() && self.may_lose_devices() {
            self.name(volume, device.bottom())?;
        }
        let device_node = kernel.open_path(named.as_deref().unwrap_or(device.path()))?;
        if kernel.stat(&device_node)?.rdev != dev {
            return Err(Failure::bug(format!(
                "{} is no longer device {dev}",
                device.path().display(),
            )));
        }
        let bind = self.phase(Phase::Clone, || kernel.open_tree(&device_node))?;
        kernel.mount_setattr(&bind, MountAttrs::default())?;
        let bound = Stat {
            mount_root: true,
            ..kernel.stat(&bind)?
        };
        device.refuse_removed(kernel)?;
        if kernel.look(path)?.is_none() {
            kernel.create_file(path, DEVICE_MODE)?;
        }
        if let Err(failure) = self.place(&bind, path) {
            return Err(match kernel.unlink(path) {
                Ok(()) => failure.rolled_back(),
                Err(_) => failure.may_be_running(),
            });
        }
        self.index.note(path, &bound, dev, volume);
        Ok(())
    }

    /// Creates a name in `/dev/belay` for the volume's device, and returns the path of the name.
    /// After a restart, the agent recognizes the volume by this name. Returns `None` if the name
    /// cannot be created.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn name(
        &self,
        volume: &VolumeId,
        device: &OpenDevice<K>,
    ) -> Result<Option<PathBuf>, Failure> {
        let label = device.label(&self.kernel, self.transport.driver(), volume)?;
        Ok(label.and_then(|label| named(&self.kernel, &label, device.path())))
    }

    /// Removes all records about a volume that is no longer on the node, and the name of its disk
    /// in `/dev/belay`.
    pub(super) fn forget(&self, volume: &VolumeId) {
        if let Some(label) = self.transport.forget(volume) {
            self.remove(volume, &label);
        }
    }

    /// Removes the name in `/dev/belay` under which a raw device was bound, and detaches the
    /// device.
    ///
    /// # Errors
    /// Returns the same errors as [`OpenDevice::release`].
    pub(super) fn release_raw(
        &self,
        volume: &VolumeId,
        device: OpenDevice<K>,
    ) -> Result<(), Failure> {
        if self.may_lose_devices() {
            // The kernel flushes the device at its last close, but this close may not be the last:
            // a flush that a killed agent started may still have the device open.
            let flushed = self.phase(Phase::Flush, || self.kernel.fsync(device.fd()));
            if let Err(error) = flushed {
                tracing::warn!(
                    id = volume.as_str(),
                    "data of the volume could not be written to its disk, and is lost: {error}"
                );
            }
        }
        self.phase(Phase::Detach, || {
            self.remove_name(volume, &device);
            device.release(&self.kernel)
        })
    }

    /// Unmounts the bind mount of a raw device that no longer belongs to the volume, removes the
    /// name in `/dev/belay` under which the device was bound, and closes a mapper whose disk was
    /// removed.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn unmount_left(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<(), Failure> {
        let label = self.mounts().label(path, stat)?;
        self.umount(path)?;
        self.index.forget(path);
        if let Some(label) = label.filter(|label| self.transport.is_named(volume, label)) {
            self.remove(volume, &label);
        }
        if self.kernel.is_mapper(stat.rdev) {
            self.close_removed(volume, stat.rdev);
        }
        Ok(())
    }

    /// Removes the name in `/dev/belay` under which a raw device may have been bound.
    pub(super) fn remove_name(&self, volume: &VolumeId, device: &OpenDevice<K>) {
        let label = device.label(&self.kernel, self.transport.driver(), volume);
        if let Ok(Some(label)) = label {
            self.remove(volume, &label);
        }
    }

    /// Removes a name in `/dev/belay`. If the removal fails, the name may later refer to a
    /// different volume's device. Such a name is harmless, because no process opens the device by
    /// that name, and the agent removes the name at its next startup.
    fn remove(&self, volume: &VolumeId, label: &Label) {
        if let Err(error) = label.remove(&self.kernel) {
            tracing::debug!(
                id = volume.as_str(),
                "the name of its device is left: {error}"
            );
        }
    }
}

/// Creates the name in `/dev/belay` under which the device is bound; the mount table shows this
/// name for the bind mount. Without such a name, the agent would not detect after a restart that
/// the device number belongs to a different volume by now.
fn named<K: Kernel>(kernel: &K, label: &Label, node: &Path) -> Option<PathBuf> {
    static SAID: Once = Once::new();
    match label.make(kernel, node) {
        Ok(path) => Some(path),
        Err(error) => {
            SAID.call_once(|| {
                tracing::warn!(
                    "devices have no names in /dev/belay: {error}; until /dev can be written, do \
                     not detach those of raw block volumes by hand (losetup --detach)"
                );
            });
            None
        }
    }
}
