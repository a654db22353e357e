//! Devices that are bound to a volume's file, perhaps without a user, and the lock of the file.

use std::ffi::OsStr;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::bound::{Bound, Device};
use super::file::{Bearer, VolumeFile, still_open};
use super::folder::LoopDir;
use super::sysfs::{candidates, unmarked};
use crate::device::Verdict;
use crate::kernel::{self, Dev, Kernel, LoopFile, Patience, while_busy};

/// The holder of the lock of a file.
enum Owner<K: Kernel> {
    Us,
    Device(Device<K>),
    /// A device that was bound for another volume holds the lock; contains the name of the device.
    Another(Device<K>, String),
    /// Another process holds the lock. For a short time, this may be a child of the agent before
    /// its exec, or a device that is being unbound.
    Unseen,
}

impl<K: Kernel> VolumeFile<K> {
    /// Locks the file, or returns the device that holds the file's lock because an earlier
    /// operation left the device bound.
    ///
    /// # Errors
    /// Returns `ABORTED` if another process has locked the file; `FAILED_PRECONDITION` if the
    /// device of another volume has locked it.
    pub(crate) fn left(&self, kernel: &K) -> Result<Option<Device<K>>, Failure> {
        let owner = while_busy(
            kernel,
            Patience::Second,
            |owner| matches!(owner, Ok(Owner::Unseen)),
            || {
                if kernel.flock(self.fd())? {
                    return Ok(Owner::Us);
                }
                self.device(kernel)
            },
        );
        match owner? {
            Owner::Us => Ok(None),
            Owner::Device(device) => Ok(Some(device)),
            Owner::Another(device, name) => Err(Failure::precondition(format!(
                "{} is the file of volume {name}, which has it on {}; it was moved here while it \
                 was in use: move it back, and restore this volume's own",
                self.path().display(),
                device.path().display()
            ))),
            Owner::Unseen => {
                self.refuse_claimed(kernel)?;
                Err(Failure::busy(format!(
                    "{path} is locked by another process, such as a copy, or by a loop device \
                     that has no node in /dev: `lslocks` and `losetup --associated {path}` name it",
                    path = self.path().display()
                )))
            }
        }
    }

    /// Unbinds a device that has no known mount, and locks the file.
    ///
    /// # Errors
    /// Returns `ABORTED` while another process has the device open.
    pub(crate) fn free(&self, kernel: &K, left: Device<K>) -> Result<(), Failure> {
        left.refuse_claimed(kernel)?;
        let (path, _) = left.unbind(kernel)?;
        if while_busy(
            kernel,
            Patience::Second,
            |locked| matches!(locked, Ok(false)),
            || kernel.flock(self.fd()),
        )? {
            return Ok(());
        }
        Err(still_open(&path))
    }

    /// Returns the loop device that this file is still bound to, for example after a crash.
    fn device(&self, kernel: &K) -> kernel::Result<Owner<K>> {
        for (number, _) in candidates(kernel, self.path())? {
            if let Some((found, status)) = Device::open_bound(kernel, number)?
                && self.is_behind(&status)
            {
                return Ok(match self.name().bearer(&status) {
                    Bearer::Another => Owner::Another(found, status.name),
                    _ => Owner::Device(found),
                });
            }
        }
        Ok(Owner::Unseen)
    }
}

impl<K: Kernel> LoopDir<K> {
    /// Returns the device that is still bound for the volume. The device is [`Verdict::Stale`] if
    /// its file was removed or moved, and another file has the volume's name.
    ///
    /// # Errors
    /// Returns `ABORTED` if another process has locked the file; `FAILED_PRECONDITION` if the
    /// device of another volume has locked it; otherwise the kernel's error if sysfs or a device
    /// cannot be queried.
    pub(crate) fn left(
        &self,
        kernel: &K,
        volume: &VolumeId,
        is_mounted: impl Fn(Dev) -> bool,
    ) -> Result<Verdict<K, Bound<K>>, Failure> {
        let Some(file) = self.find_if_any(kernel, volume)? else {
            return Ok(Verdict::Unbound);
        };
        if let Some(device) = file.left(kernel)? {
            return Ok(Verdict::Ours(device.with(file)));
        }
        self.stale(kernel, volume, is_mounted)
    }

