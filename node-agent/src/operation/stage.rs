//! `NodeStageVolume`: from a volume's file or disk to a mounted filesystem, or a bound raw device.
//!
//! find -> hold -> verify -> mounted already? -> probe -> format if allowed, or repair if asked for
//! -> mount detached -> check -> grow -> move into place. Nothing is visible until the last call;
//! closing the descriptors undoes everything before it.

mod block;
mod check;
mod format;
mod grow;
mod mount;
mod permit;
mod superblock;
mod tally;

pub(super) use grow::warn_of_groups;
pub(super) use tally::announce;

use belay_server::call::Failure;
use belay_server::request::{Access, Stage, VolumeId};

use super::act::unless_orphans;
use super::context::Context;
use crate::device::{Held, Missing, Purpose, Storage};
use crate::kernel::{FileKind, Kernel};
use crate::work::Phase;

/// Whether this run may start mkfs or e2fsck, which have a separate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Formatting {
    /// Return [`Staged::WantsFormat`] instead.
    Ask,
    /// A slot of that limit is held.
    Allowed,
}

/// The result of a stage run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    /// The volume is staged.
    Done,
    /// Its disk is missing; nothing was changed.
    WantsDisk(Missing),
    /// It must be formatted, or checked, or read completely to find out; nothing was changed.
    WantsFormat,
}

/// Stages a volume.
///
/// # Errors
/// `INVALID_ARGUMENT` for a context or a capability that is not supported, `NOT_FOUND` without the
/// volume's file, `ALREADY_EXISTS` if it is staged there in another way, `FAILED_PRECONDITION` if
/// the content of the device forbids it, `ABORTED` while another operation uses it.
pub(crate) fn stage<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    formatting: Formatting,
) -> Result<Staged, Failure> {
    cx.admit("staging_target_path", &request.staging)?;
    cx.admit_mounts()?;
    run(cx, request, formatting).inspect_err(|refusal| cx.free_refused(&request.id, refusal))
}

fn run<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    formatting: Formatting,
) -> Result<Staged, Failure> {
    let contexts = (&request.publish_context, &request.volume_context);
    let plan = cx.transport.read(&request.id, contexts)?;
    match cx.mounts().look("staging_target_path", &request.staging)? {
        Some(stat) if stat.kind == FileKind::Directory => match &request.capability.access {
            Access::Block => block::stage(cx, request, &plan, &stat),
            Access::Mount { flags, .. } => {
                mount::stage(cx, request, flags, &plan, &stat, formatting)
            }
        },
        Some(_) => Err(Failure::invalid(
            "staging_target_path",
            format!("{} is not a directory", request.staging.display()),
        )),
        None => Err(Failure::precondition(format!(
            "staging_target_path: {} does not exist; the caller must create it",
            request.staging.display()
        ))),
    }
}

/// A device for the volume: a new one, or the one that is already attached for it, if it is not
/// staged or published here.
///
/// # Errors
/// `FAILED_PRECONDITION` naming the path while the volume is mounted anywhere, or if its file may
/// be another volume's too; `ABORTED` while another process uses it.
fn attach<K: Kernel>(
    cx: &Context<'_, K>,
    volume: &VolumeId,
    storage: Storage<K>,
    purpose: Purpose,
) -> Result<Held<K>, Failure> {
    // Before its lock, which the other volume may have.
    storage.refuse_linked()?;
    let device = cx.phase(Phase::Attach, || {
        let unused = || -> Result<_, Failure> {
            let left = cx.mounts().left(volume, &storage)?;
            if left.is_none() {
                cx.mounts().refuse_stale(volume)?;
            }
            if cx.may_lose_devices() {
                cx.mounts().refuse_removed(volume)?;
            }
            Ok(left)
        };
        let left = unless_orphans(unused, || cx.unmount_orphans_named(volume))?;
        storage.hold(&cx.kernel, left, purpose, &|dev| cx.is_shown(volume, dev))
    })?;
    if let (false, Some(folder)) = (device.is_checked, cx.transport.folder()) {
        tally::openers_unchecked(folder.path());
    }
    Ok(device)
}
