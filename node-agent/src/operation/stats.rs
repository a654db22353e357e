//! `NodeGetVolumeStats`: the usage of a volume. Also reads the free space of the filesystem that
//! contains the backing files.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::facts::Space;
use belay_server::health::Conditions;
use belay_server::request::Stats;

use super::{Context, Node, Thread, health, is_quick};
use crate::device::{Intent, OpenDevice};
use crate::filesystem::{FsType, may_have_project_quotas};
use crate::kernel::{Cause, Dev, FileKind, Kernel, MountFacts, Stat, Usage};
use crate::work::Phase;

/// The usage of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeUsage {
    /// The usage of a mounted filesystem.
    Filesystem(Usage),
    /// The size of a raw device in bytes. Its usage is unknown.
    Block(u64),
}

/// The usage and the health of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeStats {
    pub(crate) usage: VolumeUsage,
    pub(crate) conditions: Conditions,
}

/// Returns the usage and health of a published or staged volume. On the event loop
/// ([`Thread::Only`]), returns `None` if a device or a disk must be read.
///
/// # Errors
/// Returns `NOT_FOUND` if the volume is not mounted at the volume path.
pub(crate) fn stats<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
    thread: Thread,
) -> Result<Option<VolumeStats>, Failure> {
    match thread {
        // Ignore an error here: the caller repeats the call on the pool, where it is checked
        // whether the volume was unmounted meanwhile.
        Thread::Only => Ok(in_place(cx, request).unwrap_or(None)),
        Thread::Pool => on_pool(cx, request).map(Some),
    }
}

/// Returns the usage and health of a filesystem that was already proven to be the volume's at this
/// path. Returns `None` if a disk or a server may have to be read. Opens the mount once and reads
/// everything through this descriptor, so that a later mount at the same path, perhaps from an
/// unreachable server, is not read.
fn in_place<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
) -> Result<Option<VolumeStats>, Failure> {
    let path = &request.volume_path;
    let has_been = match cx.index.is_read_in_place(path, &request.id) {
        Some(false) => return Ok(None),
        known => known.is_some(),
    };
    if let Some(staging) = &request.staging
        && !cx.is_admitted_by_name(staging)
    {
        return Ok(None);
    }
    let Some(mount) = cx.kernel.open_path_cached(path)? else {
        return Ok(None);
    };
    let stat = cx.kernel.stat(&mount)?;
    let Some(device) = cx.index.proven(path, &stat, &request.id) else {
        return Ok(None);
    };
    // A btrfs has an anonymous device number, and the kernel may have to read the disk to list the
    // mount options of a btrfs.
    if stat.dev.is_anonymous() {
        return Ok(None);
    }
    let facts = cx.kernel.statmount_of(stat.mount_id)?;
    let Some(facts) = facts.filter(is_in_memory) else {
        return Ok(None);
    };
    let can_be = has_been || is_without_projects(cx, &facts, device) && is_quick(cx, path)?;
    if !can_be {
        return Ok(None);
    }
    // Check the health before the usage, since reading the usage may hang.
    let conditions = health::of_mounted(cx, request, device, Some(facts), Thread::Only)?;
    let Some(conditions) = conditions else {
        return Ok(None);
    };
    let usage = cx.phase(Phase::Usage, || cx.kernel.fstatfs(&mount))?;
    if !has_been {
        cx.index.note_in_place(path, &stat, true);
    }
    Ok(Some(VolumeStats {
        usage: VolumeUsage::Filesystem(usage),
        conditions,
    }))
}

/// Whether the statistics and the health can be read without the disk. Returns `false` for a
/// read-only filesystem: its health depends on whether it was staged read-only, which only a query
/// of the staging path shows.
fn is_in_memory(facts: &MountFacts) -> bool {
    facts.counts_in_memory && !facts.superblock_read_only
}

/// Whether the filesystem certainly has no project quotas. The mount options of an ext4 do not show
/// all project quotas: quotas may be enabled by default in the superblock, or by quotactl(2).
fn is_without_projects<K: Kernel>(node: &Node<K>, facts: &MountFacts, device: Dev) -> bool {
    facts.fs_type != FsType::Ext4.name() || node.index.is_without_projects(device)
}

/// Returns the usage and health of a volume. May block on the volume's disk.
fn on_pool<K: Kernel>(cx: &Context<'_, K>, request: &Stats) -> Result<VolumeStats, Failure> {
    let path = &request.volume_path;
    cx.admit("volume_path", path)?;
    if let Some(staging) = &request.staging {
        cx.admit("staging_target_path", staging)?;
    }
    let not_there = || {
        Failure::not_found(format!(
            "volume_path: volume {id} is not mounted at {}; `belayctl where {id}` shows its mounts",
            path.display(),
            id = request.id
        ))
    };
    if !path.is_absolute() {
        return Err(not_there());
    }
    let stat = cx
        .mounts()
        .look("volume_path", path)?
        .ok_or_else(not_there)?;
    let read = match stat.kind {
        FileKind::BlockDevice => device(cx, request, &stat),
        _ => filesystem(cx, request, &stat),
    };
    match read {
        // If the volume was unmounted meanwhile, the error is not about this volume.
        Err(_) if !cx.mounts().still_shows(path, &stat)? => Err(not_there()),
        read => read?.ok_or_else(not_there),
    }
}

