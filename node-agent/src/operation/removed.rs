//! Filesystems of volumes whose disk was removed while they were staged.

use belay_server::call::Failure;
use belay_server::request::{Unstage, VolumeId};

use super::unstage::unmount_removed;
use super::{Context, Node};
use crate::device::{Intent, Verdict};
use crate::kernel::{Dev, Kernel};

impl<K: Kernel> Node<K> {
    /// Whether the disk behind a mount was removed, and does not only fail: a disk that is offline
    /// may come back with the same number. A btrfs whose disk was removed before the agent started
    /// has an anonymous number.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(super) fn is_disk_gone(&self, volume: &VolumeId, dev: Dev) -> Result<bool, Failure> {
        Ok(dev.is_anonymous() || self.mounts().is_unplugged(volume, dev)?)
    }
}

/// Returns all filesystems that are mounted where the kubelet stages volumes, and whose disk was
/// removed. Reads sysfs, but no disk.
///
/// Raw devices are not among them: their next stage takes them down.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn removed<K: Kernel>(node: &Node<K>) -> Result<Vec<Unstage>, Failure> {
    let mut removed = Vec::new();
    let Some(kubelet_dir) = &node.kubelet_dir else {
        return Ok(removed);
    };
    let driver = node.transport.driver();
    for (path, noted, dev) in node.index.mounts() {
        let staging = kubelet_dir.staging_of(driver, &path);
        let Some(staging) = staging.filter(|staging| **staging == *path) else {
            continue;
        };
        // Since a restart, the mount is not noted, but its disk may have a name in /dev/belay.
        let Some(id) = noted.or_else(|| node.transport.volume_on(dev)) else {
            continue;
        };
        if node.mounts().is_unplugged(&id, dev)? {
            removed.push(Unstage { id, staging });
        }
    }
    Ok(removed)
}

/// Unmounts one of [`removed`], if its disk is still removed and nothing else shows the disk.
/// Returns whether it did. May wait for what the kernel still does with the disk.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` while the disk is mounted elsewhere, such as for a pod, or if not
/// all mounts are seen; otherwise the kernel's error.
pub(crate) fn unmount_if_removed<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unstage,
) -> Result<bool, Failure> {
    let (id, staging) = (&request.id, &request.staging);
    let found = cx.kernel.look(staging)?;
    let Some(stat) = found.filter(|stat| stat.mount_root) else {
        return Ok(false);
    };
    let (dev, verdict) = cx.mounts().verdict(id, staging, &stat, Intent::TakeDown)?;
    if !matches!(verdict, Verdict::Removed) || !cx.is_disk_gone(id, dev)? {
        return Ok(false);
    }
    if !cx.sees_all_mounts()? {
        return Err(Failure::precondition(
            "not all mounts of the kubelet are seen, and a pod may have it",
        ));
    }
    unmount_removed(cx, request, &stat)?;
    cx.forget(id);
    Ok(true)
}
