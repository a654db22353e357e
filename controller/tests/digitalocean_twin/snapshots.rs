//! Snapshots, and volumes from them.

use crate::site::{CUT, GIB, NODE, RESIZE, Site, attached, block, created, cut, deleted, refused};
use belay_bed::patience::until;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use belay_twins::digitalocean::refusal;
use tokio::task::JoinSet;
use tonic::Code;

fn restored(name: &str, from: &csi::Snapshot, bytes: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(bytes, 0),
        ..requests::create(
            name,
            block(),
            Some(requests::of_snapshot(&from.snapshot_id)),
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_snapshot_within_ten_minutes_fails_at_once_and_delays_no_other_call() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let first = cut(&mut client, "s-1", &id).await.unwrap();
    assert!(first.ready_to_use);
    assert_eq!(first.size_bytes, GIB);
    let answer = cut(&mut client, "s-2", &id).await;
    refused(answer, Code::ResourceExhausted, "one request per 10m0s");
    assert_eq!(site.cloud.count(CUT), 2, "it is not asked again");
    // The first snapshot is found, although its volume's ten minutes have not passed.
    assert_eq!(cut(&mut client, "s-1", &id).await.unwrap(), first);
    let other = created(&mut client, "pvc-2").await.unwrap();
    cut(&mut client, "s-3", &other).await.unwrap();
    let answer = cut(&mut client, "s-1", &other).await;
    refused(answer, Code::AlreadyExists, "belongs to snapshot");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_snapshot_is_read_back_and_all_are_listed() {
    let site = Site::new();
    site.twin().settings().snapshot_rest = std::time::Duration::ZERO;
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.cloud.disturb(CUT, 1, Fault::Lost);
    let first = cut(&mut client, "s-1", &id).await.unwrap();
    for n in 2..5 {
        cut(&mut client, &format!("s-{n}"), &id).await.unwrap();
    }
    let list = |request| {
        let mut client = client.clone();
        async move {
            let answer = client.list_snapshots(request).await.unwrap();
            answer.into_inner()
        }
    };
    let page = list(csi::ListSnapshotsRequest {
        max_entries: 3,
        ..Default::default()
    });
    let page = page.await;
    assert_eq!((page.entries.len(), page.next_token.as_str()), (3, "3"));
    let rest = list(csi::ListSnapshotsRequest {
        starting_token: page.next_token,
        ..Default::default()
    });
    assert_eq!(rest.await.entries.len(), 1);
    let of_none = list(csi::ListSnapshotsRequest {
        source_volume_id: "00000000-0000-4000-8000-000000000000".to_owned(),
        ..Default::default()
    });
    assert_eq!(of_none.await.entries.len(), 0);
    let own = list(csi::ListSnapshotsRequest {
        snapshot_id: first.snapshot_id.clone(),
        ..Default::default()
    });
    assert_eq!(own.await.entries[0].snapshot.as_ref(), Some(&first));
    // A droplet's snapshot is not that of a volume, and is not deleted.
    for id in ["119192817", &first.snapshot_id, &first.snapshot_id] {
        client.delete_snapshot(requests::discard(id)).await.unwrap();
    }
    assert_eq!(site.twin().snapshots(), 3);
    let kinds = site.cloud.kinds();
    assert_eq!(kinds["DELETE /v2/snapshots/ID"], 2, "{kinds:?}");
}

/// With a final code, csi-snapshotter would forget a snapshot that an earlier call may have
/// created.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_fails_is_no_final_word_on_a_snapshot() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let denied = Fault::Refused(refusal(403, "no permission"));
    site.cloud
        .disturb("GET /v2/volumes/ID/snapshots", 1, denied);
    let answer = cut(&mut client, "s-1", &id).await;
    let hint = "no permission; permit this to the credentials of the driver";
    refused(answer, Code::Aborted, hint);
    let snapshot = cut(&mut client, "s-1", &id).await.unwrap();
    let denied = Fault::Refused(refusal(403, "no permission"));
    site.cloud.disturb("DELETE /v2/snapshots/ID", 1, denied);
    let discard = requests::discard(&snapshot.snapshot_id);
    let answer = client.delete_snapshot(discard).await;
    refused(answer, Code::PermissionDenied, hint);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_volume_has_the_size_that_was_asked_for_and_is_never_formatted() {
    for restores_larger in [false, true] {
        let site = Site::new();
        site.twin().settings().restores_larger = restores_larger;
        let _running = site.start();
        let mut client = site.client().await;
        let id = created(&mut client, "pvc-1").await.unwrap();
        let snapshot = cut(&mut client, "s-1", &id).await.unwrap();
        deleted(&mut client, &id).await.unwrap();
        let asked = restored("pvc-2", &snapshot, 3 * GIB);
        let made = client.create_volume(asked.clone()).await.unwrap();
        let made = made.into_inner().volume.unwrap();
        assert_eq!(made.capacity_bytes, 3 * GIB);
        assert!(made.content_source.is_some());
        let again = client.create_volume(asked).await.unwrap();
        assert_eq!(again.into_inner().volume.unwrap(), made);
        let context = attached(&mut client, &made.volume_id, NODE).await.unwrap();
        assert_eq!(context["content"], "populated");
        let resized = site.cloud.count(RESIZE);
        assert_eq!(resized, usize::from(!restores_larger));
        let answer = client
            .create_volume(crate::site::sized("pvc-2", 3 * GIB))
            .await;
        refused(answer, Code::AlreadyExists, "created from snapshot");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_was_killed_before_its_resize_is_completed_by_the_retry() {
    let site = Site::new();
    let mut running = Some(site.start());
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let snapshot = cut(&mut client, "s-1", &id).await.unwrap();
    let asked = restored("pvc-2", &snapshot, 5 * GIB);
    // First the action fails, then the response is lost, then the controller is killed.
    site.twin().settings().errored = 1;
    let answer = client.create_volume(asked.clone()).await;
    refused(answer, Code::Aborted, "errored");
    site.cloud
        .disturb(RESIZE, 1, Fault::Refused(refusal(500, "sorry")));
    let answer = client.create_volume(asked.clone()).await;
    refused(answer, Code::Unavailable, "sorry");
    site.twin().settings().is_stuck = true;
    let call = {
        let (mut client, asked) = (client.clone(), asked.clone());
        tokio::spawn(async move { client.create_volume(asked).await })
    };
    while site.cloud.count(RESIZE) < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(running.take());
    call.await.unwrap().unwrap_err();
    site.twin().settings().is_stuck = false;
    site.twin().end_actions();
    running = Some(site.start());
    let mut client = site.client().await;
    let made = client.create_volume(asked).await.unwrap();
    assert_eq!(made.into_inner().volume.unwrap().capacity_bytes, 5 * GIB);
    assert_eq!(site.twin().volumes().len(), 2);
    drop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_that_fail_fail_no_list_and_no_call_of_another_volume() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let snapshot = cut(&mut client, "s-1", &id).await.unwrap();
    site.twin().settings().errored = 2;
    let mut restores = JoinSet::new();
    for name in ["pvc-2", "pvc-3"] {
        let (mut client, asked) = (client.clone(), restored(name, &snapshot, 5 * GIB));
        restores.spawn(async move { client.create_volume(asked).await });
    }
    until("both are growing", || site.cloud.count(RESIZE) == 2);
    // The polls are lists, since there are three volumes.
    attached(&mut client, &id, NODE).await.unwrap();
    for answer in restores.join_all().await {
        assert_eq!(answer.unwrap_err().code(), Code::Aborted);
    }
    let listed = client.list_volumes(csi::ListVolumesRequest::default());
    assert!(!listed.await.unwrap().into_inner().entries.is_empty());
    for name in ["pvc-2", "pvc-3"] {
        let asked = restored(name, &snapshot, 5 * GIB);
        let made = client.create_volume(asked).await.unwrap();
        assert_eq!(made.into_inner().volume.unwrap().capacity_bytes, 5 * GIB);
    }
}
