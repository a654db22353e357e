//! What is to be detached and nobody unstages: a kubelet that is killed between the unpublish of a
//! volume's last target and its unstage forgets that the volume is staged. It looks for what to
//! take back in the folders of pods alone (Kubernetes 1.36, `pkg/kubelet/volumemanager`). The
//! detachment would be refused for ever, and no pod could have the volume again.

use belay_server::failure::Failure;
use belay_server::request::{AbsPath, Unstage, VolumeId};

use super::{Node, unstage};
use crate::kernel::{Cause, Kernel};

/// Attribute of a volume's file (xattr(7)): the controller of `local` sets it whenever it refuses
/// to detach the volume since it is still bound here, and removes it when it attaches it.
const DETACH: &str = "user.belay.detach";

/// Unstages a volume that is wanted for detachment, if all that is left of it is where the kubelet
/// has its volumes staged. Whatever a pod has is left alone.
///
/// # Errors
/// Those of [`unstage`].
pub(crate) fn release<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> Result<(), Failure> {
    let Some(staging) = left_staged(node, volume)? else {
        return Ok(());
    };
    let (id, path) = (volume.as_str(), staging.display());
    tracing::warn!(
        id,
        "to be detached, and forgotten at {path}: it is unstaged unasked"
    );
    let id = volume.clone();
    unstage(node, &Unstage { id, staging })
}

/// Whether the volume is to be detached, by what its controller wrote at its file.
///
/// # Errors
/// What the kernel refused.
pub(crate) fn is_wanted<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> Result<bool, Failure> {
    let Some(backing) = node.loop_dir.backing_if_any(&node.kernel, volume)? else {
        return Ok(false);
    };
    match node.kernel.has_xattr(backing.fd(), DETACH) {
        Err(error) if error.cause() == Cause::Unsupported => Ok(false),
        is_wanted => Ok(is_wanted?),
    }
}

/// Where the volume is staged, if it is wanted for detachment and is shown nowhere else.
fn left_staged<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> Result<Option<AbsPath>, Failure> {
    let kernel = &node.kernel;
    let Some(kubelet_dir) = &node.kubelet_dir else {
        return Ok(None);
    };
    if !is_wanted(node, volume)? {
        return Ok(None);
    }
    let Some(backing) = node.loop_dir.backing_if_any(kernel, volume)? else {
        return Ok(None);
    };
    let Some(device) = backing.leftover(kernel)? else {
        return Ok(None);
    };
    let device = kernel.stat(device.fd())?.rdev;
    let shown = node.index.others(kernel, volume, device, &[])?;
    let staged: Option<Vec<_>> = shown
        .iter()
        .map(|path| kubelet_dir.staging_of(path))
        .collect();
    Ok(staged.and_then(|staged| staged.into_iter().next()))
}
