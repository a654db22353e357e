//! The CSI Node service of a driver whose volumes are files or disks.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use belay_contract::drivers::Profile;
use belay_proto::csi::v1 as csi;
use belay_server::call::{Failure, Kind, Rpc, answer};
use belay_server::request::{NodeExpand, Publish, Stage, Stats, Unpublish, Unstage, VolumeId};
use belay_server::work::{Key, Ticket, fingerprint};
use tonic::{Request, Response, Status};

use super::encode;
use super::facts::Storage;
use super::flushing::{Shared, refuse_flushing, unpublish_flushed};
use super::jobs::{Done, Table, change, mixed_up};
use super::late::PendingNode;
use super::reads::Reads;
use super::staging::stage_when_there;
use super::unsynced::Unsynced;
use super::volumes::Volumes;
use crate::kernel::Kernel;
use crate::operation::{self, Context, Node, VolumeStats};
use crate::work::{Class, Operation, Pool};

/// Implements the CSI Node service for one driver.
pub(crate) struct NodeService<K: Kernel> {
    pub(super) node: PendingNode<K>,
    pub(super) pool: Arc<Pool>,
    pub(super) jobs: Table,
    pub(super) reads: Reads,
    pub(super) volumes: Volumes,
    pub(super) unsynced: Arc<Unsynced>,
    pub(super) storage: Storage,
    /// The response of NodeGetInfo. The response is unset until the node's identity is known, which
    /// may have to be read from the cloud.
    info: OnceLock<csi::NodeGetInfoResponse>,
    /// The topology value of the volumes on the node's disks; unset if no disk has one.
    place: OnceLock<String>,
    capabilities: csi::NodeGetCapabilitiesResponse,
}

/// The identity of this node, in the form in which NodeGetInfo returns it.
pub(crate) struct NodeIdentity {
    /// The ID by which controllers identify the node.
    pub(crate) id: String,
    /// Maximum number of volumes on the node; if volumes are disks, the maximum number of all
    /// disks. 0 means no limit.
    pub(crate) volumes_max: u32,
    /// The segments of the node's topology; `None` if topology is not reported.
    pub(crate) topology: Option<HashMap<String, String>>,
}

impl<K: Kernel> NodeService<K> {
    /// Creates the service of a driver that is not ready yet; `why` is the reason.
    /// [`NodeService::come_up`] makes the driver ready.
    pub(crate) fn new(why: &str, pool: Arc<Pool>, profile: &'static Profile) -> Self {
        NodeService {
            node: PendingNode::new(why),
            pool,
            jobs: Table::default(),
            reads: Reads::default(),
            volumes: Volumes::default(),
            unsynced: Arc::default(),
            storage: Storage::default(),
            info: OnceLock::new(),
            place: OnceLock::new(),
            capabilities: encode::capabilities(profile),
        }
    }

    /// Sets the response of NodeGetInfo. Has no effect if the response is already set.
    pub(crate) fn identify(&self, identity: NodeIdentity) {
        self.info.get_or_init(|| csi::NodeGetInfoResponse {
            node_id: identity.id,
            max_volumes_per_node: i64::from(identity.volumes_max),
            accessible_topology: identity.topology.map(|segments| csi::Topology { segments }),
        });
    }

    /// Returns the ID of the node; `None` if it is not known yet.
    pub(crate) fn id(&self) -> Option<&str> {
        self.info.get().map(|info| &*info.node_id)
    }

    /// Sets the topology value of the volumes on a disk, which NodeGetInfo returns for the node.
    /// All disks of a node have the same.
    pub(crate) fn set_place(&self, place: &str) {
        self.place.get_or_init(|| place.to_owned());
    }

    /// Replaces the maximum number of disks in `info` by the maximum number of volumes: subtracts
    /// the disks that are not volumes of the driver. Returns `info` unchanged until the driver is
    /// ready, because these disks are not known before.
    fn with_room_for_disks(&self, info: csi::NodeGetInfoResponse) -> csi::NodeGetInfoResponse {
        let disks_max = u32::try_from(info.max_volumes_per_node).unwrap_or_default();
        match self.node() {
            Ok(node) if disks_max > 0 && node.may_lose_devices() => {
                let volumes_max = operation::volumes_max(&node, disks_max, Instant::now());
                csi::NodeGetInfoResponse {
                    max_volumes_per_node: i64::from(volumes_max),
                    ..info
                }
            }
            _ => info,
        }
    }

