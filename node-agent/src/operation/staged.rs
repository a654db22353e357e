//! Proving that a mount is the volume's, and what of it.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Node;
use super::behind::device_behind;
use super::phase::{Phase, phase};
use super::stage::openers_unchecked;
use crate::device::{Attached, Backing, Leftover, Orphan, loop_path};
use crate::kernel::{
    Cause, Dev, FileKind, Kernel, LoopMode, MountFacts, Open, Patience, Stat, failed_busy,
    while_busy,
};

/// The name that a raw block device is bound onto in its staging folder: the kernel's own record
/// of which device is staged there.
pub(super) fn block_path(staging: &Path) -> PathBuf {
    staging.join("device")
}

/// What to say when the mount at `path`, which `field` names, is not the volume's.
pub(super) fn something_else(field: &str, volume: &VolumeId, path: &Path) -> Failure {
    Failure::incompatible(format!(
        "{field}: something else than volume {volume} is mounted at {}",
        path.display()
    ))
}

/// What to say when the mount at `path` has a file that lost the volume's name.
pub(super) fn replaced(volume: &VolumeId, path: &Path) -> String {
    format!(
        "the file of volume {volume} was removed or replaced while it is staged, and {} has the \
         old one; delete the pods that use it here, so that it is unpublished and unstaged",
        path.display()
    )
}

/// What the device behind a mount has to do with a volume.
pub(super) enum Owner<K: Kernel> {
    /// It is the volume's, and here it is.
    Ours(Attached<K>),
    /// It was bound to the volume's file, which is gone since, or elsewhere, or replaced; for what
    /// is to be taken away, also one whose file cannot be looked at.
    FileGone(Orphan<K>),
    /// A loop device that is bound to nothing: what shows it is left over.
    Unbound,
    /// It is somebody else's.
    Other,
}

impl<K: Kernel> Owner<K> {
    /// The device and its name, if it is the volume's.
    pub(super) fn held(&self) -> Option<(&K::Fd, PathBuf)> {
        match self {
            Owner::Ours(device) => Some((device.fd(), device.path())),
            Owner::FileGone(device) => Some((device.fd(), device.path())),
            Owner::Unbound | Owner::Other => None,
        }
    }

