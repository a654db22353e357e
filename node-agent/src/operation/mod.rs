//! The agent's operations, one file per verb: inspect, decide, act, and roll back on failure.
//!
//! Operations are plain synchronous functions over the [`Kernel`](crate::kernel::Kernel) trait:
//! they can be run at any time, killed at any call and run again. They know no gRPC.

mod act;
mod context;
mod expand;
mod health;
mod kubelet_dir;
mod pending;
pub(crate) mod phase;
mod plan;
mod publish;
mod release;
mod space;
mod stage;
mod stats;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod unpublish;
mod unstage;

pub(crate) use expand::expand;
pub(crate) use health::{StorageComplaint, health, storage_hangs, storage_health, volumes_hang};
pub(crate) use kubelet_dir::KubeletDir;
pub(crate) use pending::is_wanted;
pub(crate) use publish::{Published, Thread, publish};
pub(crate) use release::release;
pub(crate) use space::space;
pub(crate) use stage::{Formatting, Staged, stage};
pub(crate) use stats::{VolumeStats, VolumeUsage, stats};
pub(crate) use unpublish::unpublish;
pub(crate) use unstage::unstage;

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::device::{DiskIndex, Transport};
use crate::kernel::Kernel;
use crate::mounts::{MountIndex, Mounts};

/// Describes the metrics of operations. Call it once, before the first operation.
pub(crate) fn announce() {
    phase::announce();
    stage::announce();
}

/// The context of every operation: the node, and one driver's volumes on it.
pub(crate) struct Node<K: Kernel> {
    kernel: K,
    transport: Transport<K>,
    index: MountIndex,
    kubelet_dir: Option<Arc<KubeletDir>>,
    placing: Arc<Mutex<()>>,
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
        Node {
            kernel,
            transport,
            index,
            kubelet_dir,
            placing: Arc::default(),
            pending: pending::Pending::default(),
        }
    }

    /// Changes with the disks of the node; `None` if volumes do not wait for disks.
    pub(crate) fn arrivals(&self) -> Option<watch::Receiver<u64>> {
        self.transport.disks().map(DiskIndex::arrivals)
    }

    /// Its mounts, for queries.
    fn mounts(&self) -> Mounts<'_, K> {
        Mounts {
            kernel: &self.kernel,
            transport: &self.transport,
            index: &self.index,
        }
    }

    /// Shares the lock for attaching mounts with the other drivers of the process. Each driver has
    /// a separate index, in which volume ids identify mounts: two drivers may use the same id.
    pub(crate) fn placing_by_turns(self, placing: &Arc<Mutex<()>>) -> Self {
        let placing = Arc::clone(placing);
        Node { placing, ..self }
    }
}
