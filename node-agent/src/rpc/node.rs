//! The CSI Node service.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use belay_contract::drivers::Profile;
use belay_proto::csi::v1 as csi;
use belay_server::call::{Failure, Kind, Rpc, answer};
use belay_server::request::{NodeExpand, Publish, Stage, Stats, Unpublish, Unstage, VolumeId};
use belay_server::work::{CHANGE_DEADLINE, JobView, Jobs, Ticket, fingerprint};
use tonic::{Request, Response, Status};

use super::encode;
use super::facts::Storage;
use super::health::Looks;
use super::late::Late;
use super::reads::Reads;
use super::staging::stage_when_there;
use super::volumes::Volumes;
use crate::kernel::Kernel;
use crate::operation::phase::Progress;
use crate::operation::{self, Node, Published, Thread, VolumeStats};
use crate::pool::{Lane, Pool};

/// The CSI Node service.
pub(crate) struct NodeService<K: Kernel> {
    pub(super) node: Late<K>,
    pub(super) pool: Arc<Pool>,
    /// One job per volume; its value is the size in bytes that an expansion returns.
    pub(super) changes: Jobs<u64>,
    reads: Reads,
    pub(super) looks: Looks,
    pub(super) volumes: Volumes,
    pub(super) storage: Storage,
    /// Checks whether a detach is pending for a volume.
    wishes: Jobs<bool>,
    /// Not known before the driver has come up, where it is read from the cloud.
    info: OnceLock<csi::NodeGetInfoResponse>,
    capabilities: csi::NodeGetCapabilitiesResponse,
}

/// The identity of this node, for NodeGetInfo.
pub(crate) struct NodeIdentity {
    /// The node id that controllers use.
    pub(crate) id: String,
    /// The maximum number of volumes; 0: unlimited.
    pub(crate) volumes_max: u32,
    /// Its topology.
    pub(crate) topology: Option<HashMap<String, String>>,
}

impl<K: Kernel> NodeService<K> {
    /// The service of a driver that is not up yet, and why; see [`NodeService::come_up`].
    pub(crate) fn new(why: &str, pool: Arc<Pool>, profile: &'static Profile) -> Self {
        NodeService {
            node: Late::new(why),
            pool,
            changes: Jobs::new(CHANGE_DEADLINE),
            reads: Reads::new(),
            looks: Looks::new(),
            volumes: Volumes::default(),
            storage: Storage::new(),
            wishes: Jobs::new(super::reads::DEADLINE),
            info: OnceLock::new(),
            capabilities: encode::capabilities(profile),
        }
    }

    /// The response of NodeGetInfo from now on. The first identity counts.
    pub(crate) fn identify(&self, identity: NodeIdentity) {
        self.info.get_or_init(|| csi::NodeGetInfoResponse {
            node_id: identity.id,
            max_volumes_per_node: i64::from(identity.volumes_max),
            accessible_topology: identity.topology.map(|segments| csi::Topology { segments }),
        });
    }

    /// The hung job of this volume, if any. Queries no disk.
    pub(super) fn hung(&self, id: &VolumeId) -> Option<JobView> {
        let change = self.changes.view(id.as_str());
        let change = change.filter(|look| look.is_hung);
        let read = || self.reads.hung(id).or_else(|| self.looks.hung(id));
        change.or_else(read)
    }

    /// Runs `work` as the volume's job, on the pool.
    async fn change(
        &self,
        rpc: Rpc,
        id: &VolumeId,
        fingerprint: u64,
        work: impl FnOnce(&Node<K>, &Progress) -> Result<u64, Failure> + Send + 'static,
    ) -> Result<u64, Failure> {
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let job = |ticket: Ticket| async move {
            let work = move |progress: &Progress| work(&node, progress);
            pool.run(&ticket, Lane::Change, work).await
        };
        self.changes.run(id.as_str(), rpc, fingerprint, job).await
    }

    async fn stage(&self, stage: Stage) -> Result<(), Failure> {
        let mark = fingerprint(&(
            &stage.id,
            &stage.staging,
            &stage.capability,
            &stage.publish_context,
            &stage.volume_context,
        ));
        let id = stage.id.clone();
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let job = |ticket: Ticket| async move {
            stage_when_there(&ticket, &pool, &node, stage).await?;
            Ok(0)
        };
        let rpc = Rpc::NodeStageVolume;
        self.changes.run(id.as_str(), rpc, mark, job).await?;
        self.volumes.staged(&id);
        Ok(())
    }

    async fn publish(&self, publish: Publish) -> Result<(), Failure> {
        let mark = fingerprint(&(
            &publish.id,
            &publish.staging,
            &publish.target,
            &publish.capability,
            publish.read_only,
            &publish.publish_context,
            &publish.volume_context,
        ));
        let id = publish.id.clone();
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let job = |ticket: Ticket| async move {
            // Usually it queries no disk, and a thread would cost more than the work.
            let unseen = Progress::default();
            let published = operation::publish(&node, &unseen, &publish, Thread::Only)?;
            if published == Published::WantsPool {
                let work = move |progress: &Progress| {
                    operation::publish(&node, progress, &publish, Thread::Pool)
                };
                pool.run(&ticket, Lane::Change, work).await?;
            }
            Ok(0)
        };
        let rpc = Rpc::NodePublishVolume;
        self.changes.run(id.as_str(), rpc, mark, job).await?;
        Ok(())
    }

