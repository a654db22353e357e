//! Snapshots and copies.

use super::{Front, LONG, MIB, ROOM, SHORT, SMALL, accept, refusal, request, when};
use crate::definitions::done;
use crate::server::Server;
use belay_bed::requests;
use belay_controller::kubernetes::{
    Change, LocalSnapshot, LocalVolume, Object, Phase, SnapshotStatus, Source,
};
use belay_proto::csi::v1 as csi;
use csi::controller_server::Controller as _;
use std::collections::HashMap;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};

/// Returns a request for a copy of the volume, with a preference for this place.
pub(super) fn clone_of(name: &str, place: &str, id: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(requests::of_volume(id)),
        }),
        ..request(name, &[place])
    }
}

pub(super) fn cut(
    front: &Front,
    name: &str,
    id: &str,
) -> JoinHandle<Result<csi::Snapshot, Status>> {
    let request = Request::new(requests::cut(name, id));
    front.call(|service| async move {
        let answer = service.create_snapshot(request).await?;
        Ok(answer.into_inner().snapshot.unwrap())
    })
}

async fn when_snapshot(
    front: &Front,
    name: &str,
    is_so: impl Fn(&Object<LocalSnapshot>) -> bool,
) -> Object<LocalSnapshot> {
    let seen = when(&front.client, name, |object| object.is_some_and(&is_so)).await;
    seen.unwrap()
}

async fn report(
    front: &Front,
    snapshot: &Object<LocalSnapshot>,
    phase: Phase,
) -> Object<LocalSnapshot> {
    let status = SnapshotStatus {
        phase,
        observed_generation: Some(snapshot.metadata.generation),
        bytes: Some(SMALL),
        time: Some("2026-11-30T10:00:05Z".to_owned()),
        refused_removal: None,
        failure: None,
    };
    let change = Change::<LocalSnapshot>::Status(&status);
    done(front.client.patch(&snapshot.metadata, change).await)
}

pub(crate) async fn a_snapshot_is_cut_before_it_is_ready_and_is_deleted(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("snap-a", ROOM).await;
    let volume = front.ready(request("snap-v", &["snap-a"])).await;
    let taken = cut(&front, "snap-1", &volume.volume_id);
    let order = when_snapshot(&front, "snap-1", |_| true).await;
    let accepted = accept(&front.client, &order).await;
    let copying = report(&front, &accepted, Phase::Making).await;
    let snapshot = taken.await.unwrap().unwrap();
    assert!(!snapshot.ready_to_use);
    assert_eq!(snapshot.size_bytes, i64::try_from(SMALL).unwrap());
    assert_eq!(snapshot.creation_time.unwrap().seconds, 1_796_032_805);
    front.room_becomes("snap-a", ROOM - 2 * SMALL).await;

    report(&front, &copying, Phase::Ready).await;
    let id = &snapshot.snapshot_id;
    when_snapshot(&front, "snap-1", |it| {
        it.status.as_ref().unwrap().known().unwrap().phase == Phase::Ready
    })
    .await;
    let again = cut(&front, "snap-1", &volume.volume_id)
        .await
        .unwrap()
        .unwrap();
    assert!(again.ready_to_use && again.snapshot_id == *id);

    let restore = csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(requests::of_snapshot(id)),
        }),
        ..request("snap-r", &["snap-a"])
    };
    let restored = front.ready(restore).await;
    assert_eq!(restored.accessible_topology, [super::topology("snap-a")]);
    let object = front.when("snap-r", |_| true).await;
    let source = object.spec.known().unwrap().source.clone();
    assert_eq!(source, Some(Source::Snapshot(id.clone())));
    front.room_becomes("snap-a", ROOM - 3 * SMALL).await;

    let request = Request::new(requests::discard(id));
    let discarded =
        front.call(|service| async move { service.delete_snapshot(request).await.map(drop) });
    let attempt = when_snapshot(&front, "snap-1", |it| {
        it.spec.known().unwrap().remove.is_some()
    });
    let claimed = report(&front, &attempt.await, Phase::Removing).await;
    let change = Change::<LocalSnapshot>::Finalizers(&[]);
    done(front.client.patch(&claimed.metadata, change).await);
    discarded.await.unwrap().unwrap();
    when::<LocalSnapshot>(&front.client, "snap-1", |it| it.is_none()).await;
}

