//! `NodePublishVolume`: mounts a staged volume at a pod's target path.
//!
//! Opens the staged mount once, and verifies and clones it through this descriptor, so that exactly
//! the verified mount is cloned. The clone is made private and gets its mount flags before it
//! becomes visible.

mod staged;
mod target;

use std::path::{Path, PathBuf};

use belay_contract::publish_context::says_read_only;
use belay_server::call::Failure;
use belay_server::request::{Access, Publish};

use super::plan::asked_fs;
use super::{Context, Node, Thread, is_quick};
use crate::filesystem::{FsType, parse_flags};
use crate::kernel::{Dev, FileKind, Kernel, MountAttrs, Stat};
use crate::mounts::{block_path, something_else};
use crate::work::Phase;
use staged::{nameless, not_proven, not_staged, open_staged, said, unmounted};
use target::{make_target, remove_target};

/// Publishes a volume. On the event loop ([`Thread::Only`]), returns `None` without any change if a
/// disk must be read first.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the volume is not staged at the staging path, if it was staged
/// read-only but is requested for writing, or if its access mode forbids a second target;
/// `ALREADY_EXISTS` if something else is mounted at the target, or if the volume is published there
/// with different access; `INVALID_ARGUMENT` if the target is a symlink, or if one of target and
/// staging path contains the other.
pub(crate) fn publish<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Publish,
    thread: Thread,
) -> Result<Option<()>, Failure> {
    let published = run(cx, request, thread);
    published.map_err(|failure| cx.unless_mounted(&request.target, failure))
}

fn run<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Publish,
    thread: Thread,
) -> Result<Option<()>, Failure> {
    let kernel = &cx.kernel;
    if thread == Thread::Only && !can_be_in_place(cx, request)? {
        return Ok(None);
    }
    admit(cx, request, thread)?;
    let source_path = source_path(request)?;
    let attrs = attrs(request)?;
    let (source, staged) = match (open_staged(cx, &source_path, thread)?, thread) {
        (Some(found), _) => found,
        (None, Thread::Only) => return Ok(None),
        (None, Thread::Pool) => return Err(unmounted(cx, request, &source_path)),
    };
    if thread == Thread::Only && may_wait(cx, request, &source_path, &staged) {
        return Ok(None);
    }
    let plan = said(cx, request, &source_path, &staged);
    let mounts = cx.mounts().said_by(plan.as_ref());
    let Some(proven) = mounts.prove(&request.id, &source_path, &staged)? else {
        return Err(not_proven(cx, request, &source_path, &staged)?);
    };
    let device = proven.device;
    let target = cx.mounts().look("target_path", &request.target)?;
    if let Some(stat) = target.filter(|stat| stat.mount_root) {
        cx.mounts().refuse_left_over(
            &request.id,
            (&request.target, &stat),
            (&source_path, &staged),
        )?;
        published_before(cx, request, &stat, &staged, device, attrs)?;
        return Ok(Some(()));
    }
    // Check the file even if an earlier call has proven the mount: the volume's file may have been
    // replaced since.
    match is_replaced(cx, request, &staged, device, thread)? {
        Some(false) => {}
        Some(true) => {
            let why = cx.transport.replaced(&request.id, &source_path);
            return Err(Failure::precondition(why));
        }
        None => return Ok(None),
    }
    cx.mounts()
        .refuse_covered("target_path", &request.id, &request.target)?;
    refuse_read_only(cx, request, &source_path, &staged, attrs)?;
    refuse_second_target(cx, request, &source_path, device)?;
    let clone = cx.phase(Phase::Clone, || kernel.open_tree(&source))?;
    kernel.mount_setattr(&clone, attrs)?;
    let shown = Stat {
        mount_root: true,
        ..kernel.stat(&clone)?
    };
    let made = cx.phase(Phase::Place, || {
        make_target(cx, request, target, staged.kind)
    })?;
    if let Err(failure) = cx.place(&clone, &request.target) {
        let failure = match cx.mounts().has_lost_name(&source_path, &staged) {
            Ok(true) => nameless(request, &source_path),
            _ => failure,
        };
        let remove = || remove_target(cx, &request.target, staged.kind);
        let is_left = made && cx.phase(Phase::Remove, remove).is_err();
        return Err(match is_left {
            true => failure.may_be_running(),
            false => failure.rolled_back(),
        });
    }
    let is_certain = mounts.is_certain(&request.id);
    mounts.note((&request.target, &shown), device, &request.id, is_certain);
    // Close the raw device last: even if the device is detached by force meanwhile, its number
    // cannot be reused while the device is open.
    drop(proven.raw);
    Ok(Some(()))
}

