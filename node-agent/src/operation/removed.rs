//! Filesystems of volumes whose disk was removed while they were staged.

use belay_server::call::Failure;
use belay_server::request::{Unstage, VolumeId};

use super::{Context, Node, unstage};
use crate::kernel::Kernel;

/// Returns the unstage requests for all filesystems that are mounted where the kubelet stages
/// volumes, and whose disk was removed. Waits for no disk, and queries none.
///
/// Raw devices are not among them: their next stage takes them down.
pub(crate) fn removed<K: Kernel>(node: &Node<K>) -> Vec<Unstage> {
    let Some(kubelet_dir) = node
        .kubelet_dir
        .as_ref()
        .filter(|_| node.may_lose_devices())
    else {
        return Vec::new();
    };
    let driver = node.transport.driver();
    let staged = node
        .index
        .volumes()
        .into_iter()
        .filter_map(|(path, id, device)| {
            let staging = kubelet_dir.staging_of(driver, &path)?;
            (*staging == *path).then_some((Unstage { id, staging }, device))
        });
    let is_removed =
        |id: &VolumeId, device| matches!(node.mounts().is_unplugged(id, device), Ok(true));
    staged
        .filter(|(unstage, device)| is_removed(&unstage.id, *device))
        .map(|(unstage, _)| unstage)
        .collect()
}

/// Unstages one of [`removed`], if its disk is still removed, and all mounts are seen: a mount that
/// is not seen may be a pod's.
///
/// # Errors
/// Returns the same errors as [`unstage::unstage`].
pub(crate) fn unstage_removed<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unstage,
) -> Result<(), Failure> {
    let is_it = |it: &Unstage| it.id == request.id && it.staging == request.staging;
    match removed(cx).iter().any(is_it) && cx.sees_all_mounts()? {
        true => unstage::unstage(cx, request),
        false => Ok(()),
    }
}
