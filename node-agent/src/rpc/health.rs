//! The two health calls. Repeated calls share one thread.

use std::sync::Arc;

use belay_proto::csi::v1 as csi;
use belay_server::call::{Failure, Kind, Rpc};
use belay_server::health::Complaints;
use belay_server::request::{NodeVolumeHealth, StorageHealth, VolumeId};
use belay_server::work::{JobView, Jobs, Ticket};

use super::{NodeService, encode, reads};
use crate::kernel::Kernel;
use crate::operation::phase::Progress;
use crate::operation::{self, StorageComplaint};
use crate::pool::Lane;

/// The running health checks.
pub(super) struct Looks {
    volumes: Jobs<Complaints>,
    storage: Jobs<Vec<StorageComplaint>>,
}

impl Looks {
    pub(super) fn new() -> Self {
        Looks {
            volumes: Jobs::new(reads::DEADLINE),
            storage: Jobs::new(reads::DEADLINE),
        }
    }

    /// A hung health check of this volume.
    pub(super) fn hung(&self, id: &VolumeId) -> Option<JobView> {
        self.volumes.hung(|key| reads::concerns(key, id))
    }
}

impl<K: Kernel> NodeService<K> {
    /// The health of one volume.
    pub(super) async fn volume_health(
        &self,
        message: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse, Failure> {
        let request = NodeVolumeHealth::try_from(message)?;
        let id = request.id.clone();
        let complaints = match self.hung(&id) {
            Some(look) => reads::complaints(&look),
            None => self.look_into(request).await?,
        };
        self.volumes.checked(&id, &complaints);
        Ok(csi::NodeGetVolumeHealthResponse {
            volume_health: Some(complaints.volume_health(id.as_str())),
        })
    }

    async fn look_into(&self, request: NodeVolumeHealth) -> Result<Complaints, Failure> {
        let id = request.id.clone();
        let paths = (&request.staging, &request.target);
        let key = reads::key(&id, format_args!("{paths:?}"));
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let look = |ticket: Ticket| async move {
            let look = move |progress: &Progress| operation::health(&node, progress, &request);
            pool.run(&ticket, Lane::Read, look).await
        };
        let rpc = Rpc::NodeGetVolumeHealth;
        match self.looks.volumes.run(&key, rpc, 0, look).await {
            // The hung call may be this one, which now has its answer.
            Err(failure) if failure.kind == Kind::Timeout => {
                let hung = self.hung(&id).ok_or(failure)?;
                Ok(reads::complaints(&hung))
            }
            complaints => complaints,
        }
    }

    /// The health of the storage behind all volumes.
    pub(super) async fn storage_health(
        &self,
        message: csi::NodeGetStorageHealthRequest,
    ) -> Result<csi::NodeGetStorageHealthResponse, Failure> {
        StorageHealth::try_from(message)?;
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let look = |ticket: Ticket| async move {
            let look = move |progress: &Progress| operation::storage_health(&node, progress);
            pool.run(&ticket, Lane::Read, look).await
        };
        let rpc = Rpc::NodeGetStorageHealth;
        let looked = self.looks.storage.run("storage", rpc, 0, look).await;
        let mut complaints = match looked {
            Err(failure) if failure.kind == Kind::Timeout => {
                vec![operation::storage_hangs(&failure.message)]
            }
            complaints => complaints?,
        };
        complaints.extend(operation::volumes_hang(self.changes.hung_count()));
        Ok(encode::storage(complaints))
    }
}
