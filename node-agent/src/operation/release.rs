//! Unstages volumes with a pending detach that the kubelet will not unstage: a kubelet that is
//! killed between the last unpublish of a volume and its unstage no longer knows that the volume is
//! staged, since it searches only the directories of pods (Kubernetes 1.36,
//! `pkg/kubelet/volumemanager`). The detach would be refused forever, and no pod could use the
//! volume again.

use std::path::PathBuf;

use belay_server::call::Failure;
use belay_server::request::{AbsPath, Unstage, VolumeId};

use super::context::Context;
use super::pending::is_wanted;
use super::unstage;
use crate::device::Verdict;
use crate::kernel::Kernel;
use crate::mounts::{Covered, block_path};

/// Unstages a volume with a pending detach if its only mount is where the kubelet stages volumes,
/// or if its device is not mounted at all. Mounts of pods are left alone.
///
/// # Errors
/// Those of [`unstage`].
pub(crate) fn release<K: Kernel>(cx: &Context<'_, K>, volume: &VolumeId) -> Result<(), Failure> {
    if !is_wanted(cx, volume)? || !cx.sees_all_mounts()? {
        return Ok(());
    }
    let id = volume.as_str();
    match left(cx, volume)? {
        Left::Nothing => Ok(()),
        Left::Device(Verdict::Stale(device)) => {
            device.refuse_claimed(&cx.kernel)?;
            cx.release_raw(volume, device)
        }
        Left::Device(device) => {
            drop(device);
            cx.detach(volume)
        }
        Left::Staged(staging) => {
            let path = staging.display();
            tracing::warn!(
                id,
                "unstaging {path}: a detach is pending, and the kubelet does not know the volume"
            );
            let id = volume.clone();
            unstage::unstage(cx, &Unstage { id, staging })
        }
        Left::Shown(path) => {
            let shown = path.display();
            tracing::info!(
                id,
                "a detach is pending, and the volume is still mounted at {shown}"
            );
            cx.pending.add(volume, path);
            Ok(())
        }
    }
}

/// The remains of a volume on the node.
enum Left<K: Kernel> {
    /// Neither a mount nor a device.
    Nothing,
    /// A device without a mount.
    Device(Verdict<K>),
    /// A mount where the kubelet stages it, and no other.
    Staged(AbsPath),
    /// Another mount.
    Shown(PathBuf),
}

fn left<K: Kernel>(cx: &Context<'_, K>, volume: &VolumeId) -> Result<Left<K>, Failure> {
    let kernel = &cx.kernel;
    let is_mounted = |dev| cx.mounts().is_mounted(dev).unwrap_or(false);
    let verdict = cx.transport.left(kernel, volume, is_mounted)?;
    let Some(device) = verdict.held().map(|held| held.dev(kernel)).transpose()? else {
        return Ok(Left::Nothing);
    };
    cx.unmount_orphans(volume, device)?;
    let mut shown = cx.mounts().others(volume, device, &[])?;
    let mut covered = Covered::new(kernel, &cx.transport, volume, device);
    let Some(first) = shown.pop() else {
        let nowhere = covered.paths(&[])?.into_iter().next();
        return Ok(nowhere.map_or(Left::Device(verdict), Left::Shown));
    };
    let Some(kubelet_dir) = &cx.kubelet_dir else {
        return Ok(Left::Shown(first));
    };
    let all = shown.iter().chain([&first]);
    let Some(staging) = all
        .into_iter()
        .find_map(|path| kubelet_dir.staging_of(cx.transport.driver(), path))
    else {
        return Ok(Left::Shown(first));
    };
    // The kubelet's directory may have two paths on a node, and its mounts appear at both.
    let raw = block_path(&staging);
    let elsewhere = cx.mounts().others(volume, device, &[&staging, &raw])?;
    let covered = covered.paths(&[&staging, &raw])?;
    Ok(match elsewhere.into_iter().chain(covered).next() {
        None => Left::Staged(staging),
        Some(path) => Left::Shown(path),
    })
}
