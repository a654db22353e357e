//! Proving that a mount is the volume's, and what of it.

use std::path::{Path, PathBuf};

use belay_server::failure::Failure;
use belay_server::request::VolumeId;

use super::Node;
use super::behind::device_behind;
use crate::device::{Attached, Backing, Leftover, loop_path};
use crate::kernel::{Cause, Dev, FileKind, Kernel, LoopMode, Open, Stat, failed_busy, while_busy};

/// The name that a raw block device is bound onto in its staging folder: the kernel's own record
/// of which device is staged there.
pub(super) fn block_path(staging: &Path) -> PathBuf {
    staging.join("device")
}

/// What a mounted path has to do with a volume.
pub(super) enum Owner<K: Kernel> {
    /// It is the volume's, and here is its device.
    Ours(Attached<K>),
    /// It is a loop device with another file behind it, or with none any more.
    NotOurs,
    /// The volume's file is gone, so this loop device behind the mount cannot be compared with it.
    FileGone(Dev),
}

impl<K: Kernel> Node<K> {
    /// Looks at a path that a mount is expected on.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` naming `field` when the last component is a symlink.
    pub(super) fn look(&self, field: &str, path: &Path) -> Result<Option<Stat>, Failure> {
        let stat = self.kernel.look(path)?;
        if stat.is_some_and(|s| s.kind == FileKind::Symlink) {
            return Err(Failure::invalid(
                field,
                format!(
                    "{} is a symbolic link; links are never followed here",
                    path.display()
                ),
            ));
        }
        Ok(stat)
    }

    /// Compares the device behind the mount on `path`, whose root `stat` describes, with the
    /// volume's file.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that can name no file; else what the kernel refused.
    pub(super) fn owner(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<Owner<K>, Failure> {
        let dev = match self.index.proven(path, stat, volume) {
            Some(device) => device,
            None => device_behind(&self.kernel, path, stat)?,
        };
        let Some(number) = dev.as_loop() else {
            return Ok(Owner::NotOurs);
        };
        let Some(backing) = self.loop_dir.backing_if_any(&self.kernel, volume)? else {
            return Ok(Owner::FileGone(dev));
        };
        let device = match self.kernel.open(&loop_path(number), Open::DeviceRead) {
            Ok(device) => device,
            Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => {
                return Ok(Owner::NotOurs);
            }
            Err(error) => return Err(error.into()),
        };
        if backing.is_behind(&self.kernel, &device)? {
            Ok(Owner::Ours(Attached::held(device, backing, number)))
        } else {
            Ok(Owner::NotOurs)
        }
    }

    /// A loop device for the volume's file: a new one, or the one that a crash left bound.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` naming the path while the volume is mounted anywhere; `ABORTED` while
    /// somebody else has it.
    pub(super) fn attach(
        &self,
        volume: &VolumeId,
        backing: Backing<K>,
        mode: LoopMode,
    ) -> Result<Attached<K>, Failure> {
        match self.leftover(volume, &backing)? {
            None => Attached::attach(&self.kernel, backing, mode),
            Some(leftover) => Attached::take_over(&self.kernel, backing, leftover, mode),
        }
    }

    /// Makes sure that no loop device has the volume's file; what a crash left bound is unbound.
    ///
    /// # Errors
    /// As [`Node::attach`].
    pub(super) fn detach(&self, volume: &VolumeId) -> Result<(), Failure> {
        let Some(backing) = self.loop_dir.backing_if_any(&self.kernel, volume)? else {
            return Ok(());
        };
        match self.leftover(volume, &backing)? {
            None => Ok(()),
            Some(leftover) => backing.release(&self.kernel, leftover),
        }
    }

    /// The device that is bound to the file without being mounted. A bind mount of a device does
    /// not keep it busy, so the mounts are asked for and not only the device.
    fn leftover(
        &self,
        volume: &VolumeId,
        backing: &Backing<K>,
    ) -> Result<Option<Leftover<K>>, Failure> {
        let Some(leftover) = backing.leftover(&self.kernel)? else {
            return Ok(None);
        };
        let dev = self.kernel.stat(leftover.fd())?.rdev;
        if let Some(path) = self.index.others(&self.kernel, dev, &[])?.first() {
            return Err(Failure::precondition(format!(
                "volume {volume} is staged or published at {}; take it back there first",
                path.display()
            )));
        }
        Ok(Some(leftover))
    }

    /// umount2, which may be told that the mount is in use when it is only just not any more.
    pub(super) fn umount(&self, path: &Path) -> crate::kernel::Result<()> {
        while_busy(&self.kernel, failed_busy, || self.kernel.umount(path))
    }

    /// The volume's device, if the mount whose root `stat` describes is the volume's: known since
    /// we made it, or proven now by its device.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(super) fn prove(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<Option<Dev>, Failure> {
        if !stat.mount_root {
            return Ok(None);
        }
        if let Some(device) = self.index.proven(path, stat, volume) {
            return Ok(Some(device));
        }
        match self.owner(volume, path, stat)? {
            Owner::Ours(device) => {
                self.index.note(path, stat, device.dev(), volume);
                Ok(Some(device.dev()))
            }
            Owner::NotOurs | Owner::FileGone(_) => Ok(None),
        }
    }
}
