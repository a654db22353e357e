//! The CSI Node service of a driver whose volumes are directories of a server. Calls run on the
//! event loop, and only helper processes make system calls that may wait for the server.

mod calls;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use belay_contract::drivers::{NFS_ID_BYTES_MAX, Profile};
use belay_contract::reason::volume;
use belay_proto::csi::v1 as csi;
use belay_server::call::{Failure, Rpc, answer};
use belay_server::facts::{Facts, Known, Measuring, Shown};
use belay_server::request::{NodeVolumeHealth, Publish, Stats, StorageHealth, Unpublish};
use belay_server::work::Jobs;
use tonic::{Request, Response, Status};

use super::reads::Reads;
use super::volumes::Volumes;
use super::{NodeIdentity, encode};
use crate::kernel::Kernel;
use crate::operation;
use crate::operation::remote::RemoteNode;
use crate::work::{Class, Servers};
use calls::Done;

/// Implements the CSI Node service for one driver.
pub(crate) struct RemoteService<K: Kernel> {
    node: Arc<RemoteNode<K>>,
    servers: Arc<Servers>,
    jobs: Jobs<Class, Done>,
    reads: Reads,
    volumes: Volumes,
    info: csi::NodeGetInfoResponse,
    capabilities: csi::NodeGetCapabilitiesResponse,
    /// The reason why this process cannot serve calls; `None` if it can.
    lacking: Option<String>,
}

impl<K: Kernel> RemoteService<K> {
    /// Creates the service of a driver. All drivers of a process share `servers`. If `lacking` is
    /// set, every call that needs a system call fails with this reason.
    pub(crate) fn new(
        node: RemoteNode<K>,
        servers: &Arc<Servers>,
        profile: &'static Profile,
        identity: NodeIdentity,
        lacking: Option<String>,
    ) -> Self {
        let topology = identity.topology.map(|segments| csi::Topology { segments });
        RemoteService {
            node: Arc::new(node),
            servers: Arc::clone(servers),
            jobs: Jobs::default(),
            reads: Reads::default(),
            volumes: Volumes::default(),
            info: csi::NodeGetInfoResponse {
                node_id: identity.id,
                max_volumes_per_node: i64::from(identity.volumes_max),
                accessible_topology: topology,
            },
            capabilities: encode::capabilities(profile),
            lacking,
        }
    }

    fn refuse_lacking(&self) -> Result<(), Failure> {
        match &self.lacking {
            Some(why) => Err(Failure::new(
                belay_server::call::Kind::Unreachable,
                why.clone(),
            )),
            None => Ok(()),
        }
    }
}

/// This service does not implement NodeStageVolume and NodeExpandVolume, because its volumes are
/// neither staged nor expanded.
#[tonic::async_trait]
impl<K: Kernel> csi::node_server::Node for RemoteService<K> {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        answer(Rpc::NodePublishVolume, request, |message| async move {
            self.publish(Publish::read(message, NFS_ID_BYTES_MAX)?)
                .await?;
            Ok(csi::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        answer(Rpc::NodeUnpublishVolume, request, |message| async move {
            self.unpublish(Unpublish::read(message, NFS_ID_BYTES_MAX)?)
                .await?;
            Ok(csi::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        answer(Rpc::NodeGetVolumeStats, request, |message| async move {
            let stats = self.stats(Stats::read(message, NFS_ID_BYTES_MAX)?).await?;
            Ok(encode::stats(&stats))
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        answer(Rpc::NodeGetVolumeHealth, request, |message| async move {
            let request = NodeVolumeHealth::read(message, NFS_ID_BYTES_MAX)?;
            let id = request.id.clone();
            let conditions = self.health(request).await?;
            Ok(csi::NodeGetVolumeHealthResponse {
                volume_health: Some(conditions.volume_health(id.as_str())),
            })
        })
        .await
    }

    async fn node_get_storage_health(
        &self,
        request: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        answer(Rpc::NodeGetStorageHealth, request, |message| async move {
            StorageHealth::try_from(message)?;
            let hung = operation::volumes_hang(self.jobs.hung_count(Class::Change));
            Ok(encode::storage(hung.into_iter().collect()))
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        answer(Rpc::NodeGetCapabilities, request, |_| async {
            Ok(self.capabilities.clone())
        })
        .await
    }

    async fn node_get_info(
        &self,
        request: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        answer(Rpc::NodeGetInfo, request, |_| async {
            Ok(self.info.clone())
        })
        .await
    }
}

impl<K: Kernel> Facts for RemoteService<K> {
    fn reasons(&self) -> Vec<&'static str> {
        let all = [
            volume::SERVER_UNREACHABLE,
            volume::SHARE_FULL,
            volume::STATISTICS_OLD,
        ];
        all.map(|reason| reason.name()).to_vec()
    }

    fn known(&self) -> Known {
        Known {
            volumes: u64::try_from(self.volumes.count()).ok(),
            unhealthy: self.volumes.unhealthy(),
            ..Known::default()
        }
    }

    fn shown(&self) -> Vec<Shown> {
        self.volumes.shown()
    }

    fn measure(self: Arc<Self>) -> Measuring {
        // There is nothing to measure, because the volumes have no common storage.
        Box::pin(async {})
    }
}
