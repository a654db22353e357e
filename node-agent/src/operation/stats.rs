//! `NodeGetVolumeStats`: a volume's usage.

use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::Stats;

use super::context::Context;
use super::publish::is_on_volume;
use super::{Node, Thread, health};
use crate::device::{Held, Intent};
use crate::filesystem::{FsType, may_have_project_quotas};
use crate::kernel::{FileKind, Kernel, MountFacts, Stat, Usage};
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
    /// The volume's usage and health, and where they can be read the next time.
    Done(VolumeStats, Thread),
    /// A device or a disk must be queried.
    WantsPool,
}

/// The usage and health of a published or staged volume. On [`Thread::Only`], for a path that a run
/// on the pool has allowed that for.
///
/// # Errors
/// `NOT_FOUND` if the volume is not mounted at that path.
pub(crate) fn stats<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
    thread: Thread,
) -> Result<Read, Failure> {
    let path = &request.volume_path;
    // While the volume is mounted there, the whole path is in memory.
    if thread == Thread::Only && !cx.index.of_volume(&request.id).contains(path) {
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
    if thread == Thread::Only && cx.index.proven(path, &stat, &request.id).is_none() {
        return Ok(Read::WantsPool);
    }
    let read = match stat.kind {
        FileKind::BlockDevice => device(cx, request, &stat),
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
    let Some(proven) = cx.mounts().prove(&request.id, path, stat)? else {
        return Ok(None);
    };
    let facts = health::facts(cx, path, stat)?;
    let next = match &facts {
        Some(facts) if facts.counts_in_memory => match thread {
            Thread::Only => Thread::Only,
            Thread::Pool => next(cx, request, stat, facts)?,
        },
        _ if thread == Thread::Only => return Ok(Some(Read::WantsPool)),
        _ => Thread::Pool,
    };
    // Before the usage, which may hang: the hung call has then checked the health.
    let conditions = health::of_mounted(cx, request, proven.device, facts, thread)?;
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
    Ok(is_its_own.then_some(Read::Done(stats, next)))
}

/// Where the statistics of a mount can be read the next time, which counts in memory so far as its
/// options show. They do not show every project quota of an ext4: one may be the default of its
/// superblock, or have been turned on by quotactl(2).
fn next<K: Kernel>(
    node: &Node<K>,
    request: &Stats,
    stat: &Stat,
    facts: &MountFacts,
) -> Result<Thread, Failure> {
    let path = &request.volume_path;
    if stat.mount_id == 0 || is_on_volume(node, path)? {
        return Ok(Thread::Pool);
    }
    if facts.fs_type == FsType::Ext4.name() {
        let mounts = node.mounts();
        let (_, verdict) = mounts.verdict(&request.id, path, stat, Intent::Use)?;
        let kernel = &node.kernel;
        let has_quotas = |device: &Held<K>| may_have_project_quotas(kernel, device.fd());
        if !matches!(verdict.held().map(has_quotas), Some(Ok(false))) {
            return Ok(Thread::Pool);
        }
    }
    Ok(Thread::Only)
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
    Ok(Some(Read::Done(stats, Thread::Pool)))
}
