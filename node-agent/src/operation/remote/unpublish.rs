//! `NodeUnpublishVolume`: removes the mount of a volume from a pod's target path, and the path.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::Unpublish;

use super::{Question, RemoteNode, Step};
use crate::kernel::{Cause, FileKind, Kernel, RemoteCall};

/// The next step, by what the kernel shows now: also after a helper was killed, which may have
/// unmounted all the same. With `lazily`, the mount leaves its path whatever uses it. Never
/// `MNT_FORCE`: it would end writes to all volumes of the server.
///
/// # Errors
/// `FAILED_PRECONDITION` if the mount there is not the volume's, or the path hides files.
pub(crate) fn unpublish<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Unpublish,
    lazily: bool,
) -> Result<Step, Failure> {
    let target = &request.target;
    node.admit("target_path", target)?;
    let Some(stat) = node.look("target_path", target)? else {
        node.targets.forget(target);
        return Ok(Step::Done);
    };
    if !stat.mount_root {
        node.targets.forget(target);
        remove(&node.kernel, target, stat.kind)?;
        return Ok(Step::Done);
    }
    let Some(seen) = node.seen(&request.id, target, stat)? else {
        return Err(Failure::precondition(format!(
            "target_path: the mount at {} is not that of volume {}; nothing was changed",
            target.display(),
            request.id
        )));
    };
    let path = target.to_path_buf();
    Ok(Step::Ask(Question {
        server: seen.server(),
        call: match lazily {
            true => RemoteCall::Detach(path),
            false => RemoteCall::Unmount(path),
        },
    }))
}

/// Removes the directory that publish created, only if it is empty.
fn remove<K: Kernel>(kernel: &K, target: &Path, kind: FileKind) -> Result<(), Failure> {
    if kind != FileKind::Directory {
        return Err(Failure::precondition(format!(
            "target_path: {} was not created by a publish; nothing was changed",
            target.display()
        )));
    }
    match kernel.rmdir(target) {
        Err(error) if error.cause() == Cause::NotEmpty => Err(Failure::precondition(format!(
            "target_path: {} contains files that were written while nothing was mounted there; \
             move them elsewhere",
            target.display()
        ))),
        Err(error) if error.cause() == Cause::Missing => Ok(()),
        removed => Ok(removed?),
    }
}
