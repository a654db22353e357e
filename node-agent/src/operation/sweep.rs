//! Frees devices that a killed agent left bound, after the next startup of the agent or when
//! NodeStageVolume for the volume fails with a final code.
//!
//! If the agent crashes after it has bound a loop device to a raw volume's file and before it has
//! mounted the device, the device stays bound. The next NodeStageVolume or NodeUnstageVolume call
//! for the volume finds the device. However, NodeStageVolume may be refused before it searches for
//! the device; the caller then does not retry, and no later call frees the device. At startup, the
//! agent does not free a device while another process, for example an agent that is still exiting,
//! has the device open or the directory locked.

use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::{Context, Node};
use crate::device::{Label, VolumeDir};
use crate::kernel::Kernel;
use crate::mounts::Covered;
use crate::work::Phase;

impl<K: Kernel> Node<K> {
    /// Reads the names in `/dev/belay`, which show the disk of each volume. Removes the names of
    /// devices that were detached while no agent was running, because such a name may refer to a
    /// different volume's device by now. If a name cannot be removed, a warning is logged.
    pub(crate) fn read_names(&self) {
        let (kernel, driver) = (&self.kernel, self.transport.driver());
        let unread = |path: &Path, error| {
            let path = path.display();
            tracing::warn!(
                "{path}: cannot be read or removed, so the disk of its volume may have to be \
                 recognised by its serial: {error}"
            );
        };
        for name in Label::sweep(kernel, driver, unread) {
            if let Err(error) = self.transport.adopt(kernel, &name) {
                unread(&name.path(), error);
            }
        }
    }

    /// Takes the lock of a disk's directory, which this agent then holds until it exits. Returns
    /// whether this agent holds the lock. Without the lock, only the devices of volumes that a call
    /// names may be freed, because a second agent may be about to use the other devices.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` if the directory is not open; otherwise the kernel's error.
    pub(crate) fn try_lock_directory(&self, disk: usize) -> Result<bool, Failure> {
        Ok(self.folder(disk)?.is_ours_alone(&self.kernel)?)
    }

    /// Returns the number of each device that a killed agent may have left bound for a volume of
    /// the disk, and the volume. Only returns devices that were bound without AUTOCLEAR and that
    /// are not in the mount index. Does not open a device.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` if the directory is not open; otherwise the kernel's error.
    pub(crate) fn remnants(&self, disk: usize) -> Result<Vec<(u32, VolumeId)>, Failure> {
        let folder = self.folder(disk)?;
        if !self.sees_all_mounts()? {
            return Ok(Vec::new());
        }
        let is_noted = |dev| self.index.has(dev);
        Ok(folder.remnants(&self.kernel, is_noted)?)
    }

    /// Frees a device that [`Node::remnants`] returned, unless the volume's file is not on the
    /// disk, or the device does not belong to the volume, is mounted or bound to a path, or is open
    /// in any process. Must run in a job of the volume. Returns whether the device was freed.
    ///
    /// # Errors
    /// Returns the kernel's error. The next NodeStageVolume or NodeUnstageVolume call for the
    /// volume then finds the device.
    pub(crate) fn free_remnant(
        &self,
        disk: usize,
        number: u32,
        volume: &VolumeId,
    ) -> Result<bool, Failure> {
        let folder = self.folder(disk)?;
        Ok(!self.is_noted(folder, number, volume)? && self.free_unnoted(folder, number, volume)?)
    }

    /// Whether the mount index contains a mount of the device.
    fn is_noted(
        &self,
        folder: &VolumeDir<K>,
        number: u32,
        volume: &VolumeId,
    ) -> Result<bool, Failure> {
        let dev = folder.dev_of(&self.kernel, number);
        let shown = self.mounts().others(volume, dev, &[])?;
        Ok(!shown.is_empty())
    }

    /// Frees a device like [`Node::free_remnant`], but does not search the mount index.
    fn free_unnoted(
        &self,
        folder: &VolumeDir<K>,
        number: u32,
        volume: &VolumeId,
    ) -> Result<bool, Failure> {
        let kernel = &self.kernel;
        let Some(remnant) = folder.remnant(kernel, volume, number)? else {
            return Ok(false);
        };
        // The mount table also lists mounts that are not in the index, such as a bind mount that is
        // hidden by another mount.
        let dev = remnant.dev(kernel)?;
        let shown = Covered::new(kernel, &self.transport, volume, dev).paths(&[])?;
        if !shown.is_empty() {
            return Ok(false);
        }
        // The mapper of an encrypted raw volume may be bound, or may be left open as well.
        match self.close_over(volume, dev) {
            Err(failure) if matches!(failure.kind, Kind::Precondition | Kind::Busy) => {
                return Ok(false);
            }
            closed => closed?,
        };
        let name = remnant.label(kernel, self.transport.driver(), volume)?;
        let is_freed = remnant.release_unused(kernel)?;
        if let (true, Some(name)) = (is_freed, name) {
            name.remove(kernel)?;
        }
        Ok(is_freed)
    }

    fn free_left(&self, volume: &VolumeId) -> Result<bool, Failure> {
        let kernel = &self.kernel;
        let Some(folder) = self.transport.folder(kernel, volume)? else {
            return Ok(false);
        };
        for number in folder.remnants_of(kernel, volume)? {
            // Take the directory's lock only if there is a device to free, since the agent keeps
            // the lock until it exits.
            if !self.is_noted(folder, number, volume)?
                && folder.is_ours_alone(kernel)?
                && self.sees_all_mounts()?
                && self.free_unnoted(folder, number, volume)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<K: Kernel> Context<'_, K> {
    /// Frees a device that an earlier NodeStageVolume call left bound. Does this only if the
    /// present NodeStageVolume call was refused with a final code, because the caller then does not
    /// retry. The conditions are the same as for [`Node::free_remnant`]. If freeing fails, the
    /// device stays bound.
    pub(super) fn free_after_refused_stage(&self, volume: &VolumeId, refusal: &Failure) {
        let is_final = matches!(
            refusal.kind,
            Kind::Invalid | Kind::Incompatible | Kind::Precondition | Kind::Unsupported
        );
        if !is_final {
            return;
        }
        let id = volume.as_str();
        match self.phase(Phase::Detach, || self.free_left(volume)) {
            Ok(false) => {}
            Ok(true) => tracing::info!(id, "freed the device that an earlier stage left bound"),
            Err(failure) => tracing::debug!(id, "its device may be left bound: {failure}"),
        }
    }
}
