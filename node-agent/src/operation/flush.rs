//! Writes a volume to its disk before its pod's mount is removed.
//!
//! A cloud can detach a disk at any time from then on, without an unstage: a kubelet that was
//! killed has forgotten the volume, and a node that is cut off is not asked. What a finished pod
//! has written must then be on the disk.

use belay_server::call::Failure;
use belay_server::request::Unpublish;

use super::context::Context;
use crate::kernel::{Error, FileKind, Kernel, Open};
use crate::work::Phase;

/// What became of the data of a volume.
#[derive(Clone, Debug)]
pub(crate) enum Flushed {
    /// The volume is not published there.
    Nothing,
    /// All is on the disk.
    Done,
    /// A write has failed, and what it should have written may be lost; the target can be unmounted
    /// all the same.
    Failed(Error),
}

/// Flushes the volume that is published at the target, if it is this volume. May take as long as
/// the disk.
///
/// # Errors
/// If the target cannot be inspected.
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
    // A clone, since a file that is open on the target would keep it busy.
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
