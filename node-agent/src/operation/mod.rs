//! The operations of the agent, one file per CSI call. An operation inspects, decides, acts, and
//! rolls back on failure.
//!
//! Operations are plain synchronous functions over the [`Kernel`](crate::kernel::Kernel) trait.
//! They can run at any time, can be killed at any system call, and can then run again. They must
//! not use gRPC types.

mod act;
mod checks;
mod expand;
mod health;
mod kubelet_dir;
mod limit;
mod pending;
mod plan;
mod publish;
mod raw;
pub(crate) mod remote;
mod removed;
mod stage;
mod stats;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod unpublish;
mod unstage;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use belay_server::call::Failure;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use tokio::sync::watch;

use crate::device::{DiskIndex, Transport};
use crate::kernel::{self, Dev, Kernel};
use crate::mounts::{MountIndex, Mounts};
use crate::work::{Clock, Operation, Phase, Progress};
use checks::Checks;

pub(crate) use expand::expand;
pub(crate) use health::{StorageCondition, health, storage_hangs, storage_health, volumes_hang};
pub(crate) use kubelet_dir::KubeletDir;
pub(crate) use limit::volumes_max;
pub(crate) use pending::{is_wanted, release};
pub(crate) use publish::publish;
pub(crate) use removed::{removed, unmount_if_removed};
pub(crate) use stage::{Obstacle, stage};
pub(crate) use stats::{VolumeStats, VolumeUsage, space, stats};
pub(crate) use unpublish::{Flushed, flush, unpublish};
pub(crate) use unstage::unstage;

/// Maximum number of mounts on one path that a call unmounts. Belay never stacks mounts, but
/// another program may have done so.
const STACKED_MAX: u32 = 16;

/// The thread on which an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// The event loop. The operation stops before any system call that could wait.
    Only,
    /// A thread of the pool. The operation may wait for a disk.
    Pool,
}

/// Describes the metrics of this module. Call it once, before the first operation.
pub(crate) fn announce() {
    stage::announce();
}

/// The context of every operation: the node, and the volumes of one driver on it.
pub(crate) struct Node<K: Kernel> {
    kernel: K,
    transport: Transport<K>,
    index: Arc<MountIndex>,
    kubelet_dir: Option<Arc<KubeletDir>>,
    shared: Arc<Shared>,
    pending: pending::Pending,
}

impl<K: Kernel> Node<K> {
    /// Returns the mounts in the index, each with its device, and with its volume if that was
    /// verified.
    pub(crate) fn mounts_seen(&self) -> Vec<(PathBuf, Option<VolumeId>, Dev)> {
        self.index.mounts()
    }

    /// Returns a node whose volumes are provided by `transport`, whose mounts `index` records, and
    /// whose paths must be under `kubelet_dir`, if set.
    pub(crate) fn new(
        kernel: K,
        transport: Transport<K>,
        index: MountIndex,
        kubelet_dir: Option<Arc<KubeletDir>>,
    ) -> Self {
        let node = Node {
            kernel,
            transport,
            index: Arc::new(index),
            kubelet_dir,
            shared: Arc::default(),
            pending: pending::Pending::default(),
        };
        node.sharing(&Arc::default())
    }

    /// Returns a receiver that changes when the disks of the node change; `None` if the driver's
    /// volumes are not disks.
    pub(crate) fn arrivals(&self) -> Option<watch::Receiver<u64>> {
        self.transport.disks().map(DiskIndex::arrivals)
    }

    /// Whether a cloud can detach volumes before they are unstaged.
    pub(crate) fn may_lose_devices(&self) -> bool {
        self.transport.disks().is_some()
    }

    /// Returns the node's mounts, for queries.
    fn mounts(&self) -> Mounts<'_, K> {
        Mounts {
            kernel: &self.kernel,
            transport: &self.transport,
            index: &self.index,
            said: None,
        }
    }

    /// Whether a mount of any driver shows the device.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    fn is_shown(&self, volume: &VolumeId, dev: Dev) -> kernel::Result<bool> {
        Ok(self.shared.is_noted(dev) && self.mounts().is_shown(volume, dev)?)
    }

    /// Returns this node as one of several drivers of a process, which share `shared`. Each driver
    /// has a separate index, in which volume IDs identify mounts, since two drivers may use the
    /// same ID.
    pub(crate) fn sharing(self, shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        shared.add(&self.index);
        Node { shared, ..self }
    }
}

/// State that all drivers of a process share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Locked while a mount is attached to a path.
    placing: Lock<()>,
    checks: Checks,
    indexes: Lock<Vec<Weak<MountIndex>>>,
}

impl Shared {
    fn add(&self, index: &Arc<MountIndex>) {
        let mut indexes = self.indexes.lock();
        indexes.retain(|index| index.strong_count() > 0);
        indexes.push(Arc::downgrade(index));
    }

    /// Whether the index of any driver has a mount of the device.
    fn is_noted(&self, dev: Dev) -> bool {
        let indexes = self.indexes.lock();
        let mut live = indexes.iter().filter_map(Weak::upgrade);
        live.any(|index| index.has(dev))
    }
}

/// Types of filesystems that have anonymous device numbers but make no requests to a server.
const LOCAL: [&str; 6] = ["bcachefs", "btrfs", "overlay", "ramfs", "tmpfs", "zfs"];

/// Whether a path can be used on the event loop, where no system call may wait. Its directory must
/// be in the kernel's cache, and its filesystem must be neither a volume, which may hang, nor on a
/// server.
///
/// # Errors
/// Returns the kernel's error.
fn is_quick<K: Kernel>(node: &Node<K>, path: &Path) -> Result<bool, Failure> {
    let directory = path.parent().map(|it| node.kernel.open_path_cached(it));
    let Some(Ok(Some(directory))) = directory else {
        return Ok(false);
    };
    let stat = node.kernel.stat(&directory)?;
    if node.transport.carries_volumes(&node.kernel, stat.dev)? {
        return Ok(false);
    }
    if !stat.dev.is_anonymous() {
        return Ok(true);
    }
    if node.index.shows(stat.dev) {
        return Ok(false);
    }
    let facts = node.kernel.statmount_of(stat.mount_id)?;
    Ok(facts.is_some_and(|facts| LOCAL.contains(&&*facts.fs_type)))
}

/// The context of a running operation: the node, and the clock that measures and shows the current
/// phase.
pub(crate) struct Context<'a, K: Kernel> {
    node: &'a Node<K>,
    clock: Clock<'a>,
}

impl<K: Kernel> Context<'_, K> {
    /// Runs a part of the operation in this phase. Afterwards the outer phase continues.
    fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        self.clock.phase(phase, work)
    }

    /// Returns the progress of the operation, which other threads can read.
    fn progress(&self) -> &Progress {
        self.clock.progress()
    }
}

impl<K: Kernel> Deref for Context<'_, K> {
    type Target = Node<K>;

    fn deref(&self) -> &Node<K> {
        self.node
    }
}

/// Runs a whole operation, and shows its phase in `progress`. Work outside of other phases counts
/// as [`Phase::Inspect`].
pub(crate) fn run<K: Kernel, T>(
    node: &Node<K>,
    progress: &Progress,
    operation: Operation,
    work: impl FnOnce(&Context<'_, K>) -> T,
) -> T {
    let clock = Clock::start(operation, progress);
    let cx = Context { node, clock };
    cx.phase(Phase::Inspect, || work(&cx))
}
