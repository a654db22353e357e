//! Frees devices that a killed agent left bound: after the next start, or when a stage of the
//! volume is refused with a final code.
//!
//! A device that was bound for a raw volume and not yet mounted stays bound if the agent crashes at
//! that point. The volume's next stage or unstage finds it; but a stage may be refused before that,
//! and then no further call comes, while the volume counts as attached. The start frees nothing
//! while another process has the device open or the directory locked, such as an agent that is
//! still exiting.

use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::{Context, Node};
use crate::device::{Label, VolumeDir};
use crate::kernel::Kernel;
use crate::mounts::Covered;
use crate::work::Phase;

impl<K: Kernel> Node<K> {
    /// Reads the names in `/dev/belay`, which show the disk of each volume. Removes the names that
    /// a killed agent has left of devices that are detached: they would lead to other volumes. A
    /// name that remains does no more harm than that.
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

    /// Takes the lock of the volumes' directory, which this agent holds until it ends; whether no
    /// other process has it. Without it, only devices that a call names are freed: another agent
    /// may be about to bind the others.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_alone(&self) -> Result<bool, Failure> {
        match self.transport.folder() {
            Some(folder) => Ok(folder.is_ours_alone(&self.kernel)?),
            None => Ok(true),
        }
    }

    /// The devices that may have been left attached, by number, with the volumes that they may
    /// belong to: bound without AUTOCLEAR under that name, and not in the index. Queries no device.
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

    /// Frees one of [`Node::remnants`], as part of the volume's own job, if it is the volume's, is
    /// not mounted or bound, and no process has it open. Returns whether it did.
    ///
    /// # Errors
    /// Returns the kernel's error. The device is then left to the volume's own calls.
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

    /// Frees a device as [`Node::free_remnant`] does, if it is not [`Node::is_noted`].
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
        // The table also has mounts that the index lacks, such as a bind hidden by another mount.
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
            // The directory is locked, for the lifetime of the agent, only if there is a device to
            // free.
            if !self.is_noted(folder, number, volume)?
                && self.is_alone()?
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
    /// with a final code. By the rules of [`Node::free_remnant`]; on a failure the device stays.
    pub(super) fn free_refused(&self, volume: &VolumeId, refusal: &Failure) {
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
