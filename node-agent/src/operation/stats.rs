//! `NodeGetVolumeStats`: a volume's usage.

use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::Stats;

use super::context::Context;
use super::publish::is_on_volume;
use super::{Node, Thread, health};
use crate::device::{Held, Intent};
use crate::filesystem::{FsType, may_have_project_quotas};
use crate::kernel::{Dev, FileKind, Kernel, MountFacts, Stat, Usage};
use crate::work::Phase;

/// A volume's usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeUsage {
    /// A filesystem.
    Filesystem(Usage),
    /// A raw device of so many bytes; its usage is unknown.
    Block(u64),
}

/// A volume's usage and health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeStats {
    pub(crate) usage: VolumeUsage,
    pub(crate) conditions: Conditions,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The volume's usage and health.
    Done(VolumeStats),
    /// A device or a disk must be queried.
    WantsPool,
}

/// The usage and health of a published or staged volume.
///
/// # Errors
/// `NOT_FOUND` if the volume is not mounted at that path.
pub(crate) fn stats<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
    thread: Thread,
) -> Result<Read, Failure> {
    let path = &request.volume_path;
    // While the volume is mounted there, and nothing covers it, the whole path is in memory.
    let is_in_place = || cx.index.is_read_in_place(path, &request.id);
    if thread == Thread::Only && is_in_place() == Some(false) {
        return Ok(Read::WantsPool);
    }
    cx.admit("volume_path", path)?;
    if let Some(staging) = &request.staging {
        cx.admit("staging_target_path", staging)?;
    }
    let not_there = || {
        Failure::not_found(format!(
            "volume_path: volume {} is not mounted at {}",
            request.id,
            path.display()
        ))
    };
    if !path.is_absolute() {
        return Err(not_there());
    }
    let stat = cx
        .mounts()
        .look("volume_path", path)?
        .ok_or_else(not_there)?;
    let read = match (stat.kind, thread) {
        (FileKind::BlockDevice, Thread::Pool) => device(cx, request, &stat),
        (FileKind::BlockDevice, Thread::Only) => return Ok(Read::WantsPool),
        _ => filesystem(cx, request, &stat, thread),
    };
    match read {
        // An error says nothing of a volume that was unmounted meanwhile.
        Err(_) if !cx.mounts().still_shows(path, &stat)? => Err(not_there()),
        read => read?.ok_or_else(not_there),
    }
}

/// The usage of a filesystem, if it is the volume's.
fn filesystem<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
    stat: &Stat,
    thread: Thread,
) -> Result<Option<Read>, Failure> {
    let path = &request.volume_path;
    let device = match (cx.index.proven(path, stat, &request.id), thread) {
        // The options of a btrfs may have to be read from the disk.
        (Some(_), Thread::Only) if stat.dev.is_anonymous() => return Ok(Some(Read::WantsPool)),
        (Some(device), _) => device,
        (None, Thread::Only) => return Ok(Some(Read::WantsPool)),
        (None, Thread::Pool) => match cx.mounts().prove(&request.id, path, stat)? {
            Some(proven) => proven.device,
            None => return Ok(None),
        },
    };
    let facts = health::facts(cx, path, stat)?;
    let can_be_in_place = can_be_in_place(cx, request, stat, (device, &facts), thread)?;
    if thread == Thread::Only && !can_be_in_place {
        return Ok(Some(Read::WantsPool));
    }
    // Before the usage, which may hang: the hung call has then checked the health.
    let conditions = health::of_mounted(cx, request, device, facts, thread)?;
    let Some(conditions) = conditions else {
        return Ok(Some(Read::WantsPool));
    };
    let usage = cx.phase(Phase::Usage, || cx.kernel.statfs(path))?;
    // If it was unmounted meanwhile, the usage is that of the filesystem under it.
    let stats = VolumeStats {
        usage: VolumeUsage::Filesystem(usage),
        conditions,
    };
    let is_its_own = cx.mounts().still_shows(path, stat)?;
    if is_its_own {
        cx.index.note_in_place(path, stat, can_be_in_place);
    }
    Ok(is_its_own.then_some(Read::Done(stats)))
}

/// Whether the statistics of the mount can be read on the event loop. The options of an ext4 do not
/// show every project quota: one may be the default of its superblock, or have been turned on by
/// quotactl(2).
fn can_be_in_place<K: Kernel>(
    node: &Node<K>,
    request: &Stats,
    stat: &Stat,
    (device, facts): (Dev, &Option<MountFacts>),
    thread: Thread,
) -> Result<bool, Failure> {
    let path = &request.volume_path;
    let Some(facts) = facts.as_ref().filter(|facts| facts.counts_in_memory) else {
        return Ok(false);
    };
    let has_been = || node.index.is_read_in_place(path, &request.id) == Some(true);
    if thread == Thread::Only && has_been() {
        return Ok(true);
    }
    if stat.mount_id == 0 || is_on_volume(node, path)? {
        return Ok(false);
    }
    if facts.fs_type != FsType::Ext4.name() || node.index.is_without_projects(device) {
        return Ok(true);
    }
    if thread == Thread::Only {
        return Ok(false);
    }
    let mounts = node.mounts();
    let (_, verdict) = mounts.verdict(&request.id, path, stat, Intent::Use)?;
    let has_projects = |held: &Held<K>| may_have_project_quotas(&node.kernel, held.fd());
    let is_without = matches!(verdict.held().map(has_projects), Some(Ok(false)));
    node.index.note_projects(device, !is_without);
    Ok(is_without)
}

/// The usage of a raw device, if it is the volume's.
fn device<K: Kernel>(
    node: &Node<K>,
    request: &Stats,
    stat: &Stat,
) -> Result<Option<Read>, Failure> {
    let path = &request.volume_path;
    let (dev, verdict) = node
        .mounts()
        .verdict(&request.id, path, stat, Intent::Use)?;
    let Some(device) = verdict.held().filter(|_| stat.mount_root) else {
        return Ok(None);
    };
    let bytes = node.kernel.device_bytes(device.fd())?;
    let backing = health::behind_held(&node.kernel, &verdict, bytes)?;
    let conditions = health::condition(node, (&request.id, path, dev), backing, None)?;
    let stats = VolumeStats {
        usage: VolumeUsage::Block(bytes),
        conditions,
    };
    node.index.note_in_place(path, stat, false);
    Ok(Some(Read::Done(stats)))
}
