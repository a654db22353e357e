//! Implements NodeGetVolumeHealth and NodeGetStorageHealth. Concurrent calls with equal requests
//! share one job and its thread.

use std::path::Path;

use belay_proto::csi::v1 as csi;
use belay_server::call::{Failure, Kind, Rpc};
use belay_server::health::Conditions;
use belay_server::request::{NodeVolumeHealth, StorageHealth};
use belay_server::work::Key;
use futures_util::future::join_all;

use super::jobs::{Done, mixed_up};
use super::{NodeService, encode, reads};
use crate::device::VolumeDirs;
use crate::kernel::Kernel;
use crate::operation::{self, Context, StorageCondition};
use crate::work::{Class, Operation};

impl<K: Kernel> NodeService<K> {
    /// Returns the health of one volume.
    pub(super) async fn volume_health(
        &self,
        message: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse, Failure> {
        let request = NodeVolumeHealth::try_from(message)?;
        let id = request.id.clone();
        let mut conditions = match self.hung(&id) {
            Some(look) => reads::conditions(&look),
            None => self.look_into(request).await?,
        };
        self.unsynced.add_to(&mut conditions, &id);
        self.volumes.checked(&id, &conditions);
        Ok(csi::NodeGetVolumeHealthResponse {
            volume_health: Some(conditions.volume_health(id.as_str())),
        })
    }

    async fn look_into(&self, request: NodeVolumeHealth) -> Result<Conditions, Failure> {
        let id = request.id.clone();
        let paths = (&request.staging, &request.target);
        let key = Key::new(Class::Health, id.as_str()).at(format_args!("{paths:?}"));
        let call = (Rpc::NodeGetVolumeHealth, 0);
        let look = move |cx: &Context<'_, K>| operation::health(cx, &request).map(Done::Health);
        match self.run(key, call, Operation::Health, look).await {
            Ok(Done::Health(conditions)) => Ok(conditions),
            Ok(_) => Err(mixed_up()),
            // After the timeout, this job is itself the hung job of the volume; report the hung job
            // as the health reason.
            Err(failure) if failure.kind == Kind::Timeout => {
                let hung = self.hung(&id).ok_or(failure)?;
                Ok(reads::conditions(&hung))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns the health of the storage behind all volumes. Inspects all disks at the same time,
    /// so that a disk that hangs hides no condition of another disk.
    pub(super) async fn storage_health(
        &self,
        message: csi::NodeGetStorageHealthRequest,
    ) -> Result<csi::NodeGetStorageHealthResponse, Failure> {
        StorageHealth::try_from(message)?;
        let node = self.node()?;
        let disks = node.folders().into_iter().flat_map(VolumeDirs::paths);
        let looks = disks.enumerate().map(|disk| self.disk_health(disk));
        let looks: Result<Vec<_>, _> = join_all(looks).await.into_iter().collect();
        let mut conditions = looks?.concat();
        let hung = self.jobs.hung_count(Class::Change);
        conditions.extend(operation::volumes_hang(hung));
        Ok(encode::storage(conditions))
    }

    /// Returns the health of the storage on one disk with this directory.
    async fn disk_health(
        &self,
        (disk, path): (usize, &Path),
    ) -> Result<Vec<StorageCondition>, Failure> {
        let key = Key::new(Class::Storage, "storage").at(path.display());
        let call = (Rpc::NodeGetStorageHealth, 0);
        let look =
            move |cx: &Context<'_, K>| operation::storage_health(cx, disk).map(Done::Storage);
        match self.run(key, call, Operation::StorageHealth, look).await {
            Ok(Done::Storage(conditions)) => Ok(conditions),
            Ok(_) => Err(mixed_up()),
            Err(failure) if failure.kind == Kind::Timeout => {
                Ok(vec![operation::storage_hangs(path, &failure.message)])
            }
            Err(failure) => Err(failure),
        }
    }
}
