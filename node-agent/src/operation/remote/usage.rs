//! `NodeGetVolumeStats` and `NodeGetVolumeHealth`: reads the usage of a volume. The server reports
//! either the usage of the filesystem that contains the volume's directory, or the usage of the
//! directory's quota.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::{HelperRequest, RemoteNode, ServerMount};
use crate::kernel::{Kernel, RemoteCall};

/// Returns the mount of the volume at the path, and the query that a helper process must send to
/// the server.
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

/// Checks that the path still shows the mount that it showed before the query. Otherwise, the
/// server's response may describe a different filesystem.
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
