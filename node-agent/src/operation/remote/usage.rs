//! `NodeGetVolumeStats` and `NodeGetVolumeHealth`: the usage of a volume is the usage of the
//! filesystem with its directory, or of the directory's quota, as the server reports it.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::{HelperRequest, RemoteNode, ServerMount};
use crate::kernel::{Kernel, RemoteCall};

/// Returns the mount of the volume at the path, and the query for its server.
///
/// # Errors
/// Returns `NOT_FOUND` if the volume is not mounted at the path.
pub(crate) fn mounted<K: Kernel>(
    node: &RemoteNode<K>,
    volume: &VolumeId,
    path: &Path,
) -> Result<(ServerMount, HelperRequest), Failure> {
    node.admit("volume_path", path)?;
    let stat = match path.is_absolute() {
        true => node.look("volume_path", path)?,
        false => None,
    };
    let seen = match stat {
        Some(stat) => node.seen(volume, path, stat)?,
        None => None,
    };
    let seen = seen.ok_or_else(|| not_there(volume, path))?;
    let question = HelperRequest {
        server: seen.server(),
        call: RemoteCall::Usage(path.to_owned()),
    };
    Ok((seen, question))
}

/// Checks that the path still shows the mount that was there before the server was queried:
/// otherwise the answer may describe another filesystem.
///
/// # Errors
/// Returns `NOT_FOUND` if the volume was unmounted meanwhile.
pub(crate) fn still_mounted<K: Kernel>(
    node: &RemoteNode<K>,
    volume: &VolumeId,
    path: &Path,
    seen: &ServerMount,
) -> Result<(), Failure> {
    let now = node.kernel.look(path)?;
    let before = &seen.stat;
    let is_it = |now: &crate::kernel::Stat| {
        now.mount_root && now.mount_id == before.mount_id && now.is_same_root(before)
    };
    match now.is_some_and(|now| is_it(&now)) {
        true => Ok(()),
        false => Err(not_there(volume, path)),
    }
}

fn not_there(volume: &VolumeId, path: &Path) -> Failure {
    Failure::not_found(format!(
        "volume_path: volume {volume} is not mounted at {}; `belayctl where {volume}` shows its \
         mounts",
        path.display()
    ))
}
