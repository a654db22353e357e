//! `NodeUnpublishVolume`: removes the mount of a volume from a pod's target path, and the path.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::Unpublish;

use super::{FS_TYPES, Question, RemoteNode, Seen, Step};
use crate::kernel::{Cause, FileKind, Kernel, MountEntry, RemoteCall};

/// The next step, by what the kernel shows now: also after a helper was killed, which may have
/// unmounted all the same. With `lazily`, the mount leaves its path whatever uses it. Never
/// `MNT_FORCE`: it would end writes to all volumes of the server.
///
/// # Errors
/// `FAILED_PRECONDITION` if the mount there is not the volume's, if it would take another mount
/// along, or if the path hides files.
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
    if lazily {
        refuse_nested(node, request, &seen)?;
    }
    let path = target.to_path_buf();
    Ok(Step::Ask(Question {
        server: seen.server(),
        call: match lazily {
            true => RemoteCall::Detach(path),
            false => RemoteCall::Unmount(path),
        },
    }))
}

/// `MNT_DETACH` would take along what is mounted inside the volume. That may be of the volume: the
/// kernel mounts further exports of the server by itself, where a user enters them.
fn refuse_nested<K: Kernel>(
    node: &RemoteNode<K>,
    request: &Unpublish,
    seen: &Seen,
) -> Result<(), Failure> {
    let target = &request.target;
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(());
    };
    // As the table of mounts shows it, without links. Nothing is looked up in the volume.
    let shown = node.kernel.real(parent)?.map(|parent| parent.join(name));
    let shown = shown.unwrap_or_else(|| target.to_path_buf());
    let mounts = node.kernel.mounts()?;
    let nested = mounts.iter().find(|mount| {
        mount.point != shown && mount.point.starts_with(&shown) && !seen.contains(mount)
    });
    match nested {
        None => Ok(()),
        Some(nested) => Err(Failure::precondition(format!(
            "target_path: volume {} is in use, and {} ({}) is mounted inside it, at {}; unmount \
             that first",
            request.id,
            nested.source.display(),
            nested.fs_type,
            nested.point.display()
        ))),
    }
}

impl Seen {
    /// Whether it is a further export of the server, in the volume's directory.
    fn contains(&self, mount: &MountEntry) -> bool {
        let directory = self.source.source.to_string_lossy();
        let inside = mount.source.to_string_lossy();
        let inside = inside.strip_prefix(directory.trim_end_matches('/'));
        FS_TYPES.contains(&mount.fs_type.as_str())
            && inside.is_some_and(|rest| rest.starts_with('/'))
    }
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