    /// Unbinds the device, if it is the volume's.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(super) fn release(self, kernel: &K, volume: &VolumeId) -> Result<(), Failure> {
        match self {
            Owner::Ours(device) => Ok(device.release(kernel)?),
            Owner::FileGone(device) => device.release(kernel, volume),
            Owner::Unbound | Owner::Other => Ok(()),
        }
    }
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

    /// How the mount that was just seen at `path` was made.
    ///
    /// # Errors
    /// `ABORTED` when it is gone; else what the kernel refused.
    pub(super) fn facts(&self, path: &Path) -> Result<MountFacts, Failure> {
        self.kernel.statmount(path)?.ok_or_else(|| {
            Failure::busy(format!(
                "{} was unmounted by somebody meanwhile; try again",
                path.display()
            ))
        })
    }

    /// The device behind the mount on `path`, whose root `stat` describes; another number where no
    /// block device, or no single one, is behind it.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(super) fn behind(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<Dev, Failure> {
        match self.index.proven(path, stat, volume) {
            Some(device) => Ok(device),
            None => device_behind(&self.kernel, path, stat),
        }
    }

    /// Compares a device with the volume's file.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that can name no file; else what the kernel refused.
    pub(super) fn owner(&self, volume: &VolumeId, dev: Dev) -> Result<Owner<K>, Failure> {
        let kernel = &self.kernel;
        let Some(number) = kernel.loop_number(dev) else {
            return Ok(Owner::Other);
        };
        let device = match kernel.open(&loop_path(number), Open::DeviceRead) {
            Ok(device) => device,
            Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => {
                return Ok(Owner::Unbound);
            }
            Err(error) => return Err(error.into()),
        };
        if kernel.stat(&device)?.rdev != dev {
            return Ok(Owner::Other);
        }
        match self.loop_dir.name_if_any(kernel, volume)? {
            Some(backing) if backing.is_behind(kernel, &device)? => {
                Ok(Owner::Ours(Attached::held(device, backing, number)))
            }
            _ if kernel.loop_status(&device)?.is_none() => Ok(Owner::Unbound),
            Some(backing) if !backing.is_beside(kernel, &device)? => Ok(Owner::Other),
            // Another driver's volume may have the same id: its file still has the name.
            Some(_) if !self.has_lost_name(volume, number)? => Ok(Owner::Other),
            _ => Ok(match Orphan::of(kernel, volume, device, number)? {
                Some(orphan) => Owner::FileGone(orphan),
                None => Owner::Other,
            }),
        }
    }

    /// Whether the device of a mount that is known to be the volume's has another file than the
    /// one that has the volume's name now. Asks neither the device nor the disk.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(super) fn is_replaced(&self, volume: &VolumeId, dev: Dev) -> Result<bool, Failure> {
        let Some(number) = self.kernel.loop_number(dev) else {
            return Ok(false);
        };
        if !self.has_lost_name(volume, number)? {
            return Ok(false);
        }
        let file = self.kernel.look(&self.loop_dir.path_of(volume)?)?;
        Ok(file.is_some_and(|file| file.kind == FileKind::File))
    }

    /// The file of a bound device is not called as the volume is: it was renamed or deleted.
    fn has_lost_name(&self, volume: &VolumeId, number: u32) -> Result<bool, Failure> {
        let name = self.kernel.loop_file_name(number)?;
        Ok(name.is_some_and(|name| name != *volume.as_str()))
    }

    /// A loop device for the volume's file: a new one, or the one that is bound to it already
    /// without being staged or published here.
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
        let attached = phase(Phase::Attach, || match self.leftover(volume, &backing)? {
            None => Attached::attach(&self.kernel, backing, mode),
            Some(leftover) => Attached::take_over(&self.kernel, backing, leftover, mode),
        })?;
        if !attached.is_checked() {
            openers_unchecked(self.loop_dir.path());
        }
        Ok(attached)
    }

    /// Makes sure that no loop device has the volume's file; what a crash left bound is unbound.
    ///
    /// # Errors
    /// As [`Node::attach`].
    pub(super) fn detach(&self, volume: &VolumeId) -> Result<(), Failure> {
        let backing = match self.loop_dir.backing_if_any(&self.kernel, volume) {
            Ok(Some(backing)) => backing,
            Ok(None) => return Ok(()),
            Err(failure) => return self.detach_unread(volume, failure),
        };
        phase(Phase::Detach, || match self.leftover(volume, &backing)? {
            None => Ok(()),
            Some(leftover) => backing.release(&self.kernel, leftover),
        })
    }

    /// The device that is bound to the file without being mounted. A bind mount of a device does
    /// not keep it busy, so the mounts are asked for and not only the device: those that are noted,
    /// and for a raw device the whole table.
    fn leftover(
        &self,
        volume: &VolumeId,
        backing: &Backing<K>,
    ) -> Result<Option<Leftover<K>>, Failure> {
        let Some(leftover) = backing.leftover(&self.kernel)? else {
            return Ok(None);
        };
        let dev = self.kernel.stat(leftover.fd())?.rdev;
        self.refuse_others(volume, dev)?;
        // With AUTOCLEAR it goes with its last user, and is a filesystem's.
        let status = self.kernel.loop_status(leftover.fd())?;
        if status.is_some_and(|status| !status.mode.autoclear) {
            self.refuse_shown(volume, dev, &[])?;
        }
        Ok(Some(leftover))
    }

    /// For a device that should be left over.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` while it shows at a path that is noted; else what the kernel refused.
    pub(super) fn refuse_others(&self, volume: &VolumeId, dev: Dev) -> Result<(), Failure> {
        match self.index.others(&self.kernel, volume, dev, &[])?.first() {
            None => Ok(()),
            Some(path) => Err(Failure::precondition(format!(
                "volume {volume} is staged or published at {}; take it back there first",
                path.display()
            ))),
        }
    }

    /// What is mounted at `path` is the volume's, as far as taking it away goes: a raw device that
    /// is unbound, or has another file by now, is still the volume's mount if it was noted so.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(super) fn may_unmount(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<bool, Failure> {
        if let Some(noted) = self.index.noted(path, stat) {
            return Ok(noted == *volume);
        }
        let dev = self.behind(volume, path, stat)?;
        Ok(match self.owner_of_old(volume, dev)? {
            Owner::Ours(_) | Owner::FileGone(_) => true,
            Owner::Unbound => stat.kind == FileKind::BlockDevice,
            Owner::Other => false,
        })
    }

    /// umount2, which may be told that the mount is in use when it is only just not any more.
    pub(super) fn umount(&self, path: &Path) -> crate::kernel::Result<()> {
        let umount = || self.kernel.umount(path);
        phase(Phase::Unmount, || {
            while_busy(&self.kernel, Patience::Moment, failed_busy, umount)
        })
    }

    /// Attaches a detached mount to `path`, where nothing may be mounted. It is the last thing that
    /// can fail: from here on the mount is to be seen.
    ///
    /// # Errors
    /// `ABORTED` when something was mounted there meanwhile.
    pub(super) fn place(&self, mount: &K::Fd, path: &Path) -> Result<(), Failure> {
        phase(Phase::Place, || self.move_onto(mount, path))
    }

    fn move_onto(&self, mount: &K::Fd, path: &Path) -> Result<(), Failure> {
        let onto = self.kernel.open_path(path)?;
        // Volumes have their jobs, paths do not: two volumes must not pass the look together.
        let placing = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.kernel.stat(&onto)?.mount_root {
            return Err(Failure::busy(format!(
                "something was mounted at {} meanwhile; try again",
                path.display()
            )));
        }
        self.kernel.move_mount(mount, &onto)?;
        drop(placing);
        Ok(())
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
        let proven = self.index.proven(path, stat, volume);
        if !stat.mount_root || proven.is_some() {
            return Ok(proven);
        }
        let device = self.behind(volume, path, stat)?;
        match self.owner(volume, device)? {
            Owner::Ours(_) => {
                self.index.note(path, stat, device, volume);
                Ok(Some(device))
            }
            Owner::FileGone(_) | Owner::Unbound | Owner::Other => Ok(None),
        }
    }
}
