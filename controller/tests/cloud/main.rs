//! The controller's service over a simulated cloud: operations on storage that is slow, accepts a
//! name twice, and loses properties.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cloud;
mod codes;
mod copies;
mod dropped;
mod fate;
mod kept;
mod line;
mod lives;
mod matrix;
mod polls;
mod refusing;
mod secrets;
mod strange;

use belay_bed::requests;
use belay_contract::drivers::{LOCAL, Profile};
use belay_controller::backend::{Backend, Phase};
use belay_controller::mark_keys::MarkKeys;
use belay_controller::operation::{Operations, Rules};
use belay_controller::rpc::Service;
use belay_proto::csi::v1 as csi;
use belay_server::call::Failure;
use belay_server::identity::PluginCapability;
use cloud::{Cloud, GIB, ZONE};
use csi::controller_server::Controller as _;
use csi::controller_service_capability::Type;
use csi::controller_service_capability::rpc::Type as Call;
use csi::volume_capability::access_mode::Mode;
use line::Line;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Response, Status};

const PROFILE: Profile = Profile {
    name: "cloud.example.org",
    topology_key: ZONE,
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
    attaches: true,
    ..LOCAL
};

/// Creates a separate controller for this cloud.
fn controller(cloud: &Arc<Cloud>) -> Arc<Service> {
    on(Line::new(cloud), PROFILE)
}

fn on(backend: Arc<impl Backend>, profile: Profile) -> Arc<Service> {
    let rules = Rules {
        profile,
        disk_name_key: None,
        mark_keys: MarkKeys::default(),
    };
    Arc::new(Service::new(Arc::new(Operations::new(backend, rules))))
}

fn map(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

/// Returns credentials that the cloud accepts.
fn token() -> HashMap<String, String> {
    map("token", "hunter2")
}

fn mount() -> csi::VolumeCapability {
    requests::capability("", Mode::SingleNodeWriter)
}

/// Returns a request for a volume of the minimum size, with this class.
fn create(name: &str, class: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(1, 0),
        parameters: map("class", class),
        secrets: token(),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![zone()],
            preferred: vec![],
        }),
        ..requests::create(name, mount(), None)
    }
}

fn zone() -> csi::Topology {
    csi::Topology {
        segments: map(ZONE, "a"),
    }
}

async fn created(
    service: &Service,
    request: csi::CreateVolumeRequest,
) -> Result<csi::Volume, Status> {
    let answer = service.create_volume(Request::new(request)).await;
    Ok(answer?.into_inner().volume.unwrap())
}

/// Returns a request for a volume from this source.
fn restore(name: &str, source: csi::volume_content_source::Type) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(source),
        }),
        ..create(name, "fast")
    }
}

async fn cut(
    service: &Service,
    request: csi::CreateSnapshotRequest,
) -> Result<csi::Snapshot, Status> {
    let request = csi::CreateSnapshotRequest {
        secrets: token(),
        ..request
    };
    let answer = service.create_snapshot(Request::new(request)).await;
    Ok(answer?.into_inner().snapshot.unwrap())
}

async fn discarded(service: &Service, id: &str) -> Result<(), Status> {
    let request = csi::DeleteSnapshotRequest {
        secrets: token(),
        ..requests::discard(id)
    };
    let answer = service.delete_snapshot(Request::new(request)).await;
    answer.map(drop)
}

async fn deleted(service: &Service, id: &str) -> Result<(), Status> {
    let request = csi::DeleteVolumeRequest {
        secrets: token(),
        ..requests::delete(id)
    };
    service.delete_volume(Request::new(request)).await.map(drop)
}

async fn attached(
    service: &Service,
    id: &str,
    node: &str,
) -> Result<HashMap<String, String>, Status> {
    let request = csi::ControllerPublishVolumeRequest {
        volume_context: map("export", "/a"),
        secrets: token(),
        ..requests::attach(id, node, mount())
    };
    let answer = service.controller_publish_volume(Request::new(request));
    Ok(answer.await?.into_inner().publish_context)
}

async fn detached(service: &Service, id: &str) -> Result<(), Status> {
    let request = csi::ControllerUnpublishVolumeRequest {
        secrets: token(),
        ..requests::detach(id, "")
    };
    let answer = service.controller_unpublish_volume(Request::new(request));
    answer.await.map(drop)
}