pub(crate) async fn an_ignored_order_for_a_snapshot_is_withdrawn_and_internal(server: &Server) {
    let front = Front::start(server, SHORT).await;
    front.disk("deaf-a", ROOM).await;
    let volume = {
        let patient = Front::start(server, LONG).await;
        patient.room_becomes("deaf-a", ROOM).await;
        patient.ready(request("deaf-v", &["deaf-a"])).await
    };
    front.room_becomes("deaf-a", ROOM - SMALL).await;
    let (code, why) = refusal(cut(&front, "deaf-1", &volume.volume_id).await);
    assert_eq!(code, Code::Internal, "{why}");
    assert!(
        front
            .client
            .get::<LocalSnapshot>("deaf-1")
            .await
            .unwrap()
            .is_none()
    );
}

pub(crate) async fn a_copy_is_on_the_disk_of_its_source_whatever_is_preferred(server: &Server) {
    let front = Front::start(server, LONG).await;
    let disk = front.disk("copy-a", ROOM).await;
    front.disk("copy-b", ROOM).await;
    let volume = front.ready(request("copy-v", &["copy-a"])).await;
    let mut preferring = clone_of("copy-1", "copy-b", &volume.volume_id);
    let requirements = preferring.accessibility_requirements.as_mut().unwrap();
    requirements.requisite.push(super::topology("copy-a"));
    let copy = front.ready(preferring).await;
    assert_eq!(copy.accessible_topology, [super::topology("copy-a")]);
    let object = front.when("copy-1", |_| true).await;
    let source = object.spec.known().unwrap().source.clone();
    assert_eq!(source, Some(Source::Volume(volume.volume_id.clone())));

    let elsewhere = clone_of("copy-2", "copy-b", &volume.volume_id);
    let (code, why) = refusal(front.create(elsewhere).await);
    assert_eq!(code, Code::InvalidArgument, "{why}");
    assert!(why.contains("copy-a"), "{why}");
    let other_disk = csi::CreateVolumeRequest {
        parameters: HashMap::from([("disk".to_owned(), "fast".to_owned())]),
        ..clone_of("copy-2", "copy-a", &volume.volume_id)
    };
    let (code, why) = refusal(front.create(other_disk).await);
    assert_eq!(code, Code::InvalidArgument, "{why}");
    assert!(why.contains("parameters[disk]"), "{why}");

    // The store finds less room than it has reported.
    let refused = front.create(clone_of("copy-2", "copy-a", &volume.volume_id));
    let order = front.when("copy-2", |_| true).await;
    front.status(&order, &super::refused(&order)).await;
    assert_eq!(refusal(refused.await).0, Code::FailedPrecondition);

    front.report(&disk, 2 * SMALL + MIB, None).await;
    front.room_becomes("copy-a", MIB).await;
    let full = clone_of("copy-2", "copy-a", &volume.volume_id);
    let (code, why) = refusal(front.create(full).await);
    assert_eq!(code, Code::FailedPrecondition, "{why}");
    assert!(why.contains("\"default\" at copy-a"), "{why}");
    assert!(
        front
            .client
            .get::<LocalVolume>("copy-2")
            .await
            .unwrap()
            .is_none()
    );
}

pub(crate) async fn an_ignored_order_for_a_copy_is_withdrawn_and_internal(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("blank-a", ROOM).await;
    let volume = front.ready(request("blank-v", &["blank-a"])).await;
    let short = Front::start(server, SHORT).await;
    let copy = clone_of("blank-1", "blank-a", &volume.volume_id);
    let (code, why) = refusal(short.create(copy).await);
    assert_eq!(code, Code::Internal, "{why}");
    assert!(
        front
            .client
            .get::<LocalVolume>("blank-1")
            .await
            .unwrap()
            .is_none()
    );
}
