//! Unmounts volumes whose disk was removed while they were staged and no pod used them: a kubelet
//! that was killed has forgotten such a volume, and a node that was cut off is not asked before the
//! cloud detaches its disks. Nothing can be read from the mount or written to it.
//!
//! Only where the kubelet stages volumes, and only if the disk is mounted nowhere else.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::{Context, Node};
use crate::device::{Intent, Verdict};
use crate::kernel::{Dev, FileKind, Kernel, Stat};

/// What became of such a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cleared {
    /// There is none.
    Nothing,
    /// It was unmounted. If that was the last mount, nothing of the volume is left on the node.
    Unmounted { was_last: bool },
    /// The disk is mounted at that path as well, so nothing was changed.
    Used(PathBuf),
}

/// What is staged on removed disks.
#[derive(Clone, Debug)]
pub(crate) struct Removed {
    /// The mounts and their volumes.
    pub(crate) mounts: Vec<(VolumeId, PathBuf)>,
    /// Why another mount could not be checked.
    pub(crate) unchecked: Option<Failure>,
}

/// The volumes that are staged on a disk that was removed. Waits for no disk, and queries none.
pub(crate) fn removed<K: Kernel>(node: &Node<K>) -> Removed {
    let mut removed = Removed {
        mounts: Vec::new(),
        unchecked: None,
    };
    let (Some(kubelet_dir), true) = (&node.kubelet_dir, node.may_lose_devices()) else {
        return removed;
    };
    let driver = node.transport.driver();
    for (path, volume, device) in node.index.volumes() {
        let Some(staging) = kubelet_dir.staging_of(driver, &path) else {
            continue;
        };
        let is_removed = match *staging == *path {
            true => node.mounts().is_unplugged(&volume, device),
            false => is_left(node, &volume, &path, device),
        };
        match is_removed {
            Ok(true) => removed.mounts.push((volume, path)),
            Ok(false) => {}
            Err(failure) => removed.unchecked = Some(failure),
        }
    }
    removed
}

/// Whether the disk of a raw device was removed. Its bind does not keep its number, which another
/// disk may have by now.
fn is_left<K: Kernel>(
    node: &Node<K>,
    volume: &VolumeId,
    path: &Path,
    dev: Dev,
) -> Result<bool, Failure> {
    let Some(stat) = node.kernel.look(path)?.filter(|stat| stat.mount_root) else {
        return Ok(false);
    };
    match node.mounts().label(path, &stat)? {
        None => node.mounts().is_unplugged(volume, dev),
        Some(label) => {
            let is_its = node.transport.is_named(volume, &label);
            Ok(is_its && !label.is_current(&node.kernel)?)
        }
    }
}

/// Unmounts one of [`removed`], if nothing else shows the disk. May wait for what the kernel still
/// does with the disk.
///
/// # Errors
/// The kernel's error, also if a process uses the mount; `FAILED_PRECONDITION` if the mount table
/// does not have it.
pub(crate) fn clear<K: Kernel>(
    cx: &Context<'_, K>,
    volume: &VolumeId,
    path: &Path,
) -> Result<Cleared, Failure> {
    if !cx.may_lose_devices() || !cx.sees_all_mounts()? {
        return Ok(Cleared::Nothing);
    }
    let found = cx.kernel.look(path)?.filter(|stat| stat.mount_root);
    let Some(stat) = found else {
        // It may be under another mount.
        if !cx.mounts().is_listed(path)? {
            cx.index.forget(path);
        }
        return Ok(Cleared::Nothing);
    };
    if !is_removed(cx, volume, path, &stat)? {
        return Ok(Cleared::Nothing);
    }
    let Some(others) = cx.mounts().elsewhere(volume, path, &stat)? else {
        return Err(Failure::precondition(format!(
            "the mount table does not have {}",
            path.display()
        )));
    };
    if others.is_stacked {
        return Ok(Cleared::Used(path.to_owned()));
    }
    if let Some(other) = others.paths.into_iter().next() {
        return Ok(Cleared::Used(other));
    }
    // The file that a raw device was bound onto stays: the next stage or unstage of the volume
    // expects it.
    cx.unmount_left(volume, path, &stat)?;
    let was_last = !is_mounted(cx, volume);
    if was_last {
        cx.forget(volume);
    }
    Ok(Cleared::Unmounted { was_last })
}

/// Whether a mount that was noted for the volume is there, or may be.
fn is_mounted<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> bool {
    let may_be = |path: &Path| match node.kernel.look(path) {
        Ok(found) => found.is_some_and(|stat| stat.mount_root),
        Err(_) => true,
    };
    let mut noted = node.index.volumes().into_iter();
    noted.any(|(path, of, _)| of == *volume && may_be(&path))
}

/// Whether the mount at that path is the volume's, and its disk was removed.
fn is_removed<K: Kernel>(
    node: &Node<K>,
    volume: &VolumeId,
    path: &Path,
    stat: &Stat,
) -> Result<bool, Failure> {
    let is_its = match stat.kind {
        FileKind::BlockDevice if node.mounts().label(path, stat)?.is_some() => {
            node.mounts().is_labelled(volume, path, stat)?
        }
        _ => node.index.likely(path, stat, volume).is_some(),
    };
    if !is_its {
        return Ok(false);
    }
    let (_, verdict) = node
        .mounts()
        .verdict(volume, path, stat, Intent::TakeDown)?;
    Ok(matches!(verdict, Verdict::Removed))
}