async fn grown(service: &Service, id: &str, bytes: i64) -> Result<i64, Status> {
    let request = csi::ControllerExpandVolumeRequest {
        secrets: token(),
        ..requests::grow(id, bytes)
    };
    let answer = service.controller_expand_volume(Request::new(request));
    Ok(answer.await?.into_inner().capacity_bytes)
}

/// Returns the nodes of the only volume in the list.
async fn nodes(service: &Service) -> Vec<String> {
    let answer = service.list_volumes(Request::new(csi::ListVolumesRequest::default()));
    let entry = answer.await.unwrap().into_inner().entries.remove(0);
    entry.status.unwrap().published_node_ids
}

fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    answer.unwrap_err().code()
}

#[tokio::test(start_paused = true)]
async fn a_create_waits_for_the_cloud_and_a_repeated_one_finds_the_volume() {
    let cloud = Cloud::new(60);
    let (service, begun) = (controller(&cloud), Instant::now());
    let volume = created(&service, create("pvc-1", "fast")).await.unwrap();
    assert!((60..=62).contains(&begun.elapsed().as_secs()));
    assert_eq!(
        volume.capacity_bytes.unsigned_abs(),
        4 * GIB,
        "of its class"
    );
    assert_eq!(volume.accessible_topology, [zone()]);
    assert_eq!(volume.volume_context, map("export", "/a"));
    // The interval is a quarter of the elapsed time, from 250 ms to 2 s.
    let looks = cloud.looks();
    assert!((30..50).contains(&looks), "{looks}");

    let again = created(&service, create("pvc-1", "fast")).await.unwrap();
    assert_eq!(again.volume_id, volume.volume_id);
    assert!(
        again.volume_context.is_empty(),
        "the cloud has forgotten it"
    );
    assert_eq!(cloud.looks(), looks);
    let mut larger = create("pvc-1", "fast");
    larger.capacity_range.as_mut().unwrap().required_bytes = 5 << 30;
    assert_eq!(code(created(&service, larger).await), Code::AlreadyExists);
    assert_eq!(cloud.ids(), [volume.volume_id]);
}

#[tokio::test(start_paused = true)]
async fn a_create_longer_than_its_caller_waits_is_not_final_and_goes_on() {
    let cloud = Cloud::new(250);
    let service = controller(&cloud);
    for _ in 0..2 {
        let answer = created(&service, create("pvc-1", "fast")).await;
        assert_eq!(code(answer), Code::Aborted);
    }
    // Another controller finds the same volume.
    let other = controller(&cloud);
    let volume = created(&other, create("pvc-1", "fast")).await.unwrap();
    assert_eq!(cloud.ids(), [volume.volume_id]);
}

