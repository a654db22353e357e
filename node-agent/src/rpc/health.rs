//! The two calls about health. Callers that ask again and again share one thread.

use std::sync::Arc;

use belay_proto::csi::v1 as csi;
use belay_server::failure::Failure;
use belay_server::health::Complaints;
use belay_server::jobs::{Jobs, fingerprint};
use belay_server::request::{NodeVolumeHealth, StorageHealth};
use belay_server::rpc::Rpc;

use super::{NodeService, encode};
use crate::kernel::Kernel;
use crate::operation::{self, StorageComplaint};

/// The looks that are going on.
pub(super) struct Looks {
    volumes: Jobs<Complaints>,
    storage: Jobs<Vec<StorageComplaint>>,
}

impl Looks {
    pub(super) fn new() -> Self {
        Looks {
            volumes: Jobs::new(),
            storage: Jobs::new(),
        }
    }
}

impl<K: Kernel> NodeService<K> {
    /// What is wrong with one volume.
    pub(super) async fn volume_health(
        &self,
        message: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse, Failure> {
        let request = NodeVolumeHealth::try_from(message)?;
        let id = request.id.clone();
        let paths = (&request.staging, &request.target);
        let mark = fingerprint(&(&request.id, paths));
        let key = format!("{id} {paths:?}");
        let (node, pool) = (Arc::clone(&self.node), Arc::clone(&self.pool));
        let look = async move { pool.run(move || operation::health(&node, &request)).await };
        let complaints = self
            .looks
            .volumes
            .run(&key, Rpc::NodeGetVolumeHealth, mark, look)
            .await?;
        Ok(csi::NodeGetVolumeHealthResponse {
            volume_health: Some(complaints.volume_health(id.as_str())),
        })
    }

    /// What is wrong with the storage behind all volumes.
    pub(super) async fn storage_health(
        &self,
        message: csi::NodeGetStorageHealthRequest,
    ) -> Result<csi::NodeGetStorageHealthResponse, Failure> {
        StorageHealth::try_from(message)?;
        let (node, pool) = (Arc::clone(&self.node), Arc::clone(&self.pool));
        let look = async move { pool.run(move || operation::storage_health(&node)).await };
        let complaints = self
            .looks
            .storage
            .run("storage", Rpc::NodeGetStorageHealth, 0, look)
            .await?;
        Ok(encode::storage(complaints))
    }
}
