//! Taking a volume down whose file cannot be looked at: the disk of `--loop-dir` fails, or its
//! filesystem has shut itself down. Nobody can unmount and mend it while a volume is staged.

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::Node;
use super::phase::{Phase, phase};
use super::staged::Owner;
use crate::device::Unread;
use crate::kernel::{Dev, Kernel};

impl<K: Kernel> Node<K> {
    /// [`Node::owner`], for what is to be taken away: a device of the volume whose file answers EIO
    /// counts like one whose file is gone.
    ///
    /// # Errors
    /// As [`Node::owner`], also where nothing proves without the file whose the device is.
    pub(super) fn owner_of_old(&self, volume: &VolumeId, dev: Dev) -> Result<Owner<K>, Failure> {
        let failure = match self.owner(volume, dev) {
            Err(failure) if failure.kind == Kind::System => failure,
            owner => return owner,
        };
        let Some(number) = self.kernel.loop_number(dev) else {
            return Err(failure);
        };
        if !self.loop_dir.is_unreadable(&self.kernel, volume)? {
            return Err(failure);
        }
        match Unread::at(&self.kernel, &self.loop_dir, volume, number)? {
            Unread::Ours(orphan) => Ok(Owner::FileGone(orphan)),
            Unread::Unbound => Ok(Owner::Unbound),
            Unread::Other => Ok(Owner::Other),
            Unread::Unproven => Err(failure),
        }
    }

    /// [`Node::detach`], where the volume's file could not be opened. Without its lock, a device is
    /// unbound only if the mount table shows it nowhere.
    ///
    /// # Errors
    /// `failure`, unless the reason is a dead disk; else as [`Node::detach`].
    pub(super) fn detach_unread(&self, volume: &VolumeId, failure: Failure) -> Result<(), Failure> {
        if failure.kind != Kind::System || !self.loop_dir.is_unreadable(&self.kernel, volume)? {
            return Err(failure);
        }
        for number in self.loop_dir.with_name(&self.kernel, volume)? {
            match Unread::at(&self.kernel, &self.loop_dir, volume, number)? {
                Unread::Ours(orphan) => {
                    let dev = self.kernel.stat(orphan.fd())?.rdev;
                    self.refuse_others(volume, dev)?;
                    self.refuse_shown(volume, dev, &[])?;
                    orphan.refuse_claimed(&self.kernel)?;
                    phase(Phase::Detach, || orphan.release(&self.kernel, volume))?;
                }
                Unread::Unbound | Unread::Other => {}
                Unread::Unproven => return Err(failure),
            }
        }
        Ok(())
    }
}
