//! The RPCs of a volume's lifecycle, each with its duration. A node call connects each time, as the
//! kubelet does, and connecting counts; the controller is called on one connection, as by a
//! sidecar.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_bed::requests;
use belay_proto::csi::v1::controller_client::ControllerClient;
use belay_proto::csi::v1::identity_client::IdentityClient;
use belay_proto::csi::v1::node_client::NodeClient;
pub(crate) use belay_proto::csi::v1::volume_content_source::Type as Source;
use belay_proto::csi::v1::volume_usage::Unit;
use belay_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerPublishVolumeRequest, CreateVolumeRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, ProbeRequest, VolumeCapability,
};
use belay_proto::dial::dial;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::agents::NODE_ID;
use crate::trouble::Trouble;

/// No call of the demo takes nearly this long.
const CALL_MAX: Duration = Duration::from_secs(60);

/// The first pause before a retry, doubled each time; the kubelet's is half a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// How long a call may be ABORTED.
const REPEAT_MAX: Duration = Duration::from_secs(10);

/// The result of a call, and its duration.
pub(crate) type Timed<T> = Result<(T, Duration), Trouble>;

/// A volume that was created.
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) capability: VolumeCapability,
    context: HashMap<String, String>,
    publish_context: HashMap<String, String>,
}

/// The two sockets.
pub(crate) struct Calls {
    controller: ControllerClient<Channel>,
    node: PathBuf,
}

impl Calls {
    /// # Errors
    /// The controller cannot be reached.
    pub(crate) async fn connect(controller: &Path, node: &Path) -> Result<Self, Trouble> {
        let channel = dial(controller).await;
        let channel = channel.map_err(|failure| Trouble::Dial {
            rpc: "CreateVolume",
            failure,
        })?;
        Ok(Self {
            controller: ControllerClient::new(channel),
            node: node.to_owned(),
        })
    }

    pub(crate) async fn create(
        &mut self,
        name: String,
        bytes: i64,
        capability: VolumeCapability,
        source: Option<Source>,
    ) -> Timed<Volume> {
        let request = CreateVolumeRequest {
            capacity_range: requests::range(bytes, 0),
            ..requests::create(&name, capability.clone(), source)
        };
        let (made, took) = timed("CreateVolume", self.controller.create_volume(request)).await?;
        let made = made.volume.unwrap_or_default();
        if made.capacity_bytes != bytes {
            let text = format!(
                "CreateVolume returned {} bytes, requested {bytes}",
                made.capacity_bytes
            );
            return Err(Trouble::Untrue(text));
        }
        let (id, context) = (made.volume_id, made.volume_context);
        Ok((
            Volume {
                id,
                capability,
                context,
                publish_context: HashMap::new(),
            },
            took,
        ))
    }

    /// The id of a snapshot, which shares blocks with the volume and so is ready at once.
    pub(crate) async fn snapshot(&mut self, name: String, volume: &Volume) -> Timed<String> {
        let call = self
            .controller
            .create_snapshot(requests::cut(&name, &volume.id));
        let (answer, took) = timed("CreateSnapshot", call).await?;
        let snapshot = answer.snapshot.unwrap_or_default();
        if !snapshot.ready_to_use {
            let text = "CreateSnapshot returned a snapshot that is not ready".to_owned();
            return Err(Trouble::Untrue(text));
        }
        Ok((snapshot.snapshot_id, took))
    }

    pub(crate) async fn delete_snapshot(&mut self, id: &str) -> Timed<()> {
        let call = self.controller.delete_snapshot(requests::discard(id));
        timed("DeleteSnapshot", call)
            .await
            .map(|(_, took)| ((), took))
    }

    /// Keeps the publish context in the volume, for the node calls. Returns its `content`.
    pub(crate) async fn attach(&mut self, volume: &mut Volume) -> Timed<String> {
        let request = ControllerPublishVolumeRequest {
            volume_context: volume.context.clone(),
            ..requests::attach(&volume.id, NODE_ID, volume.capability.clone())
        };
        let call = self.controller.controller_publish_volume(request);
        let (answer, took) = timed("ControllerPublishVolume", call).await?;
        volume.publish_context = answer.publish_context;
        Ok((
            volume
                .publish_context
                .get("content")
                .cloned()
                .unwrap_or_default(),
            took,
        ))
    }

    pub(crate) async fn detach(&mut self, volume: &Volume) -> Timed<()> {
        let request = requests::detach(&volume.id, NODE_ID);
        let call = self.controller.controller_unpublish_volume(request);
        timed("ControllerUnpublishVolume", call)
            .await
            .map(|(_, took)| ((), took))
    }

    pub(crate) async fn delete(&mut self, volume: &Volume) -> Timed<()> {
        let call = self.controller.delete_volume(requests::delete(&volume.id));
        timed("DeleteVolume", call)
            .await
            .map(|(_, took)| ((), took))
    }

