//! `NodeUnpublishVolume`: unmounts a volume from a pod's target path, and removes the path.

use std::path::Path;

use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::Unpublish;

use super::{FS_TYPES, HelperRequest, RemoteNode, Step};
use crate::kernel::{Cause, FileKind, Kernel, RemoteCall};

/// Returns the next step. The step depends only on the mounts that the kernel shows now, because a
/// helper process may have unmounted the volume although it was killed. If an earlier unmount has
/// `failed`, the next step detaches the mount from its path even if the mount is in use
/// (`MNT_DETACH`). Never uses `MNT_FORCE`, which would abort the writes of all volumes of the
/// server.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the mount is not the volume's, if detaching it would also
/// detach a foreign mount, or if the target directory contains files.
pub(crate) fn unpublish<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Unpublish,
    failed: Option<&Failure>,
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
    if let Some(failed) = failed {
        refuse_nested(node, request, failed)?;
    }
    let path = target.to_path_buf();
    Ok(Step::Ask(HelperRequest {
        server: seen.server(),
        call: match failed {
            Some(_) => RemoteCall::Detach(path),
            None => RemoteCall::Unmount(path),
        },
    }))
}

/// Refuses to detach a volume if `MNT_DETACH` would also detach a foreign mount inside the volume.
/// A mount is foreign if it is not NFS, or if it is a volume that this process has published. Any
/// other NFS mount may belong to the volume: when a process enters a nested export or a referral,
/// the kernel automatically mounts the source that the server names.
fn refuse_nested<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Unpublish,
    failed: &Failure,
) -> Result<(), Failure> {
    let target = &request.target;
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(());
    };
    // Resolve the symlinks in the path of the target's parent, since the mount table lists paths
    // without symlinks. Do not resolve names inside the volume, which might wait for the server.
    let shown = node.kernel.real(parent)?.map(|parent| parent.join(name));
    let shown = shown.unwrap_or_else(|| target.to_path_buf());
    let mounts = node.kernel.mounts()?;
    let nested = mounts.iter().find(|mount| {
        let inside = mount.point.strip_prefix(&shown).ok();
        inside
            .filter(|inside| !inside.as_os_str().is_empty())
            .is_some_and(|inside| {
                !FS_TYPES.contains(&mount.fs_type.as_str())
                    || [&mount.point, &target.join(inside)]
                        .iter()
                        .any(|path| node.targets.has(path))
            })
    });
    let Some(nested) = nested else {
        return Ok(());
    };
    let why = match failed.kind {
        Kind::Busy => "is in use",
        Kind::Timeout => "was not unmounted in time",
        _ => "could not be unmounted",
    };
    let refused = Failure::precondition(format!(
        "target_path: volume {} {why}, and {} ({}) is mounted inside it, at {}; unmount that first",
        request.id,
        nested.source.display(),
        nested.fs_type,
        nested.point.display()
    ));
    // The killed helper process may still unmount the volume.
    Err(match failed.certainty {
        Certainty::MayBeRunning => refused.may_be_running(),
        _ => refused,
    })
}

/// Removes the directory that NodePublishVolume created, if the directory is empty.
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
