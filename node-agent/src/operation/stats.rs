//! `NodeGetVolumeStats`: a volume's usage.

use belay_server::call::Failure;
use belay_server::health::Complaints;
use belay_server::request::Stats;

use super::context::Context;
use super::health;
use super::{Node, Thread};
use crate::device::Intent;
use crate::kernel::{FileKind, Kernel, Stat, Usage};
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
    pub(crate) complaints: Complaints,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The volume's usage and health.
    Done(VolumeStats),
    /// A device or a disk must be queried, for this volume each time.
    WantsPool,
    /// The same, this time.
    WantsPoolNow,
}

/// The usage and health of a published or staged volume. Wants the pool for a raw device, for a
/// filesystem that does not count in memory, and while its file's name is not in memory.
///
/// # Errors
/// `NOT_FOUND` if the volume is not mounted at that path.
pub(crate) fn stats<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Stats,
    thread: Thread,
) -> Result<Read, Failure> {
    let path = &request.volume_path;
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
    if stat.kind == FileKind::BlockDevice {
        if thread == Thread::Only {
            return Ok(Read::WantsPool);
        }
        return device(cx, request, &stat)?
            .ok_or_else(not_there)
            .map(Read::Done);
    }
    if thread == Thread::Only && cx.index.proven(path, &stat, &request.id).is_none() {
        return Ok(Read::WantsPoolNow);
    }
    let device = cx.mounts().prove(&request.id, path, &stat)?;
    let device = device.ok_or_else(not_there)?.device;
    let facts = health::facts(cx, path, &stat)?;
    if thread == Thread::Only && !facts.as_ref().is_some_and(|facts| facts.counts_in_memory) {
        return Ok(Read::WantsPool);
    }
    // Before the usage, which may hang: the hung call has then checked the health.
    let Some(complaints) = health::of_mounted(cx, request, device, facts, thread)? else {
        return Ok(Read::WantsPoolNow);
    };
    let usage = cx.phase(Phase::Usage, || cx.kernel.statfs(path));
    // If it was unmounted meanwhile, the usage is that of the filesystem under it, or none.
    let now = cx.mounts().look("volume_path", path)?;
    if !now.is_some_and(|now| now.mount_id == stat.mount_id && now.is_same_root(&stat)) {
        return Err(not_there());
    }
    Ok(Read::Done(VolumeStats {
        usage: VolumeUsage::Filesystem(usage?),
        complaints,
    }))
}

/// The usage of a raw device, if it is the volume's.
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
    let backing = health::behind_held(&node.kernel, &verdict, bytes)?;
    let complaints = health::of_device(node, &request.id, path, dev, backing)?;
    Ok(Some(VolumeStats {
        usage: VolumeUsage::Block(bytes),
        complaints,
    }))
}