/// Whether the paths of the request can be used without blocking. Returns `false` for a raw device,
/// because publishing a raw device requires opening it.
fn can_be_in_place<K: Kernel>(node: &Node<K>, request: &Publish) -> Result<bool, Failure> {
    let is_raw = matches!(request.capability.access, Access::Block);
    let staging = request.staging.as_deref();
    let is_known = staging.is_none_or(|staging| node.is_admitted_by_name(staging));
    Ok(!is_raw && is_known && is_quick(node, &request.target)?)
}

/// Refuses paths outside of the kubelet's directory. On the event loop ([`Thread::Only`]), does not
/// check the staging path again: only a mount that an earlier call has proven is cloned there, and
/// that call has checked the path.
fn admit<K: Kernel>(node: &Node<K>, request: &Publish, thread: Thread) -> Result<(), Failure> {
    if let (Some(staging), Thread::Pool) = (&request.staging, thread) {
        node.admit("staging_target_path", staging)?;
    }
    node.admit("target_path", &request.target)?;
    node.admit_mounts()
}

/// Whether NodePublishVolume may block on a disk. The call may block in two cases: the index does
/// not prove that the staged mount belongs to the volume, or the index contains another mount of
/// the volume's device that no call has verified.
fn may_wait<K: Kernel>(node: &Node<K>, request: &Publish, source: &Path, staged: &Stat) -> bool {
    let proven = node.index.proven(source, staged, &request.id);
    proven.is_none_or(|device| node.index.has_unseen(device))
}

/// Returns the path of the mount to clone: the staged filesystem, or the bind mount of the staged
/// raw device.
fn source_path(request: &Publish) -> Result<PathBuf, Failure> {
    let staging = request.staging.as_ref().ok_or_else(|| {
        Failure::precondition("staging_target_path: is missing; stage the volume first")
    })?;
    if request.target.starts_with(staging) || staging.starts_with(&*request.target) {
        return Err(Failure::invalid(
            "target_path",
            format!(
                "{} and the staging path {} contain each other",
                request.target.display(),
                staging.display()
            ),
        ));
    }
    Ok(match request.capability.access {
        Access::Block => block_path(staging),
        Access::Mount { .. } => staging.to_path_buf(),
    })
}

/// Returns the attributes of the mount at the target. NodeStageVolume has already applied the mount
/// flags, and the clone inherits them. The flags are parsed again so that NodePublishVolume accepts
/// the same flags as NodeStageVolume.
fn attrs(request: &Publish) -> Result<MountAttrs, Failure> {
    let read_only = request.read_only
        || request.capability.mode.is_read_only()
        || says_read_only(&request.publish_context);
    let mut attrs = MountAttrs::default();
    if let Access::Mount { flags, .. } = &request.capability.access {
        let fs = asked_fs(&request.capability.access)?.unwrap_or(FsType::Ext4);
        attrs = parse_flags(flags.as_slice(), fs)?.attrs;
    }
    Ok(if read_only {
        attrs.with(MountAttrs::READ_ONLY)
    } else {
        attrs
    })
}

/// Whether the storage of the volume was replaced while its filesystem is mounted. Returns `None`
/// if a disk must be read to determine this and `thread` must not block. Returns `false` for a raw
/// device, because the caller has just checked it.
fn is_replaced<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    staged: &Stat,
    device: Dev,
    thread: Thread,
) -> Result<Option<bool>, Failure> {
    if staged.kind == FileKind::BlockDevice {
        return Ok(Some(false));
    }
    let behind = (device, node.index.file_behind(device));
    let may_wait = thread == Thread::Pool;
    node.transport
        .is_replaced(&node.kernel, &request.id, behind, may_wait)
}

