//! The agent's operations, one file per verb: inspect, decide, act, and roll back on failure.
//!
//! Operations are plain synchronous functions over the [`Kernel`](crate::kernel::Kernel) trait:
//! they can be run at any time, killed at any call and run again. They know no gRPC.

mod act;
mod checks;
mod context;
mod expand;
mod flush;
mod health;
mod kubelet_dir;
mod limit;
mod pending;
mod plan;
mod publish;
mod quick;
mod raw;
mod release;
pub(crate) mod remote;
mod removed;
mod space;
mod stage;
mod stats;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod unpublish;
mod unstage;

pub(crate) use context::{Context, run};
pub(crate) use expand::expand;
pub(crate) use flush::{Flushed, flush};
pub(crate) use health::{StorageCondition, health, storage_hangs, storage_health, volumes_hang};
pub(crate) use kubelet_dir::KubeletDir;
pub(crate) use limit::volumes_max;
pub(crate) use pending::is_wanted;
pub(crate) use publish::{Published, publish, stage_and_publish};
pub(crate) use release::release;
pub(crate) use removed::{Cleared, Removed, clear, removed};
pub(crate) use space::space;
pub(crate) use stage::{Obstacle, stage};
pub(crate) use stats::{Read, VolumeStats, VolumeUsage, stats};
pub(crate) use unpublish::unpublish;
pub(crate) use unstage::unstage;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use belay_server::request::VolumeId;
use tokio::sync::watch;

use crate::device::{DiskIndex, Transport};
use crate::kernel::{Dev, Kernel, Result};
use crate::mounts::{MountIndex, Mounts};
use checks::Checks;

/// The maximum number of mounts stacked on one path that a call takes down. We never stack, but
/// another program may have.
const STACKED_MAX: u32 = 16;

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// On the event loop: it stops before any call that could wait.
    Only,
    /// On the pool: it may wait for a disk.
    Pool,
}

/// Describes the metrics of this module. Call it once, before the first operation.
pub(crate) fn announce() {
    stage::announce();
}

/// The context of every operation: the node, and one driver's volumes on it.
pub(crate) struct Node<K: Kernel> {
    kernel: K,
    transport: Transport<K>,
    index: Arc<MountIndex>,
    kubelet_dir: Option<Arc<KubeletDir>>,
    beside: Arc<Beside>,
    pending: pending::Pending,
}

impl<K: Kernel> Node<K> {
    /// A node whose volumes are provided by `transport`, whose mounts `index` records, and whose
    /// paths must be under `kubelet_dir`, if set.
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
            beside: Arc::default(),
            pending: pending::Pending::default(),
        };
        node.beside(&Arc::default())
    }

    /// Changes with the disks of the node; `None` if volumes do not wait for disks.
    pub(crate) fn arrivals(&self) -> Option<watch::Receiver<u64>> {
        self.transport.disks().map(DiskIndex::arrivals)
    }

    /// Volumes can be detached by a cloud before they are unstaged.
    pub(crate) fn may_lose_devices(&self) -> bool {
        self.transport.disks().is_some()
    }

    /// Its mounts, for queries.
    fn mounts(&self) -> Mounts<'_, K> {
        Mounts {
            kernel: &self.kernel,
            transport: &self.transport,
            index: &self.index,
        }
    }

    /// Whether a mount shows the device, whatever volume and driver it was made for.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    fn is_shown(&self, volume: &VolumeId, dev: Dev) -> Result<bool> {
        Ok(self.beside.is_noted(dev) && self.mounts().is_shown(volume, dev)?)
    }

    /// Serves one of several drivers of the process. Each has a separate index, in which volume ids
    /// identify mounts: two drivers may use the same id.
    pub(crate) fn beside(self, beside: &Arc<Beside>) -> Self {
        let beside = Arc::clone(beside);
        beside.add(&self.index);
        Node { beside, ..self }
    }
}

/// What the drivers of a process share.
#[derive(Default)]
pub(crate) struct Beside {
    /// Held while a mount is attached.
    placing: Mutex<()>,
    checks: Checks,
    indexes: Mutex<Vec<Weak<MountIndex>>>,
}

impl Beside {
    fn add(&self, index: &Arc<MountIndex>) {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|index| index.strong_count() > 0);
        indexes.push(Arc::downgrade(index));
    }

    /// Whether any driver has noted a mount of the device.
    fn is_noted(&self, dev: Dev) -> bool {
        let indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = indexes.iter().filter_map(Weak::upgrade);
        live.any(|index| index.has(dev))
    }
}