/// Returns the usage and health of a filesystem; `None` if the filesystem is not the volume's.
fn filesystem<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
    stat: &Stat,
) -> Result<Option<VolumeStats>, Failure> {
    let path = &request.volume_path;
    let Some(proven) = cx.mounts().prove(&request.id, path, stat)? else {
        return Ok(None);
    };
    let facts = health::facts(cx, path, stat)?;
    let is_in_place = match facts.as_ref().filter(|facts| is_in_memory(facts)) {
        Some(facts) => will_be_in_place(cx, request, stat, (proven.device, facts))?,
        None => false,
    };
    // Check the health before the usage, since reading the usage may hang.
    let conditions = health::of_mounted(cx, request, proven.device, facts, Thread::Pool)?;
    let conditions =
        conditions.ok_or_else(|| Failure::bug("the health wants the pool on the pool"))?;
    let usage = cx.phase(Phase::Usage, || usage(cx, path, stat))?;
    if usage.is_some() {
        cx.index.note_in_place(path, stat, is_in_place);
    }
    Ok(usage.map(|usage| VolumeStats {
        usage: VolumeUsage::Filesystem(usage),
        conditions,
    }))
}

/// Returns the usage of exactly the mount that `stat` describes; `None` if a different mount is at
/// the path by now.
fn usage<K: Kernel>(node: &Node<K>, path: &Path, stat: &Stat) -> Result<Option<Usage>, Failure> {
    let mount = match node.kernel.open_path(path) {
        Err(error) if error.cause() == Cause::Missing => return Ok(None),
        opened => opened?,
    };
    let now = node.kernel.stat(&mount)?;
    if now.mount_id != stat.mount_id || !now.is_same_root(stat) {
        return Ok(None);
    }
    Ok(Some(node.kernel.fstatfs(&mount)?))
}

/// Whether the next statistics of this mount can be read on the event loop. The caller must have
/// checked [`is_in_memory`].
fn will_be_in_place<K: Kernel>(
    node: &Node<K>,
    request: &Stats,
    stat: &Stat,
    (device, facts): (Dev, &MountFacts),
) -> Result<bool, Failure> {
    let path = &request.volume_path;
    if stat.mount_id == 0 || !is_quick(node, path)? {
        return Ok(false);
    }
    if is_without_projects(node, facts, device) {
        return Ok(true);
    }
    let mounts = node.mounts();
    let (_, verdict) = mounts.verdict(&request.id, path, stat, Intent::Use)?;
    let has_projects = |held: &OpenDevice<K>| may_have_project_quotas(&node.kernel, held.fd());
    let is_without = matches!(verdict.held().map(has_projects), Some(Ok(false)));
    node.index.note_projects(device, !is_without);
    Ok(is_without)
}

/// Returns the size and health of a raw device; `None` if the device is not the volume's.
fn device<K: Kernel>(
    node: &Node<K>,
    request: &Stats,
    stat: &Stat,
) -> Result<Option<VolumeStats>, Failure> {
    let path = &request.volume_path;
    let (dev, verdict) = node
        .mounts()
        .verdict(&request.id, path, stat, Intent::Use)?;
    let Some(device) = verdict.held().filter(|_| stat.mount_root) else {
        return Ok(None);
    };
    let bytes = node.kernel.device_bytes(device.fd())?;
    let below = match device.is_mapper() {
        true => node.kernel.device_bytes(device.bottom().fd())?,
        false => bytes,
    };
    let backing = health::behind_held(&node.kernel, &verdict, below)?;
    let refuses_writes = health::refuses_writes(&node.kernel, &verdict)?;
    let at = (&request.id, path.as_path(), dev);
    let conditions = health::condition(node, at, (backing, refuses_writes, None), None)?;
    let stats = VolumeStats {
        usage: VolumeUsage::Block(bytes),
        conditions,
    };
    node.index.note_in_place(path, stat, false);
    Ok(Some(stats))
}

/// Returns the size and the free space of the filesystem that contains the backing files on a disk.
/// Returns `None` if the directory of the backing files was replaced after the agent had opened it,
/// because the new directory may be on a different filesystem. May block on a disk.
///
/// # Errors
/// Returns `UNAVAILABLE` if the directory is not open; otherwise the kernel's error.
pub(crate) fn space<K: Kernel>(node: &Node<K>, disk: usize) -> Result<Option<Space>, Failure> {
    let (kernel, dir) = (&node.kernel, node.folder(disk)?);
    let (named, held) = (kernel.look(dir.path())?, kernel.stat(dir.fd())?);
    if !named.is_some_and(|named| named.is_same_root(&held)) {
        return Ok(None);
    }
    let usage = kernel.statfs(dir.path())?;
    Ok(Some(Space {
        // Loop devices write as root, which may use the blocks that the filesystem reserves for
        // root.
        free_bytes: usage.total_bytes.saturating_sub(usage.used_bytes),
        size_bytes: usage.total_bytes,
    }))
}
