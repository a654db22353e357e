//! Actions that several operations share: attaching a mount, unmounting it, and detaching its
//! device.

use std::path::{Path, PathBuf};

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::{Context, KubeletDir, Shared};
use crate::device::{OpenDevice, crypt};
use crate::kernel::{Cause, Dev, FileKind, Kernel, Patience, Stat, failed_busy, while_busy};
use crate::mounts::Covered;
use crate::work::Phase;

impl Shared {
    /// Attaches a detached mount to `path`, where nothing may be mounted.
    ///
    /// # Errors
    /// Returns `ABORTED` if something was mounted there meanwhile.
    pub(super) fn place<K: Kernel>(
        &self,
        kernel: &K,
        mount: &K::Fd,
        path: &Path,
    ) -> Result<(), Failure> {
        // Jobs of the same volume exclude each other, but jobs of two volumes may use the same
        // path. The lock prevents two such jobs from both passing the check below. Open the path
        // under the lock: a descriptor that was opened earlier would not show a mount that a
        // different volume's job has attached since.
        let placing = self.placing.lock();
        let onto = kernel.open_path(path)?;
        if kernel.stat(&onto)?.mount_root {
            return Err(Failure::busy(format!(
                "something was mounted at {} meanwhile; retry",
                path.display()
            )));
        }
        kernel.move_mount(mount, &onto)?;
        drop(placing);
        Ok(())
    }
}