    /// Runs an operation that changes the volume, as a job.
    async fn change(
        &self,
        (rpc, operation): (Rpc, Operation),
        id: &VolumeId,
        fingerprint: u64,
        work: impl FnOnce(&Context<'_, K>) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        let work = move |cx: &Context<'_, K>| work(cx).map(|()| Done::Changed);
        let done = self.run(change(id), (rpc, fingerprint), operation, work);
        done.await.map(drop)
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
            Ok(Done::Changed)
        };
        let rpc = Rpc::NodeStageVolume;
        self.jobs.run(change(&id), rpc, mark, job).await?;
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
        let key = change(&publish.id);
        let call = (Rpc::NodePublishVolume, mark);
        let work = move |cx: &Context<'_, K>, thread| {
            let published = operation::publish(cx, &publish, thread)?;
            Ok(published.map(|()| Done::Changed))
        };
        let done = self.run_in_place(key, call, Operation::Publish, work);
        done.await.map(drop)
    }

    /// Returns whether, according to an attribute of the volume's file, the controller is deleting
    /// the volume and waits until the volume is unstaged.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) async fn is_wanted(&self, id: &VolumeId) -> Result<bool, Failure> {
        let (key, volume) = (Key::new(Class::Detach, id.as_str()), id.clone());
        let call = (Rpc::NodeUnstageVolume, 0);
        let work = move |node: &Node<K>| operation::is_wanted(node, &volume).map(Done::Wanted);
        match self.query(key, call, work).await? {
            Done::Wanted(is_wanted) => Ok(is_wanted),
            _ => Err(mixed_up()),
        }
    }

    /// Unstages a volume that is being deleted and that the kubelet no longer knows.
    ///
    /// # Errors
    /// Returns `ABORTED` while another operation on the volume is in progress; otherwise the errors
    /// of [`operation::release`].
    pub(crate) async fn release(&self, id: VolumeId) -> Result<(), Failure> {
        let mark = fingerprint(&(&id, "release"));
        let volume = id.clone();
        let call = (Rpc::NodeUnstageVolume, Operation::Unstage);
        refuse_flushing(&self.jobs, &id)?;
        let work = move |cx: &Context<'_, K>| operation::release(cx, &volume);
        self.change(call, &id, mark, work).await?;
        self.has_left(&id);
        Ok(())
    }

    async fn unstage(&self, unstage: Unstage) -> Result<(), Failure> {
        let id = unstage.id.clone();
        let mark = fingerprint(&(&unstage.id, &unstage.staging));
        let call = (Rpc::NodeUnstageVolume, Operation::Unstage);
        refuse_flushing(&self.jobs, &id)?;
        let work = move |cx: &Context<'_, K>| operation::unstage(cx, &unstage);
        self.change(call, &id, mark, work).await?;
        self.has_left(&id);
        Ok(())
    }

    /// Drops all records about a volume that was unstaged.
    fn has_left(&self, id: &VolumeId) {
        self.reads.forget(id);
        self.volumes.unstaged(id);
        self.unsynced.unstaged(id);
    }

    async fn unpublish(&self, unpublish: Unpublish) -> Result<(), Failure> {
        let id = unpublish.id.clone();
        let mark = fingerprint(&(&unpublish.id, &unpublish.target));
        let shared = Shared {
            jobs: self.jobs.clone(),
            pool: Arc::clone(&self.pool),
            node: self.node()?,
            unsynced: Arc::clone(&self.unsynced),
        };
        let job = |ticket: Ticket| async move {
            unpublish_flushed(&ticket, shared, unpublish).await?;
            Ok(Done::Changed)
        };
        let rpc = Rpc::NodeUnpublishVolume;
        self.jobs.run(change(&id), rpc, mark, job).await?;
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
        let call = (Rpc::NodeExpandVolume, mark);
        let work = move |cx: &Context<'_, K>| operation::expand(cx, &expand).map(Done::Grown);
        match self.run(change(&id), call, Operation::Expand, work).await? {
            Done::Grown(bytes) => Ok(bytes),
            _ => Err(mixed_up()),
        }
    }

    async fn stats(&self, stats: Stats) -> Result<VolumeStats, Failure> {
        let (id, path) = (stats.id.clone(), stats.volume_path.clone());
        if let Some(look) = self.hung(&id) {
            return self.reads.last(&id, &path, &look);
        }
        match self.read_stats(stats).await {
            Ok(Done::Stats(stats)) => {
                self.reads.keep(&id, &path, stats.usage);
                Ok(stats)
            }
            Ok(_) => Err(mixed_up()),
            // The job of this call is hung now. Return the last known usage instead.
            Err(failure) if failure.kind == Kind::Timeout => match self.hung(&id) {
                Some(look) => self.reads.last(&id, &path, &look),
                None => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Runs the job that reads the statistics of a volume.
    async fn read_stats(&self, stats: Stats) -> Result<Done, Failure> {
        let key = Key::new(Class::Stats, stats.id.as_str()).at(stats.volume_path.display());
        let call = (Rpc::NodeGetVolumeStats, 0);
        let work = move |cx: &Context<'_, K>, thread| {
            let stats = operation::stats(cx, &stats, thread)?;
            Ok(stats.map(Done::Stats))
        };
        self.run_in_place(key, call, Operation::Stats, work).await
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
            let mut stats = self.stats(request).await?;
            self.unsynced.add_to(&mut stats.conditions, &id);
            self.volumes.mounted(&id, &stats.conditions);
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
            let info = info.ok_or_else(|| self.node.missing())?;
            let mut info = self.with_room_for_disks(info);
            if let (Some(place), Some(at)) = (self.place.get(), &mut info.accessible_topology) {
                at.segments.values_mut().for_each(|it| it.clone_from(place));
            }
            Ok(info)
        })
        .await
    }
}
