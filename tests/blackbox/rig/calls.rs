//! RPCs as plain calls. Each opens a new connection, as the kubelet does, and has a deadline. A
//! caller may also disconnect before the response.

use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_bed::patience::PATIENCE;
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use belay_proto::pluginregistration as registration;
use csi::controller_client::ControllerClient;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use registration::registration_client::RegistrationClient;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

/// The result of a call.
pub(crate) type Answer<T> = Result<T, Status>;

/// A client of the node service at a socket.
#[derive(Clone, Debug)]
pub(crate) struct NodeCalls {
    line: Line,
}

/// A client of the controller service at a socket.
#[derive(Clone, Debug)]
pub(crate) struct ControllerCalls {
    line: Line,
}

/// The socket and the timeouts.
#[derive(Clone, Debug)]
struct Line {
    socket: PathBuf,
    leaving: Option<Leaving>,
}

/// A caller that disconnects if it gets no response within this time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaving {
    /// The caller cancels the call, and keeps using the connection.
    Call(Duration),
    /// The whole connection breaks.
    Connection(Duration),
}

/// The status of a caller that has disconnected.
const LEFT: &str = "the caller disconnected before the response";

/// Whether the caller has disconnected, and so does not know the result of its call.
pub(crate) fn has_left(status: &Status) -> bool {
    status.code() == Code::Cancelled && status.message() == LEFT
}

/// Defines methods that differ only in their names.
macro_rules! calls {
    ($calls:ident, $client:ident:
        $($method:ident => $rpc:ident, $asked:ident, $answer:ident;)+
    ) => {
        impl $calls {
            pub(crate) fn new(socket: PathBuf) -> Self {
                let leaving = None;
                $calls { line: Line { socket, leaving } }
            }

            /// Makes the caller disconnect before the response. [`has_left`] recognises the
            /// resulting error.
            pub(crate) fn leaving(mut self, leaving: Option<Leaving>) -> Self {
                self.line.leaving = leaving;
                self
            }

            $(pub(crate) fn $method(&self, request: csi::$asked) -> Answer<csi::$answer> {
                call(&self.line, async |channel| $client::new(channel).$rpc(request).await)
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
    validate => validate_volume_capabilities,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse;
    list => list_volumes, ListVolumesRequest, ListVolumesResponse;
    get => controller_get_volume, ControllerGetVolumeRequest, ControllerGetVolumeResponse;
    expand => controller_expand_volume,
        ControllerExpandVolumeRequest, ControllerExpandVolumeResponse;
    cut => create_snapshot, CreateSnapshotRequest, CreateSnapshotResponse;
    discard => delete_snapshot, DeleteSnapshotRequest, DeleteSnapshotResponse;
    list_snapshots => list_snapshots, ListSnapshotsRequest, ListSnapshotsResponse;
    volume_health => controller_get_volume_health,
        ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse;
}

/// Queries whether the program that listens at the socket is ready.
pub(crate) fn probe(socket: &Path) -> Answer<csi::ProbeResponse> {
    call_at(socket, async |channel| ask(channel).await)
}

async fn ask(channel: Channel) -> Result<Response<csi::ProbeResponse>, Status> {
    IdentityClient::new(channel)
        .probe(csi::ProbeRequest {})
        .await
}

/// Queries a registration socket.
pub(crate) fn registration_info(socket: &Path) -> Answer<registration::PluginInfo> {
    call_at(socket, async |channel| {
        RegistrationClient::new(channel)
            .get_info(registration::InfoRequest {})
            .await
    })
}

/// Sends the kubelet's reply to a registration socket.
pub(crate) fn notify(
    socket: &Path,
    status: registration::RegistrationStatus,
) -> Answer<registration::RegistrationStatusResponse> {
    call_at(socket, async |channel| {
        RegistrationClient::new(channel)
            .notify_registration_status(status)
            .await
    })
}

/// Makes one call at a socket, and waits for the response.
pub(crate) fn call_at<T>(
    socket: &Path,
    act: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
) -> Answer<T> {
    let line = Line {
        socket: socket.to_owned(),
        leaving: None,
    };
    call(&line, act)
}

fn call<T>(
    line: &Line,
    act: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
) -> Answer<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // The runtime ends any calls that are still running; the connection is just closed then.
    let answer = runtime.block_on(async {
        let channel = dial(&line.socket).await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let patience = match line.leaving {
            None => PATIENCE,
            Some(Leaving::Call(patience) | Leaving::Connection(patience)) => patience,
        };
        if let Ok(answer) = tokio::time::timeout(patience, act(channel.clone())).await {
            return answer;
        }
        match line.leaving {
            None => panic!("no answer within {PATIENCE:?}"),
            Some(Leaving::Connection(_)) => {}
            Some(Leaving::Call(_)) => {
                let next = tokio::time::timeout(PATIENCE, ask(channel)).await;
                next.unwrap_or_else(|_| panic!("no answer within {PATIENCE:?}"))?;
            }
        }
        Err(Status::cancelled(LEFT))
    });
    answer.map(Response::into_inner)
}
