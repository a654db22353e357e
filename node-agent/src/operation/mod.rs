//! What the agent does, one verb a file: look, decide, act, and put back on failure.
//!
//! Operations are plain synchronous functions over the [`Kernel`](crate::kernel::Kernel) trait:
//! they may be run whole at any time, killed at any call and run again. They know no gRPC.

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

/// Describes what operations measure. To be called once, before the first of them.
pub(crate) fn announce() {
    phase::announce();
    stage::announce();
}

/// What every operation works with: the node, and one driver's volumes on it.
pub(crate) struct Node<K: Kernel> {
    kernel: K,
    transport: Transport<K>,
    index: MountIndex,
    kubelet_dir: Option<Arc<KubeletDir>>,
    placing: Arc<Mutex<()>>,
    pending: pending::Pending,
}

impl<K: Kernel> Node<K> {
    /// A node whose volumes come by `transport`, whose mounts `index` has, and whose paths are
    /// beneath `kubelet_dir`, or anywhere.
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

    /// Changes with the disks of the node; `None` where volumes do not wait for any.
    pub(crate) fn arrivals(&self) -> Option<watch::Receiver<u64>> {
        self.transport.disks().map(DiskIndex::arrivals)
    }

    /// Its mounts, to be asked for.
    fn mounts(&self) -> Mounts<'_, K> {
        Mounts {
            kernel: &self.kernel,
            transport: &self.transport,
            index: &self.index,
        }
    }

    /// Next to other drivers of the same process, which place their mounts in turns. Each has an
    /// index of its own, where mounts are known by the ids of volumes: two may have the same.
    pub(crate) fn placing_by_turns(self, placing: &Arc<Mutex<()>>) -> Self {
        let placing = Arc::clone(placing);
        Node { placing, ..self }
    }
}
