//! What is to be detached and nobody unstages: a kubelet that is killed between the unpublish of a
//! volume's last target and its unstage forgets that the volume is staged. It looks for what to
//! take back in the folders of pods alone (Kubernetes 1.36, `pkg/kubelet/volumemanager`). The
//! detachment would be refused for ever, and no pod could have the volume again.

use std::path::PathBuf;

use belay_server::call::Failure;
use belay_server::request::{AbsPath, Unstage, VolumeId};

use super::context::{Context, operation};
use super::pending::is_wanted;
use super::phase::{Operation, Phase, Progress};
use super::{Node, unstage};
use crate::device::Verdict;
use crate::kernel::Kernel;
use crate::mounts::{Covered, block_path};

/// Unstages a volume that is wanted for detachment, if all that is left of it is where the kubelet
/// has its volumes staged, or a device that shows nowhere. Whatever a pod has is left alone.
///
/// # Errors
/// Those of [`unstage`].
pub(crate) fn release<K: Kernel>(
    node: &Node<K>,
    progress: &Progress,
    volume: &VolumeId,
) -> Result<(), Failure> {
    operation(node, progress, Operation::Unstage, |cx| run(cx, volume))
}

fn run<K: Kernel>(cx: &Context<'_, K>, volume: &VolumeId) -> Result<(), Failure> {
    if !is_wanted(cx, volume)? || !cx.sees_all_mounts()? {
        return Ok(());
    }
    let id = volume.as_str();
    match left(cx, volume)? {
        Left::Nothing => Ok(()),
        Left::Device(Verdict::Stale(device)) => {
            device.refuse_claimed(&cx.kernel)?;
            cx.phase(Phase::Detach, || device.release(&cx.kernel))
        }
        Left::Device(device) => {
            drop(device);
            cx.detach(volume)
        }
        Left::Staged(staging) => {
            let path = staging.display();
            tracing::warn!(
                id,
                "unstaging {path}: a detach is pending, and the kubelet has forgotten the volume"
            );
            let id = volume.clone();
            unstage::run(cx, &Unstage { id, staging })
        }
        Left::Shown(path) => {
            let shown = path.display();
            tracing::info!(
                id,
                "a detach is pending, and {shown} still shows the volume"
            );
            cx.pending.add(volume, path);
            Ok(())
        }
    }
}

/// What the node has of a volume.
enum Left<K: Kernel> {
    /// Not even a device.
    Nothing,
    /// A device that is mounted nowhere.
    Device(Verdict<K>),
    /// It is where the kubelet stages it, and only there.
    Staged(AbsPath),
    /// It is here as well, or only.
    Shown(PathBuf),
}

fn left<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> Result<Left<K>, Failure> {
    let kernel = &node.kernel;
    let is_mounted = |dev| node.index.has(dev);
    let verdict = node.transport.left(kernel, volume, is_mounted)?;
    let Some(device) = verdict.held().map(|held| held.dev(kernel)).transpose()? else {
        return Ok(Left::Nothing);
    };
    let mut shown = node.mounts().others(volume, device, &[])?;
    let mut covered = Covered::new(kernel, &node.transport, device);
    let Some(first) = shown.pop() else {
        let nowhere = covered.paths(&[])?.into_iter().next();
        return Ok(nowhere.map_or(Left::Device(verdict), Left::Shown));
    };
    let Some(kubelet_dir) = &node.kubelet_dir else {
        return Ok(Left::Shown(first));
    };
    let all = shown.iter().chain([&first]);
    let Some(staging) = all
        .into_iter()
        .find_map(|path| kubelet_dir.staging_of(node.transport.driver(), path))
    else {
        return Ok(Left::Shown(first));
    };
    // The folder of the kubelet may have two names on a node, and its mounts show at both.
    let raw = block_path(&staging);
    let elsewhere = node.mounts().others(volume, device, &[&staging, &raw])?;
    let covered = covered.paths(&[&staging, &raw])?;
    Ok(match elsewhere.into_iter().chain(covered).next() {
        None => Left::Staged(staging),
        Some(path) => Left::Shown(path),
    })
}