    pub(crate) async fn controller_expand(&mut self, volume: &Volume, bytes: i64) -> Timed<i64> {
        let request = ControllerExpandVolumeRequest {
            volume_capability: Some(volume.capability.clone()),
            ..requests::grow(&volume.id, bytes)
        };
        let call = self.controller.controller_expand_volume(request);
        let (answer, took) = timed("ControllerExpandVolume", call).await?;
        Ok((answer.capacity_bytes, took))
    }

    pub(crate) async fn stage(&self, volume: &Volume, staging: &Path) -> Timed<()> {
        let context = volume.publish_context.clone();
        let request = NodeStageVolumeRequest {
            volume_context: volume.context.clone(),
            ..requests::stage(&volume.id, context, staging, volume.capability.clone())
        };
        self.node("NodeStageVolume", request, async |mut node, request| {
            node.node_stage_volume(request).await
        })
        .await
        .map(|(_, took)| ((), took))
    }

    pub(crate) async fn unstage(&self, volume: &Volume, staging: &Path) -> Timed<()> {
        let request = requests::unstage(&volume.id, staging);
        self.node("NodeUnstageVolume", request, async |mut node, request| {
            node.node_unstage_volume(request).await
        })
        .await
        .map(|(_, took)| ((), took))
    }

    pub(crate) async fn publish(
        &self,
        volume: &Volume,
        staging: &Path,
        target: &Path,
        readonly: bool,
    ) -> Timed<()> {
        let (context, capability) = (volume.publish_context.clone(), volume.capability.clone());
        let request = NodePublishVolumeRequest {
            readonly,
            volume_context: volume.context.clone(),
            ..requests::publish(&volume.id, context, staging, target, capability)
        };
        self.node("NodePublishVolume", request, async |mut node, request| {
            node.node_publish_volume(request).await
        })
        .await
        .map(|(_, took)| ((), took))
    }

    pub(crate) async fn unpublish(&self, volume: &Volume, target: &Path) -> Timed<()> {
        let request = requests::unpublish(&volume.id, target);
        self.node("NodeUnpublishVolume", request, async |mut node, request| {
            node.node_unpublish_volume(request).await
        })
        .await
        .map(|(_, took)| ((), took))
    }

    /// Total bytes of the volume, as the kubelet sees them.
    pub(crate) async fn stats(&self, volume: &Volume, path: &Path, staging: &Path) -> Timed<i64> {
        let request = requests::stats(&volume.id, path, staging);
        let (answer, took) = self
            .node("NodeGetVolumeStats", request, async |mut node, request| {
                node.node_get_volume_stats(request).await
            })
            .await?;
        let bytes = answer
            .usage
            .iter()
            .find(|usage| usage.unit() == Unit::Bytes);
        let untold = || Trouble::Untrue("NodeGetVolumeStats returned no size in bytes".to_owned());
        Ok((bytes.ok_or_else(untold)?.total, took))
    }

    pub(crate) async fn node_expand(
        &self,
        volume: &Volume,
        path: &Path,
        staging: &Path,
        bytes: i64,
    ) -> Timed<i64> {
        let capability = volume.capability.clone();
        let request = requests::expand(&volume.id, path, staging, bytes, capability);
        let (answer, took) = self
            .node("NodeExpandVolume", request, async |mut node, request| {
                node.node_expand_volume(request).await
            })
            .await?;
        Ok((answer.capacity_bytes, took))
    }

    /// A node call that does nothing: the cost of connecting and calling.
    pub(crate) async fn probe(&self) -> Timed<()> {
        let started = Instant::now();
        let channel = dial(&self.node).await;
        let channel = channel.map_err(|failure| Trouble::Dial {
            rpc: "Probe",
            failure,
        })?;
        timed("Probe", IdentityClient::new(channel).probe(ProbeRequest {})).await?;
        Ok(((), started.elapsed()))
    }

    /// A node call, retried while it is ABORTED, as the kubelet does: another process, such as
    /// udev, may have a device open at that moment. All of it counts.
    async fn node<R: Clone, T>(
        &self,
        rpc: &'static str,
        request: R,
        call: impl AsyncFn(NodeClient<Channel>, R) -> Result<Response<T>, Status>,
    ) -> Timed<T> {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let channel = dial(&self.node).await;
            let channel = channel.map_err(|failure| Trouble::Dial { rpc, failure })?;
            match timed(rpc, call(NodeClient::new(channel), request.clone())).await {
                Err(Trouble::Call { status, .. })
                    if status.code() == Code::Aborted && started.elapsed() < REPEAT_MAX =>
                {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(trouble) => return Err(trouble),
                Ok((answer, _last_attempt)) => return Ok((answer, started.elapsed())),
            }
        }
    }
}

async fn timed<T>(
    rpc: &'static str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Timed<T> {
    let started = Instant::now();
    let late = |_| {
        Err(Status::deadline_exceeded(format!(
            "no answer in {CALL_MAX:?}"
        )))
    };
    match tokio::time::timeout(CALL_MAX, call)
        .await
        .unwrap_or_else(late)
    {
        Ok(answer) => Ok((answer.into_inner(), started.elapsed())),
        Err(status) => Err(Trouble::Call {
            rpc,
            status: Box::new(status),
        }),
    }
}
