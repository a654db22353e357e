//! The data of a driver for `/metrics` and the status page: the volumes that calls have reported,
//! and the space on the filesystem of the backing files, which is read on a thread of the pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use belay_contract::reason::{Reporter, volume};
use belay_server::call::Rpc;
use belay_server::facts::{Facts, Known, Measuring, Shown, Space};
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use belay_server::work::Key;
use futures_util::future::join_all;

use super::NodeService;
use super::jobs::Done;
use crate::device::VolumeDirs;
use crate::kernel::Kernel;
use crate::operation::{self, Node};
use crate::work::Class;

/// The most recent measurements of the space on the filesystems of the backing files, by disk.
pub(super) type Storage = Lock<BTreeMap<String, Space>>;

impl<K: Kernel> Facts for NodeService<K> {
    fn reasons(&self) -> Vec<&'static str> {
        Reporter::Node.volume_reasons()
    }

    fn known(&self) -> Known {
        let mut unhealthy = self.volumes.unhealthy();
        // Use the count of `unsynced`, because `volumes` omits volumes with unsynced data for which
        // no call was made since.
        match u64::try_from(self.unsynced.count()) {
            Ok(0) | Err(_) => drop(unhealthy.remove(volume::DATA_UNSYNCED.name())),
            Ok(count) => drop(unhealthy.insert(volume::DATA_UNSYNCED.name(), count)),
        }
        Known {
            storage: self.storage.lock().clone(),
            volumes: u64::try_from(self.volumes.count()).ok(),
            unhealthy,
        }
    }

    /// Returns the volumes for the status page, with the paths at which each volume is mounted
    /// according to the mount index. In Kubernetes, such a path contains the pod's UID and the name
    /// of the persistent volume.
    fn shown(&self) -> Vec<Shown> {
        let mut shown = self.volumes.shown();
        // Before the driver is ready, it has no mounts.
        for (path, volume, device) in self
            .node()
            .map_or_else(|_| Vec::new(), |it| it.mounts_seen())
        {
            let volume = volume.as_ref().map(VolumeId::as_str);
            if let Some(volume) = shown.iter_mut().find(|it| Some(it.id.as_str()) == volume) {
                volume
                    .details
                    .push(format!("{} ({device})", path.display()));
            }
        }
        shown.iter_mut().for_each(|volume| volume.details.sort());
        shown
    }

    fn measure(self: Arc<Self>) -> Measuring {
        Box::pin(async move {
            // Ignore errors here: the readiness endpoint reports a driver that is not ready, and
            // the health calls report a disk that does not respond.
            let Ok(node) = self.node() else { return };
            let disks = node.folders().into_iter().flat_map(VolumeDirs::names);
            let measured = disks.enumerate().map(|disk| self.measure_disk(disk));
            join_all(measured).await;
        })
    }
}

impl<K: Kernel> NodeService<K> {
    /// Stores the space on one disk.
    async fn measure_disk(&self, (disk, name): (usize, &str)) {
        let key = Key::new(Class::Storage, "space").at(name);
        let call = (Rpc::NodeGetStorageHealth, 0);
        let work = move |node: &Node<K>| operation::space(node, disk).map(Done::Space);
        if let Ok(Done::Space(Some(space))) = self.query(key, call, work).await {
            self.storage.lock().insert(name.to_owned(), space);
        }
    }
}
