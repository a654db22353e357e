//! Proving that a mount is the volume's, and what of it.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::Node;
use super::behind::device_behind;
use super::phase::{Phase, phase};
use super::stage::openers_unchecked;
use crate::device::{Held, Purpose, Storage, Verdict};
use crate::kernel::{Dev, FileKind, Kernel, MountFacts, Patience, Stat, failed_busy, while_busy};

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

    /// What that device is to the volume.
    ///
    /// # Errors
    /// As [`Transport::verdict`](crate::device::Transport).
    pub(super) fn verdict(&self, volume: &VolumeId, dev: Dev) -> Result<Verdict<K>, Failure> {
        self.transport.verdict(&self.kernel, volume, dev)
    }

    /// [`Node::verdict`], for what is to be taken away.
    ///
    /// # Errors
    /// As [`Node::verdict`].
    pub(super) fn verdict_of_old(
        &self,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<Verdict<K>, Failure> {
        self.transport.verdict_of_old(&self.kernel, volume, dev)
    }

    /// A device for the volume: a new one, or the one that is attached for it already without being
    /// staged or published here.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` naming the path while the volume is mounted anywhere; `ABORTED` while
    /// somebody else has it.
    pub(super) fn attach(
        &self,
        volume: &VolumeId,
        storage: Storage<K>,
        purpose: Purpose,
    ) -> Result<Held<K>, Failure> {
        let device = phase(Phase::Attach, || {
            let left = self.left(volume, &storage)?;
            storage.hold(&self.kernel, left, purpose)
        })?;
        if !device.is_checked() {
            openers_unchecked(self.transport.path());
        }
        Ok(device)
    }

    /// Makes sure that no device is attached for the volume; what a crash left so is detached.
    ///
    /// # Errors
    /// As [`Node::attach`].
    pub(super) fn detach(&self, volume: &VolumeId) -> Result<(), Failure> {
        let storage = match self.transport.find_if_any(&self.kernel, volume) {
            Ok(Some(storage)) => storage,
            Ok(None) => return Ok(()),
            Err(failure) => return self.detach_unread(volume, failure),
        };
        phase(Phase::Detach, || match self.left(volume, &storage)? {
            None => Ok(()),
            Some(left) => storage.free(&self.kernel, left),
        })
    }

    /// [`Node::detach`], where the volume's storage could not be opened: nobody can unmount and
    /// mend a disk while a volume of it is staged. Without its lock, a device is detached only if
    /// the mount table shows it nowhere.
    fn detach_unread(&self, volume: &VolumeId, failure: Failure) -> Result<(), Failure> {
        let (kernel, transport) = (&self.kernel, &self.transport);
        if failure.kind != Kind::System || !transport.is_unreadable(kernel, volume)? {
            return Err(failure);
        }
        let detach = |device: Held<K>| {
            let dev = device.dev(kernel)?;
            self.refuse_others(volume, dev)?;
            self.refuse_shown(volume, dev, &[])?;
            device.refuse_claimed(kernel)?;
            phase(Phase::Detach, || device.release(kernel, volume))
        };
        match transport.unread(kernel, volume, detach)? {
            true => Ok(()),
            false => Err(failure),
        }
    }

    /// The device that is attached for the volume without being mounted. A bind mount of a device
    /// does not keep it busy, so the mounts are asked for and not only the device: those that are
    /// noted, and for a raw device the whole table.
    fn left(&self, volume: &VolumeId, storage: &Storage<K>) -> Result<Option<Held<K>>, Failure> {
        let Some(device) = storage.left(&self.kernel)? else {
            return Ok(None);
        };
        let dev = device.dev(&self.kernel)?;
        self.refuse_others(volume, dev)?;
        // One that goes with its last user is a filesystem's.
        if device.is_kept() {
            self.refuse_shown(volume, dev, &[])?;
        }
        Ok(Some(device))
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
        Ok(match self.verdict_of_old(volume, dev)? {
            Verdict::Ours(_) | Verdict::Stale(_) => true,
            Verdict::Unbound => stat.kind == FileKind::BlockDevice,
            Verdict::Foreign => false,
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
        match self.verdict(volume, device)? {
            Verdict::Ours(_) => {
                self.index.note(path, stat, device, volume);
                Ok(Some(device))
            }
            Verdict::Stale(_) | Verdict::Unbound | Verdict::Foreign => Ok(None),
        }
    }
}
