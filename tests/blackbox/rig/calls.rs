//! RPCs as plain calls. Each dials anew, as the kubelet does, and has a deadline.

use std::io;
use std::path::{Path, PathBuf};

use belay_proto::csi::v1 as csi;
use csi::controller_client::ControllerClient;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::patience::PATIENCE;

/// How a call ended.
pub(crate) type Answer<T> = Result<T, Status>;

/// The node service at a socket.
#[derive(Clone, Debug)]
pub(crate) struct NodeCalls {
    socket: PathBuf,
}

/// The controller service at a socket.
#[derive(Clone, Debug)]
pub(crate) struct ControllerCalls {
    socket: PathBuf,
}

/// Methods that differ in nothing but names.
macro_rules! calls {
    ($calls:ident, $client:ident:
        $($method:ident => $rpc:ident, $asked:ident, $answer:ident;)+
    ) => {
        impl $calls {
            pub(crate) fn new(socket: PathBuf) -> Self {
                $calls { socket }
            }

            $(pub(crate) fn $method(&self, request: csi::$asked) -> Answer<csi::$answer> {
                call(&self.socket, async |channel| $client::new(channel).$rpc(request).await)
            })+
        }
    };
}

calls! { NodeCalls, NodeClient:
    stage => node_stage_volume, NodeStageVolumeRequest, NodeStageVolumeResponse;
    unstage => node_unstage_volume, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse;
    publish => node_publish_volume, NodePublishVolumeRequest, NodePublishVolumeResponse;
    unpublish => node_unpublish_volume, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse;
    stats => node_get_volume_stats, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse;
    expand => node_expand_volume, NodeExpandVolumeRequest, NodeExpandVolumeResponse;
    volume_health => node_get_volume_health,
        NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse;
    storage_health => node_get_storage_health,
        NodeGetStorageHealthRequest, NodeGetStorageHealthResponse;
    info => node_get_info, NodeGetInfoRequest, NodeGetInfoResponse;
}

calls! { ControllerCalls, ControllerClient:
    create => create_volume, CreateVolumeRequest, CreateVolumeResponse;
    delete => delete_volume, DeleteVolumeRequest, DeleteVolumeResponse;
    attach => controller_publish_volume,
        ControllerPublishVolumeRequest, ControllerPublishVolumeResponse;
    detach => controller_unpublish_volume,
        ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse;
    validate => validate_volume_capabilities,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse;
    list => list_volumes, ListVolumesRequest, ListVolumesResponse;
    get => controller_get_volume, ControllerGetVolumeRequest, ControllerGetVolumeResponse;
    expand => controller_expand_volume,
        ControllerExpandVolumeRequest, ControllerExpandVolumeResponse;
}

/// Asks whether whatever listens there is well.
pub(crate) fn probe(socket: &Path) -> Answer<csi::ProbeResponse> {
    call(socket, async |channel| {
        IdentityClient::new(channel)
            .probe(csi::ProbeRequest {})
            .await
    })
}

fn call<T>(
    socket: &Path,
    act: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
) -> Answer<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let answer = runtime.block_on(async {
        let channel = dial(socket).await?;
        let answer = tokio::time::timeout(PATIENCE, act(channel)).await;
        answer.unwrap_or_else(|_| panic!("no answer within {PATIENCE:?}"))
    });
    answer.map(Response::into_inner)
}

async fn dial(socket: &Path) -> Result<Channel, Status> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| Status::unavailable(format!("{}: {error}", socket.display())))?;
    // Never dialled again: a call must not reach an agent that was started after it.
    let mut stream = Some(TokioIo::new(stream));
    let hand_over = tower::service_fn(move |_| {
        let stream = stream.take();
        std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    Endpoint::from_static("http://localhost")
        .connect_with_connector(hand_over)
        .await
        .map_err(|error| Status::unavailable(error.to_string()))
}
