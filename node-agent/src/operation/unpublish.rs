//! `NodeUnpublishVolume`: unmounts a volume from a pod's target path, and removes the path. The
//! data of the volume is written to its disk first.
//!
//! After the unpublish, a cloud can detach the disk without an unstage: a kubelet that was killed
//! may no longer know the volume, and a node without a network connection receives no calls. The
//! data that a finished pod has written must be on the disk by then.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use belay_server::call::Failure;
use belay_server::request::Unpublish;

use super::{Context, Node, STACKED_MAX};
use crate::kernel::{Cause, Error, FileKind, Kernel, Open, Stat};
use crate::mounts::without_links;
use crate::work::Phase;

/// Unpublishes a volume. Succeeds if nothing is at the target path. Sets `was_unmounted` if it has
/// unmounted anything, even if it fails afterwards.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the mount there is not the volume's or is in use, or if the
/// target directory contains files.
pub(crate) fn unpublish<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unpublish,
    was_unmounted: &AtomicBool,
) -> Result<(), Failure> {
    let target = &request.target;
    cx.admit("target_path", target)?;
    for unmounted in 0..STACKED_MAX {
        let found = cx.mounts().look("target_path", target)?;
        if !found.is_some_and(|stat| stat.mount_root) {
            refuse_covered(cx, request, unmounted > 0)?;
        }
        match found {
            None => return Ok(()),
            Some(stat) if stat.mount_root => {
                refuse_foreign(cx, request, &stat)?;
                umount(cx, request)?;
                was_unmounted.store(true, Ordering::Relaxed);
            }
            Some(stat) => {
                return cx.phase(Phase::Remove, || remove(cx, request, &stat));
            }
        }
    }
    Err(Failure::precondition(format!(
        "target_path: more than {STACKED_MAX} mounts are stacked on {}; unmount them by hand",
        target.display()
    )))
}

/// Refuses a mount that is not the volume's: a wrong path in a request must not unmount another
/// volume.
fn refuse_foreign<K: Kernel>(
    node: &Node<K>,
    request: &Unpublish,
    stat: &Stat,
) -> Result<(), Failure> {
    if node
        .mounts()
        .may_unmount(&request.id, &request.target, stat)?
    {
        return Ok(());
    }
    Err(Failure::precondition(format!(
        "target_path: the mount at {} is not that of volume {}; nothing was changed",
        request.target.display(),
        request.id
    )))
}

/// Refuses to succeed if the volume's mount at the path is covered by another mount, since it is
/// still published then. A process with the raw device open would see the next volume on that
/// device once this volume is unstaged.
///
/// If nothing is mounted at the path, the path may contain a symlink: after a restart, the index
/// has the mount under the path that the symlink resolves to.
fn refuse_covered<K: Kernel>(
    node: &Node<K>,
    request: &Unpublish,
    is_unmounted: bool,
) -> Result<(), Failure> {
    let (id, target): (_, &Path) = (&request.id, &request.target);
    node.mounts().refuse_covered("target_path", id, target)?;
    if is_unmounted {
        return Ok(());
    }
    let real = without_links(&node.kernel, target)?;
    match real == target {
        true => Ok(()),
        false => node.mounts().refuse_covered("target_path", id, &real),
    }
}

fn umount<K: Kernel>(cx: &Context<'_, K>, request: &Unpublish) -> Result<(), Failure> {
    let unmounted = cx
        .umount(&request.target)
        .map_err(|error| match error.cause() {
            Cause::Busy => Failure::precondition(format!(
                "target_path: {} is in use ({}); a process still uses it",
                request.target.display(),
                error.errno_name()
            )),
            _ => error.into(),
        });
    // Another mount may be visible at the path now. The next iteration verifies it.
    unmounted.map(|()| cx.index.forget(&request.target))
}

/// Removes the file or directory that the publish created, if it is empty.
fn remove<K: Kernel>(node: &Node<K>, request: &Unpublish, stat: &Stat) -> Result<(), Failure> {
    let target = &request.target;
    let removed = match stat.kind {
        FileKind::Directory => node.kernel.rmdir(target),
        FileKind::File if stat.bytes == 0 => node.kernel.unlink(target),
        _ => {
            return Err(Failure::precondition(format!(
                "target_path: {} was not created by a publish; nothing was changed",
                target.display()
            )));
        }
    };
    match removed {
        Err(error) if error.cause() == Cause::NotEmpty => Err(Failure::precondition(format!(
            "target_path: {} contains files that were written while nothing was mounted there; \
             move them elsewhere",
            target.display()
        ))),
        Err(error) if error.cause() == Cause::Missing => Ok(()),
        other => Ok(other?),
    }
}

/// The result of writing the data of a volume to its disk.
#[derive(Clone, Debug)]
pub(crate) enum Flushed {
    /// The volume is not published at the target path.
    Nothing,
    /// All data of the volume is on the disk.
    Done,
    /// A write has failed, and its data may be lost. The target can be unmounted anyway.
    Failed(Error),
}

/// Writes the data of the volume that is published at the target path to its disk. Does nothing if
/// the mount there is not the volume's. May wait for the disk.
///
/// # Errors
/// Returns an error if the target cannot be inspected.
pub(crate) fn flush<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unpublish,
) -> Result<Flushed, Failure> {
    let target = &request.target;
    cx.admit("target_path", target)?;
    let mounts = cx.mounts();
    let published = mounts.look("target_path", target)?;
    let Some(stat) = published.filter(|stat| stat.mount_root) else {
        return Ok(Flushed::Nothing);
    };
    if !mounts.may_unmount(&request.id, target, &stat)? {
        return Ok(Flushed::Nothing);
    }
    let kernel = &cx.kernel;
    // Use a clone of the mount, since an open file on the target would make its unmount fail with
    // EBUSY.
    let clone = cx.phase(Phase::Clone, || {
        kernel.open_tree(&kernel.open_path(target)?)
    })?;
    let flushed = cx.phase(Phase::Flush, || match stat.kind {
        FileKind::BlockDevice => kernel.fsync(&kernel.reopen(&clone, Open::DeviceRead)?),
        _ => kernel.syncfs(&kernel.open_root(&clone)?),
    });
    Ok(match flushed {
        Ok(()) => Flushed::Done,
        Err(error) => Flushed::Failed(error),
    })
}