impl<K: Kernel> Context<'_, K> {
    /// Attaches a detached mount to `path`, where nothing may be mounted. Call it as the last step
    /// of an operation, because a mount remains visible if a later step fails.
    ///
    /// # Errors
    /// Returns `ABORTED` if something was mounted there meanwhile.
    pub(super) fn place(&self, mount: &K::Fd, path: &Path) -> Result<(), Failure> {
        self.phase(Phase::Place, || {
            self.shared.place(&self.kernel, mount, path)
        })
    }

    /// Converts the failure of a call that mounts at `path`. Marks a kernel error as uncertain if
    /// something is mounted there: an earlier call may have mounted the volume, and after a final
    /// error the kubelet would forget that mount.
    pub(super) fn unless_mounted(&self, path: &Path, failure: Failure) -> Failure {
        let is_mounted = || match self.kernel.look(path) {
            Ok(found) => found.is_some_and(|stat| stat.mount_root),
            Err(_) => true,
        };
        match failure.kind {
            Kind::System | Kind::Quota if is_mounted() => failure.may_be_running(),
            _ => failure,
        }
    }

    /// Calls umount2(2). Retries EBUSY for a moment, because the last process with open files may
    /// be closing them.
    pub(super) fn umount(&self, path: &Path) -> crate::kernel::Result<()> {
        let umount = || self.kernel.umount(path);
        self.phase(Phase::Unmount, || {
            while_busy(&self.kernel, Patience::Moment, failed_busy, umount)
        })
    }

    /// Detaches the volume's device if one is still attached, for example after a crash of the
    /// agent.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` with the path while the volume is mounted anywhere; `ABORTED`
    /// while another process has the device open.
    pub(super) fn detach(&self, volume: &VolumeId) -> Result<(), Failure> {
        let free = || -> Result<(), Failure> {
            self.free(volume)?;
            match self.may_lose_devices() {
                true => self.mounts().refuse_removed(volume),
                false => Ok(()),
            }
        };
        unless_orphans(free, || self.unmount_orphans_named(volume))?;
        self.forget(volume);
        Ok(())
    }

    fn free(&self, volume: &VolumeId) -> Result<(), Failure> {
        match self.free_device(volume) {
            // An earlier attempt may have left a mapper open over the device.
            Err(failure) if failure.kind == Kind::Busy => match self.close_left(volume)? {
                true => self.free_device(volume),
                false => Err(failure),
            },
            freed => freed,
        }
    }

    /// Closes the mapper over the volume's device. Returns whether there was one.
    fn close_left(&self, volume: &VolumeId) -> Result<bool, Failure> {
        let storage = self.transport.find_if_any(&self.kernel, volume)?;
        let left = storage.map(|storage| self.mounts().left(volume, &storage));
        match left.transpose()?.flatten() {
            Some(left) => {
                let dev = left.dev(&self.kernel)?;
                self.phase(Phase::Detach, || self.close_over(volume, dev))
            }
            None => Ok(false),
        }
    }

    fn free_device(&self, volume: &VolumeId) -> Result<(), Failure> {
        let storage = match self.transport.find_if_any(&self.kernel, volume) {
            Ok(Some(storage)) => storage,
            Ok(None) => return self.mounts().refuse_stale(volume),
            Err(failure) => return self.detach_unread(volume, failure),
        };
        self.phase(Phase::Detach, || {
            match self.mounts().left(volume, &storage)? {
                None => self.mounts().refuse_stale(volume),
                Some(left) => {
                    if left.is_kept() {
                        self.remove_name(volume, &left);
                    }
                    storage.free(&self.kernel, left)
                }
            }
        })
    }

    /// Detaches the volume's device even if its backing file cannot be opened, because the operator
    /// can repair the filesystem with the file only after its volumes are unstaged. The file cannot
    /// be locked, so a device is detached only if the mount table does not list the device.
    fn detach_unread(&self, volume: &VolumeId, failure: Failure) -> Result<(), Failure> {
        let is_dead = failure.kind == Kind::System;
        let release = |device| self.release_unmounted(volume, device);
        match is_dead && self.transport.unread(&self.kernel, volume, release)? {
            true => Ok(()),
            false => Err(failure),
        }
    }

    /// Detaches the device of a volume's former file, which was removed or replaced. If the agent
    /// is killed during NodeUnstageVolume, after umount2(2), this device stays attached, and
    /// neither a mount nor the volume's present file leads to the device. Reads one sysfs attribute
    /// per attached device, so call it only if no mount of the volume was found.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` while the device is mounted; `ABORTED` while another process
    /// has the device open; otherwise the kernel's error.
    pub(super) fn detach_stale(&self, volume: &VolumeId) -> Result<(), Failure> {
        let is_mounted = |dev| self.is_mounted_through(dev);
        let found = self.transport.stale(&self.kernel, volume, is_mounted)?;
        match found.into_held() {
            None => Ok(()),
            Some(device) => self.release_unmounted(volume, device),
        }
    }

    /// Calls [`Context::unmount_orphans`] for the device that is still attached for the volume, if
    /// any.
    ///
    /// # Errors
    /// Returns an error if the device cannot be determined, or if the kernel refuses to unmount a
    /// bind mount of the device.
    pub(super) fn unmount_orphans_of(&self, volume: &VolumeId) -> Result<bool, Failure> {
        if self.kubelet_dir.is_none() {
            return Ok(false);
        }
        let is_mounted = |dev| self.is_mounted_through(dev);
        let left = self.transport.left(&self.kernel, volume, is_mounted)?;
        let Some(device) = left.held() else {
            return Ok(false);
        };
        let dev = device.dev(&self.kernel)?;
        let mapper = crypt::over(&self.kernel, dev)?.pop();
        self.unmount_orphans(volume, mapper.map_or(dev, |mapper| mapper.dev))
    }

    /// Whether the device, or the mapper of an encrypted volume over it, is mounted.
    fn is_mounted_through(&self, dev: Dev) -> bool {
        let is_mounted = |dev| self.mounts().is_mounted(dev).unwrap_or(false);
        let mappers = crypt::over(&self.kernel, dev).unwrap_or_default();
        is_mounted(dev) || mappers.iter().any(|mapper| is_mounted(mapper.dev))
    }

    /// Unmounts bind mounts of a raw device that the kubelet made for pods that no longer exist. If
    /// a kubelet is killed while it unmaps a raw device, the next kubelet calls only
    /// NodeUnstageVolume. Returns whether anything was unmounted.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn unmount_orphans(&self, volume: &VolumeId, dev: Dev) -> Result<bool, Failure> {
        let Some(kubelet_dir) = self.dir_of_pods()? else {
            return Ok(false);
        };
        let mut shown = Covered::new(&self.kernel, &self.transport, volume, dev);
        self.unmount_if_orphans(volume, kubelet_dir, &shown.paths(&[])?, Some(dev))
    }

    /// Unmounts bind mounts that the kubelet made for pods that no longer exist, if the volume's
    /// disk was removed. Includes bind mounts from earlier attachments of the volume. Returns
    /// whether anything was unmounted.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(super) fn unmount_orphans_named(&self, volume: &VolumeId) -> Result<bool, Failure> {
        if !self.may_lose_devices() {
            return Ok(false);
        }
        let Some(kubelet_dir) = self.dir_of_pods()? else {
            return Ok(false);
        };
        let paths = self.mounts().made_for(volume)?;
        self.unmount_if_orphans(volume, kubelet_dir, &paths, None)
    }

    /// Returns a path, other than `path`, at which the kubelet has bound a raw device for an
    /// existing pod, or at which another program has bound it. The device is staged at `path`, and
    /// its disk was removed. First unmounts bind mounts for pods that no longer exist.
    ///
    /// # Errors
    /// Returns `ABORTED` if the mount was changed meanwhile; otherwise the kernel's error.
    pub(super) fn first_elsewhere(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<Option<PathBuf>, Failure> {
        let others = || -> Result<_, Failure> {
            let found = self.mounts().elsewhere(volume, path, stat)?;
            Ok(found.ok_or_else(|| not_in_table(path))?.paths)
        };
        let mut paths = others()?;
        if !paths.is_empty()
            && let Some(kubelet_dir) = self.dir_of_pods()?
            && self.unmount_if_orphans(volume, kubelet_dir, &paths, Some(stat.rdev))?
        {
            paths = others()?;
        }
        Ok(paths.into_iter().next())
    }

    /// Returns the kubelet's directory; `None` if the directory is unknown, or if it may not show
    /// all existing pods and their mounts.
    fn dir_of_pods(&self) -> Result<Option<&KubeletDir>, Failure> {
        match self.kubelet_dir.as_deref() {
            Some(kubelet_dir) if self.sees_all_mounts()? => Ok(Some(kubelet_dir)),
            _ => Ok(None),
        }
    }

    /// Unmounts a raw device from each path in `paths` whose pod does not exist. Skips a path
    /// unless the device that is bound there has the number `dev`, or was bound for the volume in
    /// an earlier attachment, in which its disk may have had a different number. Returns whether
    /// anything was unmounted.
    fn unmount_if_orphans(
        &self,
        volume: &VolumeId,
        kubelet_dir: &KubeletDir,
        paths: &[PathBuf],
        dev: Option<Dev>,
    ) -> Result<bool, Failure> {
        let (kernel, mut is_any) = (&self.kernel, false);
        for path in paths {
            let is_bind = |stat: &Stat| stat.mount_root && stat.kind == FileKind::BlockDevice;
            let Some(stat) = kernel.look(path)?.filter(is_bind) else {
                continue;
            };
            let is_it = dev == Some(stat.rdev) || self.mounts().is_made_for(volume, path, &stat)?;
            if is_it && kubelet_dir.is_orphan(kernel, path)? {
                let (id, path) = (volume.as_str(), path.as_path());
                tracing::warn!(
                    id,
                    ?path,
                    "unmounting the target of a pod that does not exist"
                );
                match self.umount(path) {
                    // The kubelet attaches a loop device to its own bind mount, which makes the
                    // unmount fail with EBUSY. The caller then returns an error with the path.
                    Err(error) if error.cause() == Cause::Busy => continue,
                    unmounted => unmounted?,
                }
                self.index.forget(path);
                let beneath = kernel.look(path)?;
                if beneath.is_some_and(|it| it.kind == FileKind::File && it.bytes == 0) {
                    kernel.unlink(path)?;
                }
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// Detaches a device whose backing file cannot be locked, if the mount table does not list the
    /// device.
    fn release_unmounted(&self, volume: &VolumeId, device: OpenDevice<K>) -> Result<(), Failure> {
        let kernel = &self.kernel;
        let dev = device.dev(kernel)?;
        self.mounts().refuse_others(volume, dev)?;
        self.mounts().refuse_shown(volume, dev, &[])?;
        // A killed agent may have left a mapper open over the device.
        self.close_over(volume, dev)?;
        device.refuse_claimed(kernel)?;
        self.release_raw(volume, device)
    }
}

/// Runs the check `refuse`. If the check fails with `FAILED_PRECONDITION`, which means that a raw
/// device is mounted, calls `unmount` to unmount bind mounts for pods that no longer exist, and
/// repeats the check if anything was unmounted. Returns all other failures unchanged.
pub(super) fn unless_orphans<T>(
    refuse: impl Fn() -> Result<T, Failure>,
    unmount: impl FnOnce() -> Result<bool, Failure>,
) -> Result<T, Failure> {
    match refuse() {
        Err(failure) if failure.kind == Kind::Precondition && unmount()? => refuse(),
        checked => checked,
    }
}

/// Returns the error for a mount at `path` that another process has changed meanwhile.
pub(super) fn not_in_table(path: &Path) -> Failure {
    Failure::busy(format!(
        "the mount table does not have {}; retry",
        path.display()
    ))
}
