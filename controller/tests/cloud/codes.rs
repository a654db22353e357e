//! The gRPC code for each failure of the backend in each call, from the operations through the
//! service and its layer to a client.

use crate::refusing::Refusing;
use crate::{PROFILE, on};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_server::call::{CallLayer, CallService, Certainty, Failure, Kind, Rpc};
use csi::controller_client::ControllerClient;
use csi::controller_server::ControllerServer;
use csi::volume_capability::access_mode::Mode;
use csi::volume_content_source::Type as Source;
use std::sync::Arc;
use tonic::{Code, Status};
use tower::Layer as _;

type Client = ControllerClient<CallService<ControllerServer<belay_controller::rpc::Service>>>;

/// A call, and the backend's verb that it uses.
type Way = (Rpc, &'static str);

const WAYS: &[Way] = &[
    (Rpc::CreateVolume, "create"),
    (Rpc::CreateVolume, "restore"),
    (Rpc::CreateVolume, "clone_volume"),
    (Rpc::DeleteVolume, "delete"),
    (Rpc::ControllerPublishVolume, "attach"),
    (Rpc::ControllerUnpublishVolume, "detach"),
    (Rpc::ControllerUnpublishVolume, "mark_used"),
    (Rpc::ValidateVolumeCapabilities, "get"),
    (Rpc::ListVolumes, "list"),
    (Rpc::ListVolumes, "conditions"),
    (Rpc::GetCapacity, "available_bytes"),
    (Rpc::CreateSnapshot, "cut"),
    (Rpc::DeleteSnapshot, "discard"),
    (Rpc::ListSnapshots, "list_snapshots"),
    (Rpc::GetSnapshot, "snapshot"),
    (Rpc::ControllerExpandVolume, "get"),
    (Rpc::ControllerExpandVolume, "resize"),
    (Rpc::ControllerModifyVolume, "get"),
    (Rpc::ControllerModifyVolume, "modify"),
    (Rpc::ControllerModifyVolume, "verify"),
    (Rpc::ControllerGetVolume, "get"),
    (Rpc::ControllerGetVolume, "conditions"),
    (Rpc::ControllerListVolumeHealth, "list_unhealthy"),
    (Rpc::ControllerGetVolumeHealth, "health"),
];

/// Reads in calls that have already found or created the requested object.
const READS_OF_A_RESULT: &[Way] = &[
    (Rpc::CreateVolume, "find"),
    (Rpc::CreateVolume, "meets"),
    (Rpc::CreateVolume, "verify"),
    (Rpc::CreateSnapshot, "drop_basis"),
];

/// Reads of the source of a new volume, before anything is created.
const READS_OF_A_SOURCE: &[Way] = &[(Rpc::CreateVolume, "snapshot"), (Rpc::CreateVolume, "get")];

/// Returns the code of a failure that has left nothing.
fn settled(rpc: Rpc, kind: Kind) -> Code {
    use Rpc::{
        ControllerExpandVolume, ControllerListVolumeHealth, ControllerModifyVolume,
        ControllerPublishVolume, CreateSnapshot, CreateVolume, ListSnapshots, ListVolumes,
    };
    match (kind, rpc) {
        (Kind::Invalid, _) => Code::InvalidArgument,
        (Kind::NotFound, _) => Code::NotFound,
        (Kind::Busy, _) => Code::Aborted,
        (Kind::Precondition, _) => Code::FailedPrecondition,
        // The user may request a smaller size.
        (Kind::Quota, ControllerExpandVolume) => Code::OutOfRange,
        // The user may request another class.
        (Kind::Quota, ControllerModifyVolume) => Code::InvalidArgument,
        (Kind::Quota, _) => Code::ResourceExhausted,
        (Kind::Unauthenticated, _) => Code::Unauthenticated,
        (Kind::Denied, _) => Code::PermissionDenied,
        (Kind::System | Kind::Bug, _) => Code::Internal,
        // An object exists but differs, only if the caller names an object.
        (Kind::Incompatible, CreateVolume | CreateSnapshot | ControllerPublishVolume) => {
            Code::AlreadyExists
        }
        (Kind::Incompatible, _) => Code::FailedPrecondition,
        (Kind::Range, CreateVolume | ControllerExpandVolume) => Code::OutOfRange,
        (Kind::Range, _) => Code::FailedPrecondition,
        // The code is final, since the caller would otherwise keep an object that was never begun.
        (Kind::Unreachable | Kind::Timeout, CreateVolume | CreateSnapshot) => Code::Internal,
        (Kind::Unreachable, _) => Code::Unavailable,
        (Kind::Timeout, _) => Code::DeadlineExceeded,
        (Kind::Unsupported, CreateVolume | CreateSnapshot | ControllerModifyVolume) => {
            Code::InvalidArgument
        }
        (Kind::Unsupported, ControllerPublishVolume) => Code::FailedPrecondition,
        (Kind::Unsupported, _) => Code::Unimplemented,
        // The caller begins the list again.
        (Kind::BadToken, ListVolumes | ListSnapshots | ControllerListVolumeHealth) => Code::Aborted,
        (Kind::BadToken, _) => Code::Internal,
    }
}

/// Returns the code of a failure after which a change may exist or still be running; it is never
/// final.
fn unsettled(kind: Kind) -> Code {
    match kind {
        Kind::Timeout => Code::DeadlineExceeded,
        Kind::Unreachable => Code::Unavailable,
        _ => Code::Aborted,
    }
}

fn source_of(verb: &str) -> Option<Source> {
    match verb {
        "restore" | "snapshot" => Some(requests::of_snapshot("snap-1")),
        "clone_volume" | "get" => Some(requests::of_volume("vol-1")),
        _ => None,
    }
}

fn new_volume(verb: &str, capability: csi::VolumeCapability) -> csi::CreateVolumeRequest {
    let mut request = requests::create("pvc-1", capability, source_of(verb));
    if ["meets", "verify"].contains(&verb) {
        let gold = [("type".to_owned(), "gold".to_owned())];
        request.mutable_parameters = gold.into();
    }
    request
}

async fn send(client: &mut Client, (rpc, verb): Way) -> Result<(), Status> {
    let block = requests::capability("block", Mode::SingleNodeWriter);
    let id = "vol-1".to_owned();
    match rpc {
        Rpc::CreateVolume => {
            let request = new_volume(verb, block);
            client.create_volume(request).await.map(drop)
        }
        Rpc::DeleteVolume => client.delete_volume(requests::delete(&id)).await.map(drop),
        Rpc::ControllerPublishVolume => {
            let request = requests::attach(&id, "node-1", block);
            client.controller_publish_volume(request).await.map(drop)
        }
        Rpc::ControllerUnpublishVolume => {
            let node = if verb == "mark_used" { "" } else { "node-1" };
            let request = requests::detach(&id, node);
            client.controller_unpublish_volume(request).await.map(drop)
        }
        Rpc::ValidateVolumeCapabilities => {
            let request = csi::ValidateVolumeCapabilitiesRequest {
                volume_id: id,
                volume_capabilities: vec![block],
                ..Default::default()
            };
            client.validate_volume_capabilities(request).await.map(drop)
        }
        Rpc::ListVolumes => client
            .list_volumes(csi::ListVolumesRequest::default())
            .await
            .map(drop),
        Rpc::GetCapacity => client
            .get_capacity(csi::GetCapacityRequest::default())
            .await
            .map(drop),
        Rpc::ControllerExpandVolume => {
            let request = requests::grow(&id, 1 << 31);
            client.controller_expand_volume(request).await.map(drop)
        }
        Rpc::ControllerModifyVolume => {
            let request = csi::ControllerModifyVolumeRequest {
                volume_id: id,
                mutable_parameters: [("type".to_owned(), "gold".to_owned())].into(),
                ..Default::default()
            };
            client.controller_modify_volume(request).await.map(drop)
        }
        Rpc::ControllerGetVolume => {
            let request = requests::get(&id);
            client.controller_get_volume(request).await.map(drop)
        }
        Rpc::ControllerListVolumeHealth => {
            let request = csi::ControllerListVolumeHealthRequest::default();
            client
                .controller_list_volume_health(request)
                .await
                .map(drop)
        }
        Rpc::ControllerGetVolumeHealth => {
            let request = csi::ControllerGetVolumeHealthRequest {
                volume_id: id,
                ..Default::default()
            };
            client.controller_get_volume_health(request).await.map(drop)
        }
        _ => send_of_snapshots(client, rpc).await,
    }
}

async fn send_of_snapshots(client: &mut Client, rpc: Rpc) -> Result<(), Status> {
    match rpc {
        Rpc::CreateSnapshot => {
            let request = requests::cut("snap", "vol-1");
            client.create_snapshot(request).await.map(drop)
        }
        Rpc::DeleteSnapshot => {
            let request = requests::discard("snap-1");
            client.delete_snapshot(request).await.map(drop)
        }
        Rpc::ListSnapshots => {
            let request = csi::ListSnapshotsRequest::default();
            client.list_snapshots(request).await.map(drop)
        }
        Rpc::GetSnapshot => {
            let request = csi::GetSnapshotRequest {
                snapshot_id: "snap-1".to_owned(),
                ..Default::default()
            };
            client.get_snapshot(request).await.map(drop)
        }
        other => unreachable!("{other:?} needs no backend"),
    }
}

fn client(backend: &Arc<Refusing>) -> Client {
    let service = on(Arc::clone(backend), PROFILE);
    let layer = CallLayer::new(PROFILE.name);
    ControllerClient::new(layer.layer(ControllerServer::from_arc(service)))
}

async fn assert_code(
    backend: &Arc<Refusing>,
    client: &mut Client,
    way: Way,
    (kind, certainty): (Kind, Certainty),
    expected: Code,
) {
    let failure = Failure {
        certainty,
        ..Failure::new(kind, "volume vol-1: as scripted")
    };
    backend.refuse(way.1, &failure);
    let status = send(client, way).await.unwrap_err();
    let what = format!("{way:?} {kind:?} {certainty:?}: {status}");
    assert_eq!(status.code(), expected, "{what}");
    // Messages about snapshots have additional text, especially if a VolumeSnapshot cannot be
    // deleted.
    let more = match (way.0, kind, expected) {
        (Rpc::CreateSnapshot, Kind::Denied, Code::Aborted)
        | (Rpc::DeleteSnapshot, Kind::Denied, _) => {
            "; permit this to the credentials of the driver: until then its VolumeSnapshot cannot \
             be deleted either"
        }
        (Rpc::CreateSnapshot, Kind::Denied, _) => "; permit this to the credentials of the driver",
        // For csi-snapshotter, this code is not final.
        (Rpc::CreateSnapshot, Kind::Quota, Code::ResourceExhausted) => {
            "; until it succeeds, its VolumeSnapshot cannot be deleted, unless the annotation \
             snapshot.storage.kubernetes.io/volumesnapshot-being-created is removed from its \
             VolumeSnapshotContent"
        }
        (Rpc::CreateSnapshot, Kind::Quota, _) => {
            "; until it succeeds, its VolumeSnapshot cannot be deleted"
        }
        _ => "",
    };
    assert_eq!(
        status.message(),
        format!("{}{more}", failure.message),
        "{what}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_failure_of_the_backend_has_its_code_in_each_call() {
    let backend = Arc::default();
    let mut client = client(&backend);
    for &way in WAYS {
        for &kind in Kind::ALL {
            for &certainty in Certainty::ALL {
                let expected = match certainty {
                    Certainty::NothingHappened | Certainty::RolledBack => settled(way.0, kind),
                    Certainty::MayBeRunning => unsettled(kind),
                };
                assert_code(&backend, &mut client, way, (kind, certainty), expected).await;
            }
        }
        backend.refuse("nothing", &Failure::bug("not used"));
        send(&mut client, way).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_read_may_exist() {
    let backend = Arc::default();
    let mut client = client(&backend);
    for &way in READS_OF_A_RESULT {
        for &kind in Kind::ALL {
            for &certainty in Certainty::ALL {
                let expected = match (way.1, kind) {
                    // The volume has other attributes.
                    ("verify", Kind::Invalid) => Code::AlreadyExists,
                    _ => unsettled(kind),
                };
                assert_code(&backend, &mut client, way, (kind, certainty), expected).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_be_read_leaves_nothing() {
    let backend = Arc::default();
    let mut client = client(&backend);
    for &way in READS_OF_A_SOURCE {
        for &kind in Kind::ALL {
            for &certainty in Certainty::ALL {
                let expected = settled(way.0, kind);
                assert_code(&backend, &mut client, way, (kind, certainty), expected).await;
            }
        }
    }
}

/// The only call that is not in the table needs no backend.
#[test]
fn each_call_of_the_controller_is_in_the_table() {
    let of_controller = Rpc::ALL
        .iter()
        .filter(|rpc| rpc.path().contains(".Controller/"));
    let missing = of_controller.filter(|rpc| !WAYS.iter().any(|(known, _)| known == *rpc));
    let missing: Vec<Rpc> = missing.copied().collect();
    assert_eq!(missing, [Rpc::ControllerGetCapabilities]);
}
