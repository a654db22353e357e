//! The operations of the agent, one file per CSI call. Each operation inspects the state of the
//! node, decides, acts, and rolls back on failure.
//!
//! Operations are synchronous functions over the [`Kernel`](crate::kernel::Kernel) trait. An
//! operation may run at any time, may be killed at any system call, and may then be repeated.
//! Operations must not use gRPC types.

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

use crate::device::{DiskIndex, Transport, VolumeDir, VolumeDirs};
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
/// another program may have stacked some.
const STACKED_MAX: u32 = 16;

/// The thread on which an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// The event loop. The operation returns before any system call that could block.
    Only,
    /// A thread of the pool. The operation may block on a disk.
    Pool,
}

/// Registers the descriptions of this module's metrics. Call it once, before the first operation.
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
    /// Returns all mounts in the index: the path, the volume if it was verified, and the device.
    pub(crate) fn mounts_seen(&self) -> Vec<(PathBuf, Option<VolumeId>, Dev)> {
        self.index.mounts()
    }

    /// Creates the node of a single driver. `transport` provides the volumes, `index` contains the
    /// existing mounts, and all paths must be under `kubelet_dir`, if set.
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

    /// Returns a receiver that is notified when the disks of the node change; `None` if the
    /// driver's volumes are not disks.
    pub(crate) fn arrivals(&self) -> Option<watch::Receiver<u64>> {
        self.transport.disks().map(DiskIndex::arrivals)
    }

    /// Whether a cloud can detach volumes before they are unstaged.
    pub(crate) fn may_lose_devices(&self) -> bool {
        self.transport.disks().is_some()
    }

    /// Returns the directories of the volumes; `None` if volumes are disks.
    pub(crate) fn folders(&self) -> Option<&VolumeDirs<K>> {
        self.transport.folders()
    }

    /// Returns the directory of a disk with volumes' files.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` if the directory is not open.
    fn folder(&self, disk: usize) -> Result<&VolumeDir<K>, Failure> {
        let none = || Failure::bug("the volumes of this driver are not files");
        self.folders().ok_or_else(none)?.dir(disk)
    }

    /// Scans the mount table again, and adds the mounts that the index does not have.
    ///
    /// # Errors
    /// Returns an error if mountinfo or sysfs cannot be read.
    pub(crate) fn find_mounts(&self) -> kernel::Result<()> {
        let found = MountIndex::scan(&self.kernel, &self.transport)?;
        self.index.add(&found);
        Ok(())
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

    /// Whether the device is mounted anywhere, according to the indexes of all drivers and the
    /// mount table.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    fn is_shown(&self, volume: &VolumeId, dev: Dev) -> kernel::Result<bool> {
        Ok(self.shared.is_noted(dev) && self.mounts().is_shown(volume, dev)?)
    }

    /// Returns this node with the state `shared`, which all drivers of the process share. The mount
    /// index remains separate for each driver, because volume IDs are its keys and two drivers may
    /// use the same volume ID.
    pub(crate) fn sharing(self, shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        shared.add(&self.index);
        Node { shared, ..self }
    }
}

/// State that all drivers of a process share.
#[derive(Default)]
pub(crate) struct Shared {
    /// A lock that is held while a mount is attached to a path.
    placing: Lock<()>,
    /// The running e2fsck processes.
    checks: Checks,
    /// The running key derivations of encrypted volumes.
    derivations: Checks,
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

/// Filesystem types that have anonymous device numbers but do not send requests to a server.
const LOCAL: [&str; 6] = ["bcachefs", "btrfs", "overlay", "ramfs", "tmpfs", "zfs"];

/// Whether a path can be used on the event loop, where no system call may block. The parent
/// directory must be in the kernel's dentry cache. The filesystem of this directory must not be a
/// volume, which may hang, and must not be on a server.
///
/// # Errors
/// Returns the kernel's error.
fn is_quick<K: Kernel>(node: &Node<K>, path: &Path) -> Result<bool, Failure> {
    let directory = path.parent().map(|it| node.kernel.open_path_cached(it));
    let Some(Ok(Some(directory))) = directory else {
        return Ok(false);
    };
    let stat = node.kernel.stat(&directory)?;
    // The kubelet's directory may be on a mapper, about which sysfs is not read for each call.
    if node.kernel.is_mapper(stat.dev) {
        return Ok(!node.shared.is_noted(stat.dev));
    }
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

/// The context of a running operation: the node, and the clock that measures the current phase.
pub(crate) struct Context<'a, K: Kernel> {
    node: &'a Node<K>,
    clock: Clock<'a>,
}

impl<K: Kernel> Context<'_, K> {
    /// Runs `work` in this phase of the operation, and then returns to the outer phase.
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

/// Runs a whole operation, and stores its current phase in `progress`. The initial phase is
/// [`Phase::Inspect`].
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