    /// Returns the bound device of the volume's old file, which was removed, renamed or replaced.
    /// The candidates come from sysfs, so no other device is queried.
    ///
    /// # Errors
    /// Returns an error if sysfs, a device or the directory cannot be queried.
    pub(crate) fn stale(
        &self,
        kernel: &K,
        volume: &VolumeId,
        is_mounted: impl Fn(Dev) -> bool,
    ) -> Result<Verdict<K, Bound<K>>, Failure> {
        let path = self.path_of(volume)?;
        for (number, found) in candidates(kernel, &path)? {
            // A device with the volume's file name that is not mounted may belong to an agent in
            // another container, whose driver has the same name.
            let has_name = found.path.file_name() == path.file_name();
            if has_name && !is_mounted(kernel.loop_dev(number)) {
                continue;
            }
            let Some((device, status)) = Device::open_bound(kernel, number)? else {
                continue;
            };
            if status.backing_dev != kernel.stat(self.fd())?.dev {
                continue;
            }
            let verdict = self.judge(volume, (device, &status), None);
            if verdict.held().is_some() {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Unbound)
    }

    /// Returns the numbers of the devices that an earlier operation may have left bound, and the
    /// volumes that each may belong to. Such a device has no AUTOCLEAR, its file is named like a
    /// volume's file, and `is_known` returns `false` for it. Does not query any device.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn remnants(
        &self,
        kernel: &K,
        is_known: impl Fn(Dev) -> bool,
    ) -> kernel::Result<Vec<(u32, VolumeId)>> {
        let mut found = Vec::new();
        for number in kernel.loop_bound()? {
            if !is_known(kernel.loop_dev(number)) {
                let file = kernel.loop_file(number)?;
                let volumes = file.iter().flat_map(volumes_kept_by);
                found.extend(volumes.map(|volume| (number, volume)));
            }
        }
        Ok(found)
    }

    /// Returns the device number of the loop device with this number.
    pub(crate) fn dev_of(&self, kernel: &K, number: u32) -> Dev {
        kernel.loop_dev(number)
    }

    /// Returns the numbers of the devices of [`LoopDir::remnants`] that may belong to the volume.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name; otherwise the kernel's error.
    pub(crate) fn remnants_of(&self, kernel: &K, volume: &VolumeId) -> Result<Vec<u32>, Failure> {
        let found = candidates(kernel, &self.path_of(volume)?)?;
        let kept = found.into_iter().filter(|(_, file)| !file.autoclear);
        Ok(kept.map(|(number, _)| number).collect())
    }

    /// Returns one of the devices of [`LoopDir::remnants`], by its number, if it belongs to the
    /// volume.
    ///
    /// # Errors
    /// Returns an error if the device or the file cannot be queried.
    pub(crate) fn remnant(
        &self,
        kernel: &K,
        volume: &VolumeId,
        number: u32,
    ) -> Result<Option<Device<K>>, Failure> {
        let kept = kernel.loop_file(number)?;
        if !kept
            .iter()
            .flat_map(volumes_kept_by)
            .any(|it| it == *volume)
        {
            return Ok(None);
        }
        let Some(file) = self.find_if_any(kernel, volume)? else {
            return Ok(None);
        };
        let Some((device, status)) = Device::open_bound(kernel, number)? else {
            return Ok(None);
        };
        // An operator may have bound a device to the file, and may be using the device.
        let is_ours = file.name().bearer(&status) == Bearer::Ours;
        let is_it = is_ours && file.is_behind(&status) && device.guard.is_kept();
        Ok(is_it.then(|| device.with(file)))
    }
}

/// Returns the volumes that the device may belong to, judged by the name of its file with and
/// without the suffix of a removed file, because a volume ID may end like this suffix. Returns no
/// volume for a device with AUTOCLEAR, because such a device has a user.
fn volumes_kept_by(file: &LoopFile) -> Vec<VolumeId> {
    let mut paths = vec![file.path.as_path(), unmarked(&file.path)];
    paths.dedup();
    let names = paths.into_iter().filter(|_| !file.autoclear);
    let names = names.filter_map(|path| path.file_name().and_then(OsStr::to_str));
    names.filter_map(|name| VolumeId::new(name).ok()).collect()
}