#[tokio::test(start_paused = true)]
async fn two_controllers_make_one_volume_of_a_name() {
    let cloud = Cloud::new(5);
    let (one, other) = (controller(&cloud), controller(&cloud));
    let (first, second) = tokio::join!(
        created(&one, create("pvc-1", "fast")),
        created(&other, create("pvc-1", "fast")),
    );
    let ids = [first.unwrap().volume_id, second.unwrap().volume_id];
    assert_eq!(ids[0], ids[1]);
    assert!(ids[0].ends_with("-2"), "the lowest id: {ids:?}");
    assert_eq!(cloud.ids(), ids[..1]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_fails_is_deleted_by_who_made_it_and_the_reason_is_final() {
    let cloud = Cloud::new(5);
    let service = controller(&cloud);
    let refused = created(&service, create("pvc-1", "doomed"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("no host has room"), "{refused}");
    assert!(cloud.ids().is_empty());

    // A volume without a mark may have been used, so the driver must not replace it.
    let failed = Phase::Failed(Failure::quota("no host has room"));
    cloud.leave("id-left", "pvc-2", failed);
    let found = created(&service, create("pvc-2", "doomed")).await;
    let refused = found.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("no host has room"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_grown_detached_and_deleted_when_the_cloud_has_done_it() {
    let cloud = Cloud::new(5);
    let (service, other) = (controller(&cloud), controller(&cloud));
    let id = created(&service, create("pvc-1", "fast"))
        .await
        .unwrap()
        .volume_id;
    for _ in 0..2 {
        let context = attached(&service, &id, "node-1").await.unwrap();
        assert_eq!(context.get("serial").map(String::as_str), Some("/a"));
    }
    assert_eq!(nodes(&service).await, ["node-1"]);
    assert_eq!(grown(&service, &id, 5 << 30).await.unwrap(), 5 << 30);

    // There is one job per volume, in this controller and for another controller in the cloud.
    let (detach, busy) = tokio::join!(detached(&service, &id), async {
        sleep(Duration::from_secs(1)).await;
        [deleted(&service, &id).await, deleted(&other, &id).await]
    });
    detach.unwrap();
    for refused in busy {
        assert_eq!(code(refused), Code::Aborted);
    }
    assert!(nodes(&service).await.is_empty());
    for _ in 0..2 {
        detached(&service, &id).await.unwrap();
    }
    for _ in 0..2 {
        deleted(&service, &id).await.unwrap();
        assert!(cloud.ids().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_takes_longer_frees_the_volume_and_is_repeated() {
    let cloud = Cloud::new(300);
    let service = controller(&cloud);
    let create = create("pvc-1", "fast");
    while created(&service, create.clone()).await.is_err() {}
    let id = cloud.ids().remove(0);
    let begun = Instant::now();
    assert_eq!(code(attached(&service, &id, "node-1").await), Code::Aborted);
    assert_eq!(begun.elapsed().as_secs(), 90);
    assert_eq!(code(attached(&service, &id, "node-1").await), Code::Aborted);
    sleep(Duration::from_secs(300)).await;
    attached(&service, &id, "node-1").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_the_cloud_refuses_is_refused_by_its_name() {
    let service = controller(&Cloud::new(5));
    let refused = created(&service, create("pvc-1", "slow"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("parameters[class]"), "{refused}");
    let anonymous = csi::CreateVolumeRequest {
        secrets: HashMap::new(),
        ..create("pvc-1", "fast")
    };
    let refused = created(&service, anonymous).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

async fn capabilities(service: &Service) -> HashSet<Call> {
    let request = Request::new(csi::ControllerGetCapabilitiesRequest {});
    let answer = service.controller_get_capabilities(request).await;
    let capabilities = answer.unwrap().into_inner().capabilities.into_iter();
    let call = |capability: csi::ControllerServiceCapability| match capability.r#type.unwrap() {
        Type::Rpc(rpc) => rpc.r#type(),
    };
    capabilities.map(call).collect()
}

#[tokio::test]
async fn what_backend_or_profile_lack_is_not_offered_and_not_implemented() {
    let cloud = Cloud::new(5);
    let always = [
        Call::CreateDeleteVolume,
        Call::ListVolumes,
        Call::GetVolume,
        Call::SingleNodeMultiWriter,
    ];
    let more = [
        Call::PublishUnpublishVolume,
        Call::PublishReadonly,
        Call::ListVolumesPublishedNodes,
        Call::ExpandVolume,
        Call::CreateDeleteSnapshot,
        Call::ListSnapshots,
        Call::GetSnapshot,
        Call::CloneVolume,
    ];
    let all = always.into_iter().chain(more).collect();
    assert_eq!(capabilities(&controller(&cloud)).await, all);

    let profile = Profile {
        attaches: false,
        capabilities: &[PluginCapability::Controller],
        ..PROFILE
    };
    let service = on(Line::without_snapshots(&cloud), profile);
    assert_eq!(capabilities(&service).await, HashSet::from(always));
    let cut = requests::cut("snap", "id-8");
    let cut: Result<Response<_>, _> = service.create_snapshot(Request::new(cut)).await;
    for code in [
        code(attached(&service, "id-8", "node-1").await),
        code(detached(&service, "id-8").await),
        code(grown(&service, "id-8", 1 << 30).await),
        code(cut),
    ] {
        assert_eq!(code, Code::Unimplemented);
    }
}

#[tokio::test(start_paused = true)]
async fn a_detach_from_all_nodes_is_repeated_while_another_controller_attaches() {
    let cloud = Cloud::new(60);
    let (one, other) = (controller(&cloud), controller(&cloud));
    let id = created(&one, create("pvc-1", "fast")).await.unwrap();
    let id = id.volume_id;
    let attaching = {
        let id = id.clone();
        tokio::spawn(async move { attached(&one, &id, "node-1").await.map(drop) })
    };
    sleep(Duration::from_secs(5)).await;
    assert_eq!(code(detached(&other, &id).await), Code::Aborted);
    attaching.await.unwrap().unwrap();
    detached(&other, &id).await.unwrap();
    assert!(nodes(&other).await.is_empty());
}
