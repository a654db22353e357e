//! Unreadable records: each affects only its own volume or snapshot.

use crate::bed::{
    Bed, Client, MIB, ROOMY, clone, create, created, one_volume, ready, restore, snapshot,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use redb::{Database, TableDefinition};
use std::fs;
use tonic::{Code, Status};

const NOT_OURS: &[u8] = b"\xff{ not JSON";
const OF_A_LATER_RELEASE: &[u8] = br#"{"version":99,"shape":"other"}"#;

/// Overwrites a record with other bytes; returns the previous ones.
fn overwrite(bed: &Bed, table: &'static str, id: &str, record: &[u8]) -> Vec<u8> {
    let table = TableDefinition::<&str, &[u8]>::new(table);
    let book = Database::open(bed.state_dir().join("state.redb")).unwrap();
    let page = book.begin_write().unwrap();
    let before = {
        let mut records = page.open_table(table).unwrap();
        let before = records.insert(id, record).unwrap();
        before.unwrap().value().to_vec()
    };
    page.commit().unwrap();
    before
}

/// Returns the listed volumes, and whether they are reported as abnormal.
async fn listed(client: &mut Client) -> Vec<(String, bool)> {
    let list = client.list_volumes(csi::ListVolumesRequest::default());
    let entries = list.await.unwrap().into_inner().entries.into_iter();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let condition = entry.status.unwrap().volume_condition.unwrap();
            (entry.volume.unwrap().volume_id, condition.abnormal)
        })
        .collect();
    all.sort();
    all
}

async fn unhealthy(client: &mut Client) -> Vec<(String, String)> {
    let request = csi::ControllerListVolumeHealthRequest::default();
    let list = client.controller_list_volume_health(request).await.unwrap();
    let entries = list.into_inner().entries.into_iter();
    entries
        .map(|entry| (entry.volume_id, entry.health_statuses[0].reason.clone()))
        .collect()
}

/// Returns the results of all calls for this volume.
async fn called(client: &mut Client, id: &str) -> Vec<Result<(), Status>> {
    let delete = requests::delete(id);
    let grow = requests::grow(id, 9 * MIB);
    let get = requests::get(id);
    vec![
        client.controller_get_volume(get).await.map(drop),
        client.controller_expand_volume(grow).await.map(drop),
        client
            .create_snapshot(snapshot("other", id))
            .await
            .map(drop),
        client
            .create_volume(clone("pvc-9", 9 * MIB, id))
            .await
            .map(drop),
        client.delete_volume(delete).await.map(drop),
    ]
}

#[tokio::test]
async fn an_unreadable_record_is_the_trouble_of_its_volume_alone() {
    for (record, advice) in [
        (NOT_OURS, "backup"),
        (OF_A_LATER_RELEASE, "run the release that wrote it"),
    ] {
        let bed = Bed::new(&ROOMY);
        let mut controller = bed.start();
        let mut client = bed.client().await;
        let bad = created(&mut client, create("pvc-1", MIB)).await.volume_id;
        let well = created(&mut client, create("pvc-2", MIB)).await.volume_id;
        controller.kill();
        let before = overwrite(&bed, "volumes", &bad, record);

        let mut controller = bed.start();
        let log = controller.starting.join("\n");
        assert!(log.contains("ERROR") && log.contains(&bad), "{log}");
        assert!(!log.contains("belongs to no volume"), "{log}");
        client = bed.client().await;
        let mut all = vec![(bad.clone(), true), (well.clone(), false)];
        all.sort();
        assert_eq!(listed(&mut client).await, all);
        let reason = "RecordUnreadable".to_owned();
        assert_eq!(unhealthy(&mut client).await, [(bad.clone(), reason)]);
        for answer in called(&mut client, &bad).await {
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::Internal, "{status}");
            for word in [bad.as_str(), advice] {
                assert!(status.message().contains(word), "{status}");
            }
        }
        let found = client
            .create_volume(create("pvc-1", MIB))
            .await
            .unwrap_err();
        assert_eq!(found.code(), Code::Aborted, "it exists: {found}");
        assert!(found.message().contains(&bad), "{found}");
        assert!(bed.volumes_dir().join(&bad).exists());
        assert_eq!(fs::read_dir(bed.volumes_dir()).unwrap().count(), 2);
        let grow = requests::grow(&well, 2 * MIB);
        client.controller_expand_volume(grow).await.unwrap();
        let third = created(&mut client, create("pvc-3", MIB)).await.volume_id;
        controller.kill();
        overwrite(&bed, "volumes", &bad, &before);

        let _controller = bed.start();
        client = bed.client().await;
        let mut all = [bad, well, third].map(|id| (id, false));
        all.sort();
        assert_eq!(listed(&mut client).await, all);
    }
}

#[tokio::test]
async fn an_unreadable_record_of_a_snapshot_hides_no_other_snapshot() {
    let (bed, mut controller, mut client, id) = one_volume(MIB).await;
    let bad = ready(&mut client, snapshot("snap-1", &id))
        .await
        .snapshot_id;
    let well = ready(&mut client, snapshot("snap-2", &id))
        .await
        .snapshot_id;
    controller.kill();
    overwrite(&bed, "snapshots", &bad, NOT_OURS);

    let controller = bed.start();
    let log = controller.starting.join("\n");
    assert!(log.contains("ERROR") && log.contains(&bad), "{log}");
    assert!(!log.contains("belongs to no snapshot"), "{log}");
    client = bed.client().await;
    for source_volume_id in [String::new(), id] {
        let request = csi::ListSnapshotsRequest {
            source_volume_id,
            ..Default::default()
        };
        let list = client.list_snapshots(request).await.unwrap().into_inner();
        let ids = list.entries.into_iter();
        let ids: Vec<_> = ids
            .map(|entry| entry.snapshot.unwrap().snapshot_id)
            .collect();
        assert_eq!(ids, std::slice::from_ref(&well));
    }
    let discard = requests::discard(&bad);
    for answer in [
        client.delete_snapshot(discard).await.map(drop),
        client
            .create_volume(restore("pvc-2", MIB, &bad))
            .await
            .map(drop),
    ] {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains(&bad), "{status}");
    }
    assert!(bed.snapshots_dir().join(&bad).exists());
    created(&mut client, restore("pvc-2", MIB, &well)).await;
}
