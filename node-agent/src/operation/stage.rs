//! `NodeStageVolume`: mounts the filesystem on a volume's file or disk, or binds its raw device.
//!
//! The steps are: return if the volume is already staged, find its file or disk, attach the device,
//! probe the content of the device, format the device if this is allowed or run e2fsck if the
//! superblock requests it, create a detached mount, check that the right device was mounted, grow
//! the filesystem, and attach the mount to the staging path. The mount is not visible before the
//! last step. After a failure, closing the descriptors undoes all steps except a format or a
//! repair.

mod block;
mod check;
mod encrypt;
mod format;
mod keys;
mod mount;
mod permit;
mod spec;
mod superblock;
mod tally;

pub(super) use format::warn_of_groups;
pub(super) use tally::announce;

use belay_server::call::{Failure, Kind};
use belay_server::request::{Access, Stage, VolumeId};

use super::Context;
use super::act::unless_orphans;
use crate::device::{Missing, OpenDevice, Purpose, Storage};
use crate::kernel::{self, FileKind, Kernel};
use crate::mounts::block_path;
use crate::work::{Lane, Phase};

/// The reason why an attempt to stage a volume did not succeed. For every reason except
/// [`Obstacle::Failure`], the attempt can be repeated as described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The attempt has failed.
    Failure(Failure),
    /// The volume's disk is not attached. Repeat the attempt when the disk appears.
    NoDisk(Missing),
    /// The volume must be formatted or checked, or must be read completely to determine whether it
    /// may be formatted; or it must be opened with a passphrase. Repeat the attempt on this lane.
    NoSlot(Lane),
    /// The kernel's count of block groups is wrong, because the kernel counted the groups of an
    /// ext4 before it replayed a journal that enlarged the ext4. Mount the filesystem again.
    Miscount,
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        Obstacle::Failure(failure)
    }
}

impl From<kernel::Error> for Obstacle {
    fn from(error: kernel::Error) -> Self {
        Obstacle::Failure(error.into())
    }
}

impl Obstacle {
    /// Converts the obstacle to an error, for callers that do not repeat the attempt.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Obstacle::Failure(failure) => failure,
            Obstacle::NoDisk(missing) => Failure::new(Kind::Unreachable, missing.to_string()),
            Obstacle::NoSlot(lane) => Failure::bug(format!("{lane:?} was not enough")),
            Obstacle::Miscount => Failure::bug("the journal was not replayed"),
        }
    }
}

/// Stages a volume on a thread of this lane.
///
/// # Errors
/// Returns an [`Obstacle`]. An [`Obstacle::Failure`] is `INVALID_ARGUMENT` if the publish context,
/// the volume context or the capability is not supported; `NOT_FOUND` if the volume's file does not
/// exist; `ALREADY_EXISTS` if the volume is staged there in a different way; `FAILED_PRECONDITION`
/// if the content of the device prevents mounting and formatting; `ABORTED` while another operation
/// uses the device.
pub(crate) fn stage<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    lane: Lane,
) -> Result<(), Obstacle> {
    let staged = admit(cx, request, lane);
    let Err(Obstacle::Failure(failure)) = staged else {
        return staged;
    };
    let failure = match request.capability.access {
        Access::Block => cx.unless_mounted(&block_path(&request.staging), failure),
        Access::Mount { .. } => cx.unless_mounted(&request.staging, failure),
    };
    Err(failure.into())
}

fn admit<K: Kernel>(cx: &Context<'_, K>, request: &Stage, lane: Lane) -> Result<(), Obstacle> {
    cx.admit("staging_target_path", &request.staging)?;
    cx.admit_mounts()?;
    let staged = run(cx, request, lane);
    if let Err(Obstacle::Failure(refusal)) = &staged {
        cx.free_after_refused_stage(&request.id, refusal);
    }
    staged
}

fn run<K: Kernel>(cx: &Context<'_, K>, request: &Stage, lane: Lane) -> Result<(), Obstacle> {
    let contexts = (&request.publish_context, &request.volume_context);
    let plan = cx.transport.read(&request.id, contexts)?;
    let path = request.staging.display();
    match cx.mounts().look("staging_target_path", &request.staging)? {
        Some(stat) if stat.kind == FileKind::Directory => match &request.capability.access {
            Access::Block => block::stage(cx, request, &plan, &stat, lane),
            Access::Mount { flags, .. } => mount::stage(cx, request, flags, &plan, &stat, lane),
        },
        Some(_) => {
            let why = format!("{path} is not a directory; name a directory");
            Err(Failure::invalid("staging_target_path", why).into())
        }
        None => {
            let why = format!("staging_target_path: {path} does not exist; create it first");
            Err(Failure::precondition(why).into())
        }
    }
}

/// Refuses to format or open a device that is mounted or that another process has opened
/// exclusively.
fn refuse_in_use<K: Kernel>(device: &OpenDevice<K>) -> Result<(), Failure> {
    if device.is_shared {
        tally::Refusal::InUse.count();
        return Err(device.claimed());
    }
    Ok(())
}

/// Returns a device that is attached for the volume. Reuses a device that an earlier attempt has
/// left attached, unless the volume is staged or published on this node.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with the path while the volume is mounted anywhere, or if the
/// volume's file has several names, because the file may then also belong to a different volume;
/// `ABORTED` while another process uses the volume.
fn attach<K: Kernel>(
    cx: &Context<'_, K>,
    volume: &VolumeId,
    storage: Storage<K>,
    purpose: Purpose,
    is_encrypted: bool,
) -> Result<OpenDevice<K>, Failure> {
    // Check this before the file is locked: the loop device of a second volume with the same file
    // may hold the lock.
    storage.refuse_linked()?;
    let device = cx.phase(Phase::Attach, || {
        let unused = || -> Result<_, Failure> {
            let left = cx.mounts().left(volume, &storage)?;
            match &left {
                None => cx.mounts().refuse_stale(volume)?,
                // Read sysfs only for an encrypted volume. A mapper keeps any other volume from
                // being used.
                Some(left) if is_encrypted => {
                    cx.close_over(volume, left.dev(&cx.kernel)?)?;
                }
                Some(_) => {}
            }
            if cx.may_lose_devices() {
                cx.mounts().refuse_removed(volume)?;
            }
            // The controller locks a file while copying it. If the controller has crashed, the file
            // is no longer locked, but an extended attribute still says that a copy is in progress.
            storage.refuse_claimed(&cx.kernel)?;
            Ok(left)
        };
        let left = unless_orphans(unused, || cx.unmount_orphans_named(volume))?;
        storage.hold(&cx.kernel, left, purpose, &|dev| cx.is_shown(volume, dev))
    })?;
    if !device.is_checked {
        tally::openers_unchecked(&cx.transport.named(&cx.kernel, volume)?);
    }
    Ok(device)
}
