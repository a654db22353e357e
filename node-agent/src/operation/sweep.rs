//! What a killed agent left bound: freed after the next one has started, or when a stage of the
//! volume is refused for good.
//!
//! A device that was bound for a raw volume and not yet shown stays bound when the agent dies
//! there. The volume's next stage or unstage finds it; but a stage may be refused before that,
//! and then nobody would come again, while the volume counts as attached. The start frees nothing
//! while another process has the device open or the folder locked, as a dying agent has.

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::Node;
use super::context::Context;
use super::phase::Phase;
use crate::device::Folder;
use crate::kernel::Kernel;
use crate::mounts::Covered;

impl<K: Kernel> Node<K> {
    /// Takes the lock of the volumes' folder, which stays with this agent to the end; whether no
    /// other process has it. Without it nothing may be freed that no call names: another agent may
    /// be about to show such a device.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn is_alone(&self) -> Result<bool, Failure> {
        match self.transport.folder() {
            Some(folder) => Ok(folder.is_ours_alone(&self.kernel)?),
            None => Ok(true),
        }
    }

    /// The devices that may have been left attached, by number, and the volumes they may belong to:
    /// attached for good under that name, and noted nowhere. Asks no device.
    ///
    /// # Errors
    /// What the kernel refused.
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

    /// Frees one of [`Node::remnants`], if it is the volume's and nothing mounts, binds or has it
    /// open, as part of the volume's own job. Whether it did.
    ///
    /// # Errors
    /// What the kernel refused. It is then left to the volume's own calls.
    pub(crate) fn free_remnant(&self, number: u32, volume: &VolumeId) -> Result<bool, Failure> {
        let Some(folder) = self.transport.folder() else {
            return Ok(false);
        };
        Ok(!self.is_noted(folder, number, volume)? && self.free_unnoted(folder, number, volume)?)
    }

    /// Whether the device shows where the index knows of it.
    fn is_noted(
        &self,
        folder: &Folder<K>,
        number: u32,
        volume: &VolumeId,
    ) -> Result<bool, Failure> {
        let dev = folder.dev_of(&self.kernel, number);
        let shown = self.mounts().others(volume, dev, &[])?;
        Ok(!shown.is_empty())
    }

    /// [`Node::free_remnant`] of one that is not [`Node::is_noted`].
    fn free_unnoted(
        &self,
        folder: &Folder<K>,
        number: u32,
        volume: &VolumeId,
    ) -> Result<bool, Failure> {
        let kernel = &self.kernel;
        let Some(remnant) = folder.remnant(kernel, volume, number)? else {
            return Ok(false);
        };
        // What the index does not know of is in the table: a bind beneath another mount, say.
        let shown = Covered::new(kernel, &self.transport, remnant.dev(kernel)?).paths(&[])?;
        Ok(shown.is_empty() && remnant.release_unused(kernel)?)
    }

    fn free_left(&self, volume: &VolumeId) -> Result<bool, Failure> {
        let kernel = &self.kernel;
        let Some(folder) = self.transport.folder() else {
            return Ok(false);
        };
        for number in folder.remnants_of(kernel, volume)? {
            // The folder's lock is taken, and stays, only where there is something to free.
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
    /// Frees what an earlier stage left bound, after one of the volume was refused so that the
    /// caller does not come again. By the rules of [`Node::free_remnant`]; on a failure it is left.
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
