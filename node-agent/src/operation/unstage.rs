//! `NodeUnstageVolume`: unmounts the volume from its staging path, and detaches its device.
//!
//! The request does not say which device is staged, or whether it is a raw device; both facts are
//! read from the kernel. The device is opened before the unmount, because nothing identifies the
//! device afterwards. Before a raw device is detached, the mount table is searched for bind mounts
//! by any process at any path.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::request::Unstage;

use super::act::{not_in_table, unless_orphans};
use super::{Context, Node, STACKED_MAX};
use crate::device::{Intent, OpenDevice, Verdict};
use crate::kernel::{Cause, Dev, FileKind, Kernel, Open, Stat};
use crate::mounts::{Covered, block_path};
use crate::work::Phase;

/// Unstages a volume. Succeeds if the volume is not staged and has no device on the node.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` while the volume is published, while its raw device is bound
/// elsewhere, or while its device is in use.
pub(crate) fn unstage<K: Kernel>(cx: &Context<'_, K>, request: &Unstage) -> Result<(), Failure> {
    cx.admit("staging_target_path", &request.staging)?;
    let staging = cx.mounts().look("staging_target_path", &request.staging)?;
    let staging = staging.filter(|stat| stat.mount_root);
    if let Some(stat) = &staging {
        unstage_mount(cx, request, stat)?;
    }
    let was_bound = unstage_device(cx, request)?;
    // `detach` also finds a device that a crash left attached without a mount.
    match cx.detach(&request.id) {
        // An earlier NodeUnstageVolume call may have unmounted the staging path, and may then have
        // been refused because of bind mounts for pods.
        Err(_) if cx.unmount_orphans_of(&request.id).unwrap_or(false) => cx.detach(&request.id)?,
        detached => detached?,
    }
    if staging.is_some() {
        return Ok(());
    }
    // An earlier call, or the loop over stacked bind mounts, may have left the mapper over a
    // removed disk open. Neither a mount nor a disk leads to this mapper.
    if cx.may_lose_devices() {
        cx.try_close_removed(&request.id, None)?;
    }
    match was_bound {
        true => Ok(()),
        false => cx.detach_stale(&request.id),
    }
}

fn unstage_mount<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unstage,
    stat: &Stat,
) -> Result<(), Failure> {
    let staging = &request.staging;
    let (dev, verdict) = cx
        .mounts()
        .verdict(&request.id, staging, stat, Intent::TakeDown)?;
    if matches!(verdict, Verdict::Removed) {
        unmount_removed(cx, request, stat)?;
        return cx.try_close_removed(&request.id, Some(dev));
    }
    let Some(device) = verdict.into_held() else {
        return Err(Failure::precondition(format!(
            "staging_target_path: the mount at {} is not that of volume {}; nothing was changed",
            staging.display(),
            request.id
        )));
    };
    refuse_published(cx, request, dev)?;
    // Thaw the filesystem first: a frozen filesystem stays in the kernel after its last unmount,
    // and could then no longer be thawed.
    cx.phase(Phase::Unmount, || {
        match cx.kernel.open(staging, Open::Directory) {
            Ok(root) => cx.kernel.thaw(&root),
            Err(_) => Ok(()),
        }
    })?;
    cx.transport.remember(&request.id, &device);
    umount(cx, staging)?;
    // Check this after the unmount, because the staging mount itself has the device open
    // exclusively.
    if cx.phase(Phase::Check, || device.is_claimed(&cx.kernel))? {
        return Err(Failure::precondition(format!(
            "volume {}: {} is still mounted elsewhere, perhaps in another mount namespace: search \
             /proc/*/mountinfo for it",
            request.id,
            device.path().display()
        )));
    }
    // Closing the last descriptor detaches the device.
    cx.phase(Phase::Detach, || device.close(&cx.kernel))
}

fn umount<K: Kernel>(cx: &Context<'_, K>, path: &Path) -> Result<(), Failure> {
    cx.umount(path).map_err(|error| match error.cause() {
        Cause::Busy => Failure::precondition(format!(
            "staging_target_path: {0} is in use ({1}); fuser --mount {0} shows by whom",
            path.display(),
            error.errno_name()
        )),
        _ => error.into(),
    })?;
    cx.index.forget(path);
    Ok(())
}

/// Unmounts a staged filesystem whose disk was removed. Such a filesystem cannot be read, written
/// or thawed, and its device cannot be opened. A cloud detaches a disk without NodeUnstageVolume if
/// a killed kubelet no longer knows the volume, or if the node has lost its network connection.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` while the disk is mounted elsewhere, for example for a pod;
/// otherwise the kernel's error.
pub(super) fn unmount_removed<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unstage,
    stat: &Stat,
) -> Result<(), Failure> {
    let staging = &request.staging;
    // Search the mount table, because the index does not contain mounts by other processes.
    let others = cx.mounts().elsewhere(&request.id, staging, stat)?;
    let others = others.ok_or_else(|| not_in_table(staging))?;
    if others.is_stacked {
        return Err(Failure::precondition(format!(
            "volume {}: its disk was removed, and several mounts are stacked on {}; unmount them \
             by hand",
            request.id,
            staging.display()
        )));
    }
    refuse_any(request, &others.paths)?;
    umount(cx, staging)?;
    tracing::warn!(
        id = request.id.as_str(),
        path = %staging.display(),
        "unmounted the volume from its staging path: its disk was removed; what was not written to \
         the disk before is lost"
    );
    Ok(())
}

