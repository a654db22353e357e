//! Checks that refuse to attach, detach or free a device while it is mounted elsewhere.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::{Covered, Mounts};
use crate::device::{Intent, Label, OpenDevice, Storage, Verdict};
use crate::kernel::{self, Dev, FileKind, Kernel, Stat};

impl<K: Kernel> Mounts<'_, K> {
    /// Returns the device that is attached for the volume but not mounted. If no device is
    /// attached, locks the volume's file and returns `None`. A bind mount does not keep its device
    /// busy, so this also searches the index for mounts of the device, and for a raw device the
    /// whole mount table.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` while the device is mounted; `ABORTED` while another process
    /// uses the storage.
    pub(crate) fn left(
        &self,
        volume: &VolumeId,
        storage: &Storage<K>,
    ) -> Result<Option<OpenDevice<K>>, Failure> {
        let Some(device) = storage.left(self.kernel)? else {
            return Ok(None);
        };
        let dev = device.dev(self.kernel)?;
        self.refuse_others(volume, dev)?;
        // A device without AUTOCLEAR may be a raw device; with AUTOCLEAR, it belongs to a
        // filesystem.
        if device.is_kept() {
            self.refuse_shown(volume, dev, &[])?;
        }
        Ok(Some(device))
    }

    /// Refuses to treat a volume as unstaged while a mount uses the volume's old file, which was
    /// removed or moved since.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` with the path; otherwise the kernel's error.
    pub(crate) fn refuse_stale(&self, volume: &VolumeId) -> Result<(), Failure> {
        for path in self.may_be_of(volume)? {
            let Some(stat) = self.kernel.look(&path)?.filter(|stat| stat.mount_root) else {
                continue;
            };
            let (_, verdict) = self.verdict(volume, &path, &stat, Intent::TakeDown)?;
            if let Verdict::Stale(_) = verdict {
                let why = self.transport.replaced(volume, &path);
                return Err(Failure::precondition(why));
            }
        }
        Ok(())
    }

    /// Refuses to treat a volume as unstaged while a bind mount shows its removed disk, because
    /// that bind mount would show the next disk that gets the device number. Searches only the
    /// index, so it misses bind mounts by other processes and, after a restart of the agent, bind
    /// mounts of a disk that is still removed.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` with the path; otherwise the kernel's error.
    pub(crate) fn refuse_removed(&self, volume: &VolumeId) -> Result<(), Failure> {
        let is_named = |label: &Label| self.transport.is_named(volume, label);
        for path in self.index.said_of(volume, is_named) {
            let is_bind = |stat: &Stat| stat.mount_root && stat.kind == FileKind::BlockDevice;
            let Some(stat) = self.kernel.look(&path)?.filter(is_bind) else {
                continue;
            };
            if !self.is_made_for(volume, &path, &stat)? {
                continue;
            }
            let (_, verdict) = self.verdict(volume, &path, &stat, Intent::TakeDown)?;
            if let Verdict::Removed = verdict {
                let why = self.transport.replaced(volume, &path);
                return Err(Failure::precondition(why));
            }
        }
        Ok(())
    }

    /// Whether the raw device that is bound at `path` was bound for the volume, during any of its
    /// attachments.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_made_for(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<bool, Failure> {
        Ok(self.index.is_noted_for(path, stat, volume) || self.is_labelled(volume, path, stat)?)
    }

    /// Returns the paths at which raw devices may be bound for the volume, during any of its
    /// attachments: the recorded paths, and the paths whose label in the mount table names the
    /// volume.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    pub(crate) fn made_for(&self, volume: &VolumeId) -> kernel::Result<Vec<PathBuf>> {
        let is_named = |label: &Label| self.transport.is_named(volume, label);
        let mut paths = self.index.said_of(volume, is_named);
        for line in self.kernel.mounts()? {
            let is_it = Label::read(&line.root).is_some_and(|label| is_named(&label));
            if is_it && !paths.contains(&line.point) {
                paths.push(line.point);
            }
        }
        Ok(paths)
    }

    /// Refuses a target that was bound for a different volume, or for an earlier attachment of this
    /// volume. The target's device number now belongs to this volume, and all bind mounts of a
    /// device number show the same device, so only its label distinguishes the target from the
    /// staged mount.
    ///
    /// # Errors
    /// Returns `ALREADY_EXISTS` with the target path; otherwise the kernel's error.
    pub(crate) fn refuse_left_over(
        &self,
        volume: &VolumeId,
        target: (&Path, &Stat),
        staged: (&Path, &Stat),
    ) -> Result<(), Failure> {
        if self.label(target.0, target.1)? == self.label(staged.0, staged.1)? {
            return Ok(());
        }
        Err(Failure::incompatible(format!(
            "target_path: the mount at {} was made for another volume, or before the device of \
             volume {volume} was detached by force; unpublish it first",
            target.0.display()
        )))
    }

    /// Refuses a device that should be unused but is mounted or bound.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` while the device is mounted at a recorded path; otherwise the
    /// kernel's error.
    pub(crate) fn refuse_others(&self, volume: &VolumeId, dev: Dev) -> Result<(), Failure> {
        match self.others(volume, dev, &[])?.first() {
            None => Ok(()),
            Some(path) => Err(Failure::precondition(format!(
                "volume {volume}: staged or published at {}; unpublish and unstage it first",
                path.display()
            ))),
        }
    }

    /// Refuses to unbind a raw device that is still bound elsewhere. Must be called right before
    /// the device is unbound: a bind mount does not keep its device bound, so any remaining bind
    /// mount would show the next volume that gets the device's number.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` while the mount table contains the device at any path other
    /// than `except` and its mirrors. Ignores paths that were recorded for a different volume,
    /// because the device at such a path was detached by force, and its number now belongs to this
    /// volume. Returns the kernel's error if a check fails.
    pub(crate) fn refuse_shown(
        &self,
        volume: &VolumeId,
        device: Dev,
        except: &[&Path],
    ) -> Result<(), Failure> {
        let shown = Covered::new(self.kernel, self.transport, volume, device).paths(except)?;
        let is_ours = |path: &&PathBuf| !self.index.is_noted_for_another(path, volume);
        let Some(path) = shown.iter().find(is_ours) else {
            return Ok(());
        };
        Err(Failure::precondition(format!(
            "volume {volume}: its device is still bound at {}, which would show the next volume \
             that gets the device; unpublish the volume there, or umount that path by hand",
            path.display()
        )))
    }

    /// Refuses a path where a mount of the volume exists but is hidden by another mount.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if such a mount exists; the message names the request's
    /// `field`. Returns the kernel's error if the check fails.
    pub(crate) fn refuse_covered(
        &self,
        field: &str,
        volume: &VolumeId,
        path: &Path,
    ) -> Result<(), Failure> {
        if !self.is_covered(volume, path)? {
            return Ok(());
        }
        Err(Failure::precondition(format!(
            "{field}: volume {volume} is mounted at {}, under another mount; unmount that first",
            path.display()
        )))
    }
}