/// Checks that the existing mount at the target shows this volume with the requested access.
pub(super) fn published_before<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    target: &Stat,
    staged: &Stat,
    device: Dev,
    attrs: MountAttrs,
) -> Result<(), Failure> {
    let path = &request.target;
    if target.mount_id != 0 && target.mount_id == staged.mount_id {
        return Err(Failure::invalid(
            "target_path",
            format!("{} is where the volume is staged", path.display()),
        ));
    }
    if !target.is_same_root(staged) {
        return Err(something_else("target_path", &request.id, path));
    }
    let facts = node.mounts().facts(path)?;
    let is_read_only = facts.attrs.contains(MountAttrs::READ_ONLY);
    if is_read_only != attrs.contains(MountAttrs::READ_ONLY) {
        return Err(Failure::incompatible(format!(
            "target_path: volume {} is published at {} {}",
            request.id,
            path.display(),
            if is_read_only {
                "read-only"
            } else {
                "read-write"
            }
        )));
    }
    refuse_laxer(request, facts.attrs, attrs)?;
    let (mounts, id) = (node.mounts(), &request.id);
    mounts.note((path, target), device, id, mounts.is_certain(id));
    Ok(())
}

/// Refuses an existing mount that lacks a requested mount flag: if the call succeeded, the caller
/// would rely on a flag that is not in effect.
pub(super) fn refuse_laxer(
    request: &Publish,
    shown: MountAttrs,
    wanted: MountAttrs,
) -> Result<(), Failure> {
    let missing = wanted.without(shown);
    let flags = [
        (MountAttrs::NO_SUID, "nosuid"),
        (MountAttrs::NO_DEV, "nodev"),
        (MountAttrs::NO_EXEC, "noexec"),
        (MountAttrs::NO_SYMFOLLOW, "nosymfollow"),
    ];
    let Some((_, flag)) = flags.into_iter().find(|(bit, _)| missing.contains(*bit)) else {
        return Ok(());
    };
    Err(Failure::incompatible(format!(
        "target_path: volume {} is published at {} without {flag}; unpublish it first",
        request.id,
        request.target.display()
    )))
}

/// Refuses to publish a volume read-write if its filesystem is read-only, either because it was
/// staged read-only or because the kernel made it read-only after an error.
fn refuse_read_only<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Path,
    staged: &Stat,
    attrs: MountAttrs,
) -> Result<(), Failure> {
    if attrs.contains(MountAttrs::READ_ONLY) || staged.kind == FileKind::BlockDevice {
        return Ok(());
    }
    let facts = match node.kernel.statmount_of(staged.mount_id)? {
        Some(facts) => Some(facts),
        // Before Linux 6.8, mounts have no unique IDs, so query the mount by its path.
        None => node.kernel.statmount(source)?,
    };
    let facts = facts.ok_or_else(|| not_staged(request, source))?;
    let why = if facts.attrs.contains(MountAttrs::READ_ONLY) {
        "was staged read-only"
    } else if facts.superblock_read_only {
        "became read-only after an error (see the kernel's log), or was remounted so"
    } else {
        return Ok(());
    };
    Err(Failure::precondition(format!(
        "volume {}: {why}, and cannot be published read-write",
        request.id
    )))
}

/// Refuses a second target unless the access mode allows several targets (CSI, NodePublishVolume,
/// second table).
fn refuse_second_target<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Path,
    device: Dev,
) -> Result<(), Failure> {
    if request.capability.mode.allows_several_targets() {
        return Ok(());
    }
    let others = node
        .mounts()
        .others(&request.id, device, &[source, &request.target])?;
    match others.first() {
        None => Ok(()),
        Some(other) => Err(Failure::precondition(format!(
            "volume {}: already published at {}, and access mode {} allows one target",
            request.id,
            other.display(),
            request.capability.mode.name()
        ))),
    }
}
