//! Stages a volume as a raw block device: binds the device node onto `<staging>/device`.
//!
//! A bind mount does not keep the device open, so the device is attached without AUTOCLEAR, and
//! must be detached explicitly after a failure. If a crash leaves the device attached, the next
//! NodeStageVolume or NodeUnstageVolume call finds the device by the lock on the volume's file.

use std::path::Path;

use belay_contract::publish_context::PublishContext;
use belay_server::call::{Certainty, Failure};
use belay_server::request::{MountFlags, Stage};

use super::super::plan::{fit, is_read_only};
use super::spec::MountSpec;
use super::{Obstacle, attach, encrypt};
use crate::device::{Intent, OpenDevice, Purpose, Search, Verdict};
use crate::filesystem::{DeviceUnderTest, begin_raw_use, begin_use};
use crate::kernel::{FileKind, Kernel, Stat};
use crate::mounts::block_path;
use crate::operation::Context;
use crate::work::{Lane, Phase};

pub(super) fn stage<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    plan: &PublishContext,
    staging: &Stat,
    lane: Lane,
) -> Result<(), Obstacle> {
    let path = block_path(&request.staging);
    let read_only = is_read_only(plan, &request.capability);
    if staging.mount_root {
        return Err(Failure::incompatible(format!(
            "a filesystem is mounted at {}; unstage it before staging a raw block device there",
            request.staging.display()
        ))
        .into());
    }
    let purpose = Purpose::Raw { read_only };
    let contexts = (plan, &request.volume_context);
    let found = cx
        .transport
        .find(&cx.kernel, &request.id, contexts, purpose)?;
    let storage = match found {
        Search::Found(storage) => storage,
        Search::Missing(missing) => return Err(Obstacle::NoDisk(missing)),
    };
    if is_staged(cx, request, &path, read_only)? {
        return Ok(cx.transport.end_claim(&cx.kernel, &request.id)?);
    }
    let spec = MountSpec {
        request,
        fs: None,
        flags: &MountFlags::default(),
        read_only,
    };
    let encrypted = encrypt::encrypted(request, lane)?;
    let device = attach(cx, &request.id, storage, purpose, encrypted.is_some())?;
    if let Some(encrypted) = &encrypted {
        let (device, _) = encrypt::unlock(cx, (&spec, plan), device, encrypted)?;
        let bound = encrypt::begin(cx, &request.id, &device, read_only)
            .and_then(|()| cx.bind_raw(&request.id, &path, &device));
        return ended(cx, request, device, bound);
    }
    let bound = fit(cx, &request.id, plan, &device).and_then(|bytes| {
        // Record that the volume is in use. Otherwise, a later call could mistake the user's raw
        // data for an interrupted format by Belay, or a volume of zeros for a new volume.
        cx.phase(Phase::Attach, || match device.backing_file() {
            Some(_) if read_only => Ok(()),
            Some(file) => begin_use(&cx.kernel, file),
            None => {
                let disk = DeviceUnderTest {
                    fd: device.fd(),
                    bytes,
                    backing: None,
                    volume: request.id.as_str(),
                    secrets: &plan.marks,
                    is_new: false,
                    accepts_uncleared: false,
                    progress: cx.progress(),
                };
                begin_raw_use(&cx.kernel, &disk, read_only)
            }
        })?;
        cx.bind_raw(&request.id, &path, &device)
    });
    ended(cx, request, device, bound)
}

/// Returns the result of a stage. Detaches the device after a failure.
fn ended<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    device: OpenDevice<K>,
    bound: Result<(), Failure>,
) -> Result<(), Obstacle> {
    let Err(failure) = bound else {
        return Ok(device.end_claim(&cx.kernel)?);
    };
    // Detach the device after the failure, because no other call may do so. The caller repeats
    // NodeStageVolume.
    Err(Obstacle::from(match cx.release_raw(&request.id, device) {
        // The file that was created as mount point may still exist.
        Ok(()) if failure.certainty == Certainty::MayBeRunning => failure,
        Ok(()) => failure.rolled_back(),
        Err(_) => failure.may_be_running(),
    }))
}

/// Whether the volume is staged at the path. If this returns `false`, the device can be bound
/// there.
///
/// # Errors
/// Returns an error if something else exists at the path.
fn is_staged<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    path: &Path,
    read_only: bool,
) -> Result<bool, Failure> {
    match cx.mounts().look("staging_target_path", path)? {
        None => {}
        Some(stat) if stat.mount_root && stat.kind == FileKind::BlockDevice => {
            let mounts = cx.mounts();
            let (_, verdict) = mounts.verdict(&request.id, path, &stat, Intent::Use)?;
            match verdict {
                Verdict::Ours(device) => {
                    let there = (path, &stat);
                    return staged_before(cx, request, there, &device, read_only).map(|()| true);
                }
                // Do not detach a device whose file was replaced, because a pod may still use the
                // device.
                Verdict::Stale(_) => {
                    let why = cx.transport.replaced(&request.id, path);
                    return Err(Failure::incompatible(why));
                }
                Verdict::Foreign if !cx.index.is_noted_for(path, &stat, &request.id) => {
                    return Err(other_device(request, path));
                }
                // The bind mount was made for this volume, but its device was detached or removed,
                // or its device number now belongs to a different volume.
                _ => unmount_left(cx, request, path, &stat)?,
            }
        }
        Some(stat) if stat.kind == FileKind::File && stat.bytes == 0 && !stat.mount_root => {}
        Some(_) => {
            return Err(Failure::precondition(format!(
                "{} is in the way; it is neither an empty file nor a staged device",
                path.display()
            )));
        }
    }
    Ok(false)
}

/// Unmounts the bind mount of a device that was detached by force, or whose disk was removed.
/// Otherwise, this bind mount would show the next volume that gets the device number. Refuses to
/// unmount while a pod still has a bind mount of the removed disk, because the agent can find the
/// pod's bind mount only through the staged bind mount.
fn unmount_left<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    path: &Path,
    stat: &Stat,
) -> Result<(), Failure> {
    if cx.may_lose_devices()
        && let Some(other) = cx.first_elsewhere(&request.id, path, stat)?
    {
        let why = cx.transport.replaced(&request.id, &other);
        return Err(Failure::incompatible(why));
    }
    cx.unmount_left(&request.id, path, stat)
}

fn other_device(request: &Stage, path: &Path) -> Failure {
    Failure::incompatible(format!(
        "a device other than that of volume {} is bound at {}",
        request.id,
        path.display()
    ))
}

/// Checks that the device which is already bound at the path is writable or read-only as requested,
/// and makes sure that the device stays attached.
fn staged_before<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stage,
    (path, stat): (&Path, &Stat),
    device: &OpenDevice<K>,
    read_only: bool,
) -> Result<(), Failure> {
    encrypt::refuse_other(request, device)?;
    if device.is_read_only().is_some_and(|it| it != read_only) {
        return Err(Failure::incompatible(format!(
            "volume {}: staged at {} {}",
            request.id,
            request.staging.display(),
            if read_only {
                "for writing"
            } else {
                "read-only"
            }
        )));
    }
    device.bytes(&cx.kernel, 0)?;
    // Clear the flag AUTOCLEAR, with which the device would be detached at its last close. A
    // NodeUnstageVolume call that was killed may have set this flag.
    device.keep(&cx.kernel)?;
    if cx.mounts().has_lost_name(path, stat)? {
        cx.umount(path)?;
        cx.index.forget(path);
        cx.bind_raw(&request.id, path, device)?;
    } else {
        cx.index.note(path, stat, stat.rdev, &request.id);
    }
    Ok(())
}
