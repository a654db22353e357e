//! Snapshots, and volumes from them.

use crate::site::{
    CHANGE, Client, GIB, Site, attached, cloud, create, created, deleted, instance, made,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Code, Status};

const CUT: &str = "POST /v2/volumes/ID/snapshots";

async fn cut(client: &mut Client, name: &str, of: &str) -> Result<csi::Snapshot, Status> {
    let answer = client.create_snapshot(requests::cut(name, of)).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

fn restored(name: &str, from: &str, gib: i64) -> csi::CreateVolumeRequest {
    let source = requests::of_snapshot(from);
    csi::CreateVolumeRequest {
        capacity_range: requests::range(gib * GIB, 0),
        volume_content_source: requests::create(name, crate::site::files(), Some(source))
            .volume_content_source,
        ..create(name)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_made_once_restored_and_deleted() {
    let cloud = cloud(CHANGE);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = made(
        &mut client,
        csi::CreateVolumeRequest {
            capacity_range: requests::range(3 * GIB, 0),
            ..create("pvc-1")
        },
    );
    let id = id.await.unwrap().volume_id;
    attached(&mut client, &id, &instance(1)).await.unwrap();
    // Civo does not document when the data is captured, so the call returns once the snapshot is
    // ready.
    let snapshot = cut(&mut client, "snapshot-1", &id).await.unwrap();
    assert!(snapshot.ready_to_use);
    assert_eq!(cut(&mut client, "snapshot-1", &id).await.unwrap(), snapshot);
    assert_eq!(
        (snapshot.size_bytes, &snapshot.source_volume_id),
        (3 * GIB, &id)
    );
    assert_eq!(cloud.count(CUT), 1, "{:?}", cloud.kinds());

    let small = made(&mut client, restored("pvc-2", &snapshot.snapshot_id, 2)).await;
    assert_eq!(small.unwrap_err().code(), Code::OutOfRange);
    let request = restored("pvc-2", &snapshot.snapshot_id, 5);
    let volume = made(&mut client, request.clone()).await.unwrap();
    assert_eq!(made(&mut client, request).await.unwrap(), volume);
    assert!(volume.content_source.is_some());
    let publish = csi::ControllerPublishVolumeRequest {
        volume_context: volume.volume_context.clone(),
        ..requests::attach(&volume.volume_id, &instance(2), crate::site::files())
    };
    let answer = client.controller_publish_volume(publish).await.unwrap();
    let content = &answer.into_inner().publish_context["content"];
    assert_eq!(content, "populated", "all of it may read as zeros");
    let at = cloud.service().twin().state().volumes[&volume.volume_id].clone();
    assert_eq!((at.from, at.gib), (Some(snapshot.snapshot_id.clone()), 5));

    let list = csi::ListSnapshotsRequest {
        source_volume_id: id.clone(),
        ..Default::default()
    };
    let listed = client.list_snapshots(list).await.unwrap().into_inner();
    assert_eq!(listed.entries.len(), 1);
    for _ in 0..2 {
        let discard = requests::discard(&snapshot.snapshot_id);
        client.delete_snapshot(discard).await.unwrap();
    }
    assert_eq!(cloud.service().twin().state().snapshots.len(), 0);
    let gone = made(&mut client, restored("pvc-3", &snapshot.snapshot_id, 5)).await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);
    // An existing volume is found nevertheless.
    let request = restored("pvc-2", &snapshot.snapshot_id, 5);
    assert_eq!(made(&mut client, request).await.unwrap(), volume);
}

/// A raw volume of 10 GiB has 11 GiB at Civo, since its disk is smaller.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_raw_volume_is_restored_with_the_size_of_its_claim() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let raw = |name: &str, bytes: i64, from: Option<&str>| csi::CreateVolumeRequest {
        capacity_range: requests::range(bytes, 0).filter(|_| bytes > 0),
        ..requests::create(name, crate::site::block(), from.map(requests::of_snapshot))
    };
    for (n, bytes) in [1 << 20, GIB, GIB * 3 / 2, 10 * GIB]
        .into_iter()
        .enumerate()
    {
        let source = made(&mut client, raw(&format!("pvc-{n}"), bytes, None));
        let source = source.await.unwrap();
        let snapshot = cut(&mut client, &format!("s-{n}"), &source.volume_id).await;
        let snapshot = snapshot.unwrap();
        assert!(snapshot.size_bytes <= bytes, "{bytes}: {snapshot:?}");
        // The snapshot has recorded the promise of its volume.
        deleted(&mut client, &source.volume_id).await.unwrap();
        for asked in [0, bytes, snapshot.size_bytes] {
            let name = format!("copy-{n}-{asked}");
            let copy = raw(&name, asked, Some(&snapshot.snapshot_id));
            let copy = made(&mut client, copy).await.unwrap();
            assert_eq!(
                copy.capacity_bytes, source.capacity_bytes,
                "{bytes} {asked}"
            );
        }
    }
    // With 9 GiB the volume would be smaller, and also with a class that promises the volume.
    let list = client.list_snapshots(csi::ListSnapshotsRequest::default());
    let listed = list.await.unwrap().into_inner().entries;
    let largest = listed.into_iter().filter_map(|entry| entry.snapshot);
    let largest = largest.max_by_key(|snapshot| snapshot.size_bytes).unwrap();
    cloud.forget();
    let small = raw("small", 9 * GIB, Some(&largest.snapshot_id));
    let refused = made(&mut client, small).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    let refused = made(&mut client, restored("files", &largest.snapshot_id, 10)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(refused.message().contains("volume of 11 GiB"), "{refused}");
    assert_eq!(cloud.count("POST /v2/volumes"), 0);
    let files = made(&mut client, restored("files", &largest.snapshot_id, 11));
    assert_eq!(files.await.unwrap().capacity_bytes, 11 * GIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_listed_after_its_deletion_is_still_being_deleted() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let snapshot = cut(&mut client, "a", &id).await.unwrap();
    cloud.service().twin().lag(Duration::from_secs(3));
    let discard = || requests::discard(&snapshot.snapshot_id);
    let late = client.delete_snapshot(discard()).await.unwrap_err();
    assert_eq!(late.code(), Code::Aborted, "{late}");
    cloud.service().twin().lag(Duration::ZERO);
    client.delete_snapshot(discard()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_unknown_size_is_not_restored() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let snapshot = cut(&mut client, "a", &id).await.unwrap().snapshot_id;
    let set = |gib| {
        let mut twin = cloud.service().twin();
        twin.change().snapshots.get_mut(&snapshot).unwrap().gib = gib;
    };
    set(0);
    // The size is that of the volume as long as it exists.
    made(&mut client, restored("pvc-2", &snapshot, 1))
        .await
        .unwrap();
    deleted(&mut client, &id).await.unwrap();
    let refused = made(&mut client, restored("pvc-3", &snapshot, 1)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(&snapshot), "{refused}");
    set(1);
    made(&mut client, restored("pvc-3", &snapshot, 1))
        .await
        .unwrap();
}

/// With a final code, csi-snapshotter would forget a snapshot that an earlier call may have
/// created.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_is_no_final_word_on_a_snapshot() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let words = serde_json::json!({"code": "forbidden", "reason": "no permission"});
    for read in ["GET /v2/snapshots", "GET /v2/volumes/ID"] {
        let refusal = belay_twins::http::Response::json(403, &words);
        cloud.disturb(read, 1, Fault::Refused(refusal));
        let refused = cut(&mut client, "a", &id).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{read}: {refused}");
        for part in ["no permission", "VolumeSnapshot cannot be deleted"] {
            assert!(refused.message().contains(part), "{part}: {refused}");
        }
    }
    cut(&mut client, "a", &id).await.unwrap();
}

/// A call that reads the snapshot finds that it will never be ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_snapshot_is_an_error_that_names_it_until_it_is_deleted() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let failed = serde_json::json!([{
        "snapshot_id": "5a000000-0000-4000-8000-000000000001", "name": "a", "volume_id": id,
        "source_volume_name": "pvc-1", "restore_size": 1, "state": "Failed",
        "creation_time": "2026-01-01T00:00:00Z",
    }]);
    let listed = belay_twins::http::Response::json(200, &failed);
    cloud.disturb("GET /v2/snapshots", 1, Fault::Refused(listed));
    let refused = cut(&mut client, "a", &id).await.unwrap_err();
    // The code is not final, since csi-snapshotter would forget the existing snapshot.
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let part =
        "snapshot 5a000000-0000-4000-8000-000000000001: Civo reports the state Failed; delete";
    assert!(refused.message().contains(part), "{refused}");
    assert_eq!(cloud.count(CUT), 0);
    let other = cut(&mut client, "a", &id).await.unwrap();
    assert!(other.ready_to_use, "it is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_and_equal_calls_at_once_make_one_snapshot() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    cloud.disturb(CUT, 1, Fault::Lost);
    let first = cut(&mut client, "a", &id).await.unwrap();
    assert_eq!(first, cut(&mut client, "a", &id).await.unwrap());
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let (mut client, id) = (client.clone(), id.clone());
        calls.spawn(async move { cut(&mut client, "b", &id).await.unwrap().snapshot_id });
    }
    let ids = calls.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(cloud.service().twin().state().snapshots.len(), 2);
    assert_eq!(cloud.count(CUT), 2);
    // The name belongs to a snapshot of one volume.
    let other = created(&mut client, "pvc-2").await.unwrap();
    let refused = cut(&mut client, "a", &other).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    cloud.service().twin().settings.quota.snapshots = 2;
    let refused = cut(&mut client, "c", &other).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // A snapshot remains after its volume is deleted.
    deleted(&mut client, &id).await.unwrap();
    let request = csi::GetSnapshotRequest {
        snapshot_id: first.snapshot_id.clone(),
        ..Default::default()
    };
    let found = client.get_snapshot(request).await.unwrap().into_inner();
    assert_eq!(found.snapshot.unwrap(), first);
}