/// Unmounts the staged raw device. Returns whether a raw device was staged. If several bind mounts
/// are stacked, only the uppermost bind mount can be identified, so the bind mounts are unmounted
/// one by one.
fn unstage_device<K: Kernel>(cx: &Context<'_, K>, request: &Unstage) -> Result<bool, Failure> {
    let path = block_path(&request.staging);
    let mut was_bound = false;
    for _ in 0..=STACKED_MAX {
        let found = cx.mounts().look("staging_target_path", &path)?;
        match &found {
            Some(stat) if stat.mount_root && stat.kind == FileKind::BlockDevice => {
                unstage_bind(cx, request, &path, stat)?;
                was_bound = true;
            }
            None => return Ok(was_bound),
            Some(stat) => {
                remove_file(cx, &path, stat)?;
                return Ok(was_bound);
            }
        }
    }
    Err(Failure::precondition(format!(
        "staging_target_path: more than {STACKED_MAX} mounts are stacked on {}; unmount them by \
         hand",
        path.display()
    )))
}

/// Unmounts the bind mount of a raw device at `path`.
fn unstage_bind<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unstage,
    path: &Path,
    stat: &Stat,
) -> Result<(), Failure> {
    let (dev, verdict) = cx
        .mounts()
        .verdict(&request.id, path, stat, Intent::TakeDown)?;
    let noted = cx.index.noted(path, stat);
    let is_foreign = matches!(verdict, Verdict::Foreign);
    if noted.map_or(is_foreign, |noted| noted != request.id) {
        return Err(Failure::precondition(format!(
            "the device bound at {} is not that of volume {}; it was left there",
            path.display(),
            request.id
        )));
    }
    let unmount = || cx.unmount_orphans(&request.id, dev);
    match verdict.held() {
        Some(_) => unless_orphans(|| refuse_published(cx, request, dev), unmount)?,
        None if cx.may_lose_devices() => {
            let other = cx.first_elsewhere(&request.id, path, stat)?;
            refuse_any(request, other.as_slice())?;
        }
        None => refuse_left_targets(cx, request, dev)?,
    }
    if matches!(verdict, Verdict::Stale(_)) {
        // Check for other mounts before the unmount: if the volume's file is missing, a retry could
        // find the device only through this bind mount.
        let refuse = || cx.mounts().refuse_shown(&request.id, dev, &[path]);
        unless_orphans(refuse, unmount)?;
    }
    let Some(device) = verdict.into_held() else {
        return cx.unmount_left(&request.id, path, stat);
    };
    let label = cx.mounts().label(path, stat)?;
    umount(cx, path)?;
    if let Some(below) = cx.kernel.look(path)?
        && below.mount_root
        && below.rdev == stat.rdev
        && cx.mounts().label(path, &below)? == label
    {
        // A second bind mount of the same device was below the first; the caller unmounts it next.
        return Ok(());
    }
    let refused = cx.phase(Phase::Detach, || {
        let refuse = || cx.mounts().refuse_shown(&request.id, dev, &[]);
        unless_orphans(refuse, unmount)
    });
    if let Err(refused) = refused {
        bind_again(cx, request, path, &device);
        return Err(refused);
    }
    cx.release_raw(&request.id, device)
}

/// Binds the device to its staging path again after NodeUnstageVolume was refused, so that the
/// volume is staged as before and can be published again. If binding fails, a later
/// NodeUnstageVolume call still finds the device through the volume's file or disk.
fn bind_again<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Unstage,
    path: &Path,
    device: &OpenDevice<K>,
) {
    if let Err(error) = cx.bind_raw(&request.id, path, device) {
        tracing::warn!(
            id = request.id.as_str(),
            ?path,
            "the device is no longer bound there, and its unstage was refused: {error}"
        );
    }
}

/// Removes the file onto which NodeStageVolume has bound the device.
fn remove_file<K: Kernel>(cx: &Context<'_, K>, path: &Path, left: &Stat) -> Result<(), Failure> {
    if left.kind == FileKind::File && left.bytes == 0 && !left.mount_root {
        return Ok(cx.phase(Phase::Remove, || cx.kernel.unlink(path))?);
    }
    Err(Failure::precondition(format!(
        "{} was not created by a stage; it was left there",
        path.display()
    )))
}

fn refuse_published<K: Kernel>(node: &Node<K>, request: &Unstage, dev: Dev) -> Result<(), Failure> {
    refuse_any(request, &targets(node, request, dev)?)
}

/// Refuses to unstage a raw device whose file is no longer the volume's while the device is bound
/// for a pod. Searches the mount table, because the index does not contain the kubelet's bind
/// mounts. Considers only bind mounts whose label names this volume, because the device number may
/// belong to a different volume by now. As long as the index contains a mount of the device number,
/// this number is not used for other volumes.
fn refuse_left_targets<K: Kernel>(
    node: &Node<K>,
    request: &Unstage,
    dev: Dev,
) -> Result<(), Failure> {
    let device = block_path(&request.staging);
    let mut shown = Covered::new(&node.kernel, &node.transport, &request.id, dev);
    refuse_any(request, &shown.named(&[&device])?)
}

fn targets<K: Kernel>(
    node: &Node<K>,
    request: &Unstage,
    dev: Dev,
) -> Result<Vec<PathBuf>, Failure> {
    let device = block_path(&request.staging);
    let staged: [&Path; 2] = [&request.staging, &device];
    Ok(node.mounts().others(&request.id, dev, &staged)?)
}

fn refuse_any(request: &Unstage, targets: &[PathBuf]) -> Result<(), Failure> {
    let Some(target) = targets.first() else {
        return Ok(());
    };
    Err(Failure::precondition(format!(
        "volume {}: still published at {}; unpublish it first",
        request.id,
        target.display()
    )))
}
