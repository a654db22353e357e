//! `NodeUnpublishVolume`: unmounts a volume from a pod's target path, and removes the path. The
//! volume's data is written to its disk first.
//!
//! After NodeUnpublishVolume, a cloud may detach the disk without NodeUnstageVolume: a kubelet that
//! was killed may no longer know the volume, and a node without a network connection receives no
//! calls. The data of a finished pod must therefore be on the disk when NodeUnpublishVolume
//! returns.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use belay_server::call::Failure;
use belay_server::request::Unpublish;

use super::{Context, Node, STACKED_MAX};
use crate::kernel::{Cause, Error, FileKind, Kernel, Open, Stat};
use crate::mounts::without_links;
use crate::work::Phase;

/// Unpublishes a volume. Succeeds if the target path does not exist. Sets `was_unmounted` if
/// anything was unmounted, even if a later step fails.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the mount at the target path is not the volume's or is in use,
/// or if the target directory contains files.
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

/// Refuses a mount that is not the volume's, because a wrong path in a request must not unmount a
/// different volume.
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

/// Returns an error if another mount hides the volume's mount at the path, because the volume is
/// then still published. Once the volume is unstaged, a bind mount that is left over would show the
/// next volume on that device.
///
/// If nothing was unmounted, also checks the path without symlinks: after a restart of the agent,
/// the mount index contains mounts only by such paths.
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
    // Another mount may be visible at the path now. The next iteration verifies that mount.
    unmounted.map(|()| cx.index.forget(&request.target))
}

/// Removes the file or directory that NodePublishVolume created, if it is empty.
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
    /// A write has failed, and the data may be lost. The target can be unmounted nevertheless.
    Failed(Error),
}

/// Writes the data of the volume that is published at the target path to its disk. Does nothing if
/// the mount at the target path is not the volume's. May block on the disk.
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
    // Open a clone of the mount, because an open file on the target itself would make umount2(2)
    // fail with EBUSY.
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
