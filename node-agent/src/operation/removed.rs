//! Unmounts filesystems of volumes whose disk was removed while they were staged.

use belay_server::call::Failure;
use belay_server::request::{Unstage, VolumeId};

use super::unstage::unmount_removed;
use super::{Context, Node};
use crate::device::{Intent, Verdict};
use crate::kernel::{Dev, Kernel};

impl<K: Kernel> Node<K> {
    /// Whether the disk behind a mount was removed. Returns `false` for a disk that is only
    /// offline, because it may return with the same number. Returns `true` for an anonymous device
    /// number: the disk of this btrfs was removed before the agent started.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(super) fn is_disk_gone(&self, volume: &VolumeId, dev: Dev) -> Result<bool, Failure> {
        Ok(dev.is_anonymous() || self.mounts().is_unplugged(volume, dev)?)
    }
}

/// Returns the filesystems that are mounted at staging paths of the kubelet and whose disk was
/// removed. Reads sysfs, but no disk.
///
/// Raw devices are not included, because the next NodeStageVolume call for such a volume unmounts
/// the old bind mount.
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
        // After a restart, the index does not contain the volume of the mount, but the disk may
        // have a name in `/dev/belay`.
        let Some(id) = noted.or_else(|| node.transport.volume_on(dev)) else {
            continue;
        };
        if node.mounts().is_unplugged(&id, dev)? {
            removed.push(Unstage { id, staging });
        }
    }
    Ok(removed)
}

/// Unmounts one of the filesystems that [`removed`] returns. First checks that the disk has not
/// returned and is not mounted elsewhere. Returns whether the filesystem was unmounted. May block
/// until the kernel has completed the I/O to the disk.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` while the disk is mounted elsewhere, for example for a pod, or if
/// the mount table may not list all mounts of the kubelet; otherwise the kernel's error.
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
    cx.close_removed(id, dev);
    cx.forget(id);
    Ok(true)
}