    /// Whether a detach is pending for the volume, according to its file. Not a job of the volume,
    /// since a call of the kubelet would then be refused.
    ///
    /// # Errors
    /// Those of [`operation::is_wanted`].
    pub(crate) async fn is_wanted(&self, id: &VolumeId) -> Result<bool, Failure> {
        let (node, pool, volume) = (self.node()?, Arc::clone(&self.pool), id.clone());
        let job = |ticket: Ticket| async move {
            let work = move |_: &Progress| operation::is_wanted(&node, &volume);
            pool.run(&ticket, Lane::Read, work).await
        };
        let rpc = Rpc::NodeUnstageVolume;
        self.wishes
            .run(id.as_str(), rpc, fingerprint(&id), job)
            .await
    }

    /// Unstages a volume with a pending detach that is unknown to the kubelet.
    ///
    /// # Errors
    /// `ABORTED` while another operation on it is in progress; those of [`operation::release`].
    pub(crate) async fn release(&self, id: VolumeId) -> Result<(), Failure> {
        let mark = fingerprint(&(&id, "release"));
        let volume = id.clone();
        let work = move |node: &Node<K>, progress: &Progress| {
            operation::release(node, progress, &volume).map(|()| 0)
        };
        self.change(Rpc::NodeUnstageVolume, &id, mark, work).await?;
        self.reads.forget(&id);
        self.volumes.unstaged(&id);
        Ok(())
    }

    async fn unstage(&self, unstage: Unstage) -> Result<(), Failure> {
        let id = unstage.id.clone();
        let mark = fingerprint(&(&unstage.id, &unstage.staging));
        let work = move |node: &Node<K>, progress: &Progress| {
            operation::unstage(node, progress, &unstage).map(|()| 0)
        };
        self.change(Rpc::NodeUnstageVolume, &id, mark, work).await?;
        self.reads.forget(&id);
        self.volumes.unstaged(&id);
        Ok(())
    }

    async fn unpublish(&self, unpublish: Unpublish) -> Result<(), Failure> {
        let id = unpublish.id.clone();
        let mark = fingerprint(&(&unpublish.id, &unpublish.target));
        let work = move |node: &Node<K>, progress: &Progress| {
            operation::unpublish(node, progress, &unpublish).map(|()| 0)
        };
        let rpc = Rpc::NodeUnpublishVolume;
        self.change(rpc, &id, mark, work).await?;
        self.reads.forget(&id);
        Ok(())
    }

    async fn expand(&self, expand: NodeExpand) -> Result<u64, Failure> {
        let id = expand.id.clone();
        let mark = fingerprint(&(
            &expand.id,
            &expand.volume_path,
            &expand.staging,
            &expand.range,
        ));
        let work =
            move |node: &Node<K>, progress: &Progress| operation::expand(node, progress, &expand);
        self.change(Rpc::NodeExpandVolume, &id, mark, work).await
    }

    async fn stats(&self, stats: Stats) -> Result<VolumeStats, Failure> {
        let (id, path) = (stats.id.clone(), stats.volume_path.clone());
        if let Some(look) = self.hung(&id) {
            return self.reads.last(&id, &path, &look);
        }
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let read = |ticket: Ticket| async move {
            let work = move |progress: &Progress| operation::stats(&node, progress, &stats);
            pool.run(&ticket, Lane::Read, work).await
        };
        match self.reads.stats(&id, &path, read).await {
            // The hung call may be this one.
            Err(failure) if failure.kind == Kind::Timeout => match self.hung(&id) {
                Some(look) => self.reads.last(&id, &path, &look),
                None => Err(failure),
            },
            stats => stats,
        }
    }
}

#[tonic::async_trait]
impl<K: Kernel> csi::node_server::Node for NodeService<K> {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        answer(Rpc::NodeStageVolume, request, |message| async move {
            self.stage(Stage::try_from(message)?).await?;
            Ok(csi::NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        answer(Rpc::NodeUnstageVolume, request, |message| async move {
            self.unstage(Unstage::try_from(message)?).await?;
            Ok(csi::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        answer(Rpc::NodePublishVolume, request, |message| async move {
            self.publish(Publish::try_from(message)?).await?;
            Ok(csi::NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        answer(Rpc::NodeUnpublishVolume, request, |message| async move {
            self.unpublish(Unpublish::try_from(message)?).await?;
            Ok(csi::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        answer(Rpc::NodeGetVolumeStats, request, |message| async move {
            let request = Stats::try_from(message)?;
            let id = request.id.clone();
            let stats = self.stats(request).await?;
            self.volumes.mounted(&id, &stats.complaints);
            Ok(encode::stats(&stats))
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        answer(Rpc::NodeGetVolumeHealth, request, |message| {
            self.volume_health(message)
        })
        .await
    }

    async fn node_get_storage_health(
        &self,
        request: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        answer(Rpc::NodeGetStorageHealth, request, |message| {
            self.storage_health(message)
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        answer(Rpc::NodeExpandVolume, request, |message| async move {
            let bytes = self.expand(NodeExpand::try_from(message)?).await?;
            Ok(csi::NodeExpandVolumeResponse {
                capacity_bytes: encode::signed(bytes),
            })
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
            let info = self.info.get().cloned();
            info.ok_or_else(|| self.node.missing())
        })
        .await
    }
}
