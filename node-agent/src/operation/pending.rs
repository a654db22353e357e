//! Volumes that the controller is deleting while they are still staged, and the mounts that block
//! the deletion.
//!
//! If a kubelet is killed between the last NodeUnpublishVolume and the NodeUnstageVolume of a
//! volume, the restarted kubelet does not know that the volume is staged, because it searches only
//! the directories of pods (Kubernetes 1.36, `pkg/kubelet/volumemanager`). The restarted kubelet
//! never unstages the volume, so the controller could never delete the volume. The agent therefore
//! unstages the volume itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::ptr;

use belay_server::call::Failure;
use belay_server::lock::Lock;
use belay_server::request::{AbsPath, Unstage, VolumeId};

use super::{Context, Node, unstage};
use crate::device::{Verdict, VolumeDir, crypt};
use crate::kernel::Kernel;
use crate::mounts::{Covered, block_path};

/// The volumes whose deletion was blocked by a mount at the last check, with the path of the mount.
#[derive(Default)]
pub(super) struct Pending(Lock<BTreeMap<VolumeId, PathBuf>>);

impl Pending {
    /// Records that the mount at `path` blocks the deletion of the volume.
    pub(super) fn add(&self, volume: &VolumeId, path: PathBuf) {
        self.0.lock().insert(volume.clone(), path);
    }
}

/// Whether the controller is deleting the volume, and waits until the volume is unstaged.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn is_wanted<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> Result<bool, Failure> {
    node.transport.is_wanted_back(&node.kernel, volume)
}

/// Returns the volumes of a disk that are being deleted but are still mounted, with the paths of
/// the mounts. `dir` is the disk's directory.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn pending<K: Kernel>(
    node: &Node<K>,
    dir: &VolumeDir<K>,
) -> Result<Vec<(VolumeId, PathBuf)>, Failure> {
    let known = node.pending.0.lock().clone();
    let mut left = Vec::new();
    for (volume, path) in known {
        let of = node.transport.folder(&node.kernel, &volume);
        if !matches!(of, Ok(Some(of)) if ptr::eq(of, dir)) {
            continue;
        }
        let is_shown = || -> Result<bool, Failure> {
            let stat = node.kernel.look(&path)?;
            Ok(stat.is_some_and(|stat| stat.mount_root)
                || node.mounts().is_covered(&volume, &path)?)
        };
        if is_wanted(node, &volume)? && is_shown()? {
            left.push((volume, path));
        } else {
            node.pending.0.lock().remove(&volume);
        }
    }
    Ok(left)
}

/// Unstages a volume that is being deleted, if the volume is mounted only at a staging path of the
/// kubelet, or if its device is attached but not mounted. Never unmounts the target of a pod that
/// exists.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the device is in use; otherwise the errors of `unstage`.
pub(crate) fn release<K: Kernel>(cx: &Context<'_, K>, volume: &VolumeId) -> Result<(), Failure> {
    if !is_wanted(cx, volume)? || !cx.sees_all_mounts()? {
        return Ok(());
    }
    let id = volume.as_str();
    match left(cx, volume)? {
        Remains::Nothing => Ok(()),
        Remains::Device(Verdict::Stale(device)) => {
            device.refuse_claimed(&cx.kernel)?;
            cx.release_raw(volume, device)
        }
        Remains::Device(device) => {
            drop(device);
            cx.detach(volume)
        }
        Remains::Staged(staging) => {
            let path = staging.display();
            tracing::warn!(
                id,
                "unstaging {path}: the volume is being deleted, and the kubelet has not unstaged it"
            );
            let id = volume.clone();
            unstage::unstage(cx, &Unstage { id, staging })
        }
        Remains::Shown(path) => {
            let shown = path.display();
            tracing::info!(
                id,
                "the volume is being deleted, and is still mounted at {shown}"
            );
            cx.pending.add(volume, path);
            Ok(())
        }
    }
}

/// Mounts and devices of a volume on the node while the volume is being deleted.
enum Remains<K: Kernel> {
    /// The volume has neither a mount nor a device.
    Nothing,
    /// A device is attached, but not mounted.
    Device(Verdict<K>),
    /// The volume is mounted only at this staging path of the kubelet.
    Staged(AbsPath),
    /// The volume is mounted at this path, which is not a staging path of the kubelet.
    Shown(PathBuf),
}

fn left<K: Kernel>(cx: &Context<'_, K>, volume: &VolumeId) -> Result<Remains<K>, Failure> {
    let kernel = &cx.kernel;
    let is_mounted = |dev| cx.mounts().is_mounted(dev).unwrap_or(false);
    let verdict = cx.transport.left(kernel, volume, is_mounted)?;
    let Some(device) = verdict.held().map(|held| held.dev(kernel)).transpose()? else {
        return Ok(Remains::Nothing);
    };
    // The mounts of an encrypted volume show its mapper.
    let mapper = crypt::over(kernel, device)?.pop();
    let device = mapper.map_or(device, |mapper| mapper.dev);
    cx.unmount_orphans(volume, device)?;
    let mut shown = cx.mounts().others(volume, device, &[])?;
    let mut covered = Covered::new(kernel, &cx.transport, volume, device);
    let Some(first) = shown.pop() else {
        let nowhere = covered.paths(&[])?.into_iter().next();
        return Ok(nowhere.map_or(Remains::Device(verdict), Remains::Shown));
    };
    let Some(kubelet_dir) = &cx.kubelet_dir else {
        return Ok(Remains::Shown(first));
    };
    let all = shown.iter().chain([&first]);
    let Some(staging) = all
        .into_iter()
        .find_map(|path| kubelet_dir.staging_of(cx.transport.driver(), path))
    else {
        return Ok(Remains::Shown(first));
    };
    // The kubelet's directory may be visible at two paths of a node; each mount in it then appears
    // at both paths.
    let raw = block_path(&staging);
    let elsewhere = cx.mounts().others(volume, device, &[&staging, &raw])?;
    let covered = covered.paths(&[&staging, &raw])?;
    Ok(match elsewhere.into_iter().chain(covered).next() {
        None => Remains::Staged(staging),
        Some(path) => Remains::Shown(path),
    })
}
