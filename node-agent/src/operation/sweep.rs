//! Frees devices that a killed agent left bound: after the next start, and when a stage of the
//! volume is refused with a final code.
//!
//! If the agent crashes between binding a raw volume's device and mounting it, the device stays
//! bound. The next stage or unstage of the volume finds the device. But a stage may be refused
//! before it searches for the device; then no further call comes, and the volume still counts as
//! attached. The start frees nothing while another process has the device open or the directory
//! locked, such as an agent that is still exiting.

use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::{Context, Node};
use crate::device::{Label, VolumeDir};
use crate::kernel::Kernel;
use crate::mounts::Covered;
use crate::work::Phase;

impl<K: Kernel> Node<K> {
    /// Reads the names in `/dev/belay`, which show the disk of each volume. Removes names that a
    /// killed agent has left for devices that were detached since: such a name would lead to
    /// another volume. If it cannot be removed, the name is only misleading.
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

    /// Takes the lock of the volumes' directory, which this agent then holds until it exits.
    /// Returns whether this agent holds the lock. Without the lock, only devices that a call names
    /// are freed, since another agent may be about to bind the others.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn try_lock_directory(&self) -> Result<bool, Failure> {
        match self.transport.folder() {
            Some(folder) => Ok(folder.is_ours_alone(&self.kernel)?),
            None => Ok(true),
        }
    }

    /// Returns the devices that a killed agent may have left bound: their numbers, and the volumes
    /// whose names they have. Only devices that were bound without AUTOCLEAR and that are not in
    /// the index count. Does not open a device.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn remnants(&self) -> Result<Vec<(u32, VolumeId)>, Failure> {
        let Some(folder) = self.transport.folder() else {
            return Ok(Vec::new());
        };
        if !self.sees_all_mounts()? {
            return Ok(Vec::new());
        }
        let is_noted = |dev| self.index.has(dev);
        Ok(folder.remnants(&self.kernel, is_noted)?)
    }

    /// Frees a device that [`Node::remnants`] returned, if it belongs to the volume, is neither
    /// mounted nor bound to a path, and no process has it open. Runs in a job of the volume.
    /// Returns whether the device was freed.
    ///
    /// # Errors
    /// Returns the kernel's error. The next stage or unstage of the volume then finds the device.
    pub(crate) fn free_remnant(&self, number: u32, volume: &VolumeId) -> Result<bool, Failure> {
        let Some(folder) = self.transport.folder() else {
            return Ok(false);
        };
        Ok(!self.is_noted(folder, number, volume)? && self.free_unnoted(folder, number, volume)?)
    }

    /// Whether the index has a mount of the device.
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

    /// Frees a device like [`Node::free_remnant`], but without searching the index for its mounts.
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
        // The mount table also lists mounts that the index lacks, such as a bind that is covered by
        // another mount.
        let mut shown = Covered::new(kernel, &self.transport, volume, remnant.dev(kernel)?);
        let shown = shown.paths(&[])?;
        if !shown.is_empty() {
            return Ok(false);
        }
        let name = remnant.label(kernel, self.transport.driver(), volume)?;
        let is_freed = remnant.release_unused(kernel)?;
        if let (true, Some(name)) = (is_freed, name) {
            name.remove(kernel)?;
        }
        Ok(is_freed)
    }

    fn free_left(&self, volume: &VolumeId) -> Result<bool, Failure> {
        let kernel = &self.kernel;
        let Some(folder) = self.transport.folder() else {
            return Ok(false);
        };
        for number in folder.remnants_of(kernel, volume)? {
            // Take the directory's lock only if there is a device to free, since the agent keeps
            // the lock until it exits.
            if !self.is_noted(folder, number, volume)?
                && self.try_lock_directory()?
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
    /// Frees a device that an earlier stage left bound, after a stage of the volume was refused
    /// with a final code. The conditions are the same as for [`Node::free_remnant`]. If the attempt
    /// fails, the device stays bound.
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
