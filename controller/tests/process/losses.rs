//! Files that another program has truncated or emptied: the loss remains visible after any call and
//! any number of starts.

use crate::bed::{
    Client, MIB, assert_refused, clone, created, one_volume, ready, restore, snapshot,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use tonic::Code;

/// Sets the length of a file as truncate(1) does.
fn set_len(file: &Path, mebibytes: u64) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(mebibytes << 20).unwrap();
}

fn write(file: &Path, data: &[u8]) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(data, 0).unwrap();
    file.sync_all().unwrap();
}

async fn reasons(client: &mut Client, id: &str) -> Vec<String> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let answer = client.controller_get_volume_health(request).await.unwrap();
    let health = answer.into_inner().volume_health.unwrap();
    let all = health.health_statuses.into_iter();
    all.map(|entry| entry.reason).collect()
}

#[tokio::test]
async fn a_cut_file_stays_cut_and_reported_over_a_restart_and_every_call() {
    let (bed, mut controller, mut client, id) = one_volume(5 * MIB).await;
    let file = bed.volumes_dir().join(&id);
    write(&file, &[7; 5 << 20]);
    for cut_to in [4, 0] {
        set_len(&file, cut_to);
        controller.kill();
        controller = bed.start();
        client = bed.client().await;
        assert_eq!(reasons(&mut client, &id).await, ["BackingFileShort"]);
        let names = [id.as_str(), "restore"];
        let refusals = [
            client
                .controller_expand_volume(requests::grow(&id, 5 * MIB))
                .await
                .map(drop),
            client
                .controller_expand_volume(requests::grow(&id, 9 * MIB))
                .await
                .map(drop),
            client
                .create_snapshot(snapshot("snap", &id))
                .await
                .map(drop),
            client
                .create_volume(clone("pvc-2", 9 * MIB, &id))
                .await
                .map(drop),
        ];
        for refusal in refusals {
            assert_refused(&refusal.unwrap_err(), Code::FailedPrecondition, &names);
        }
        assert_eq!(fs::metadata(&file).unwrap().len(), cut_to << 20);
        assert_eq!(reasons(&mut client, &id).await, ["BackingFileShort"]);
    }
    assert_eq!(fs::read_dir(bed.snapshots_dir()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(bed.volumes_dir()).unwrap().count(), 1);
    // The file is restored from a backup.
    set_len(&file, 5);
    write(&file, &[7; 5 << 20]);
    assert_eq!(reasons(&mut client, &id).await, [""; 0]);
}

#[tokio::test]
async fn a_cut_volume_can_be_deleted() {
    let (bed, _controller, mut client, id) = one_volume(5 * MIB).await;
    set_len(&bed.volumes_dir().join(&id), 1);
    let request = requests::delete(&id);
    client.delete_volume(request).await.unwrap();
}

#[tokio::test]
async fn a_volume_that_was_used_once_is_never_taken_for_new_and_neither_is_a_copy() {
    let (bed, mut controller, _, id) = one_volume(5 * MIB).await;
    assert!(bed.is_new(&id));
    bed.begin_use(&id);
    let file = bed.volumes_dir().join(&id);
    write(&file, b"data");
    // The user of the raw volume discards all of it.
    set_len(&file, 0);
    set_len(&file, 5);
    controller.kill();
    let _controller = bed.start();
    let mut client = bed.client().await;
    assert!(!bed.is_new(&id));
    let cloned = created(&mut client, clone("pvc-2", 5 * MIB, &id)).await;
    let snapshot = ready(&mut client, snapshot("snap", &id)).await.snapshot_id;
    let restored = created(&mut client, restore("pvc-3", 5 * MIB, &snapshot)).await;
    for volume in [cloned, restored] {
        assert!(!bed.is_new(&volume.volume_id));
    }
}

#[tokio::test]
async fn a_snapshot_that_was_cut_short_or_lost_is_not_restored_and_not_listed_as_ready() {
    let (bed, mut controller, mut client, id) = one_volume(5 * MIB).await;
    write(&bed.volumes_dir().join(&id), &[7; 5 << 20]);
    let snapshot = ready(&mut client, snapshot("snap", &id)).await.snapshot_id;
    let file = bed.snapshots_dir().join(&snapshot);
    let away = bed.snapshots_dir().join("away");
    fs::copy(&file, &away).unwrap();
    let damages: [fn(&Path); 3] = [
        |file| set_len(file, 4),
        |file| drop(File::create(file).unwrap()),
        |file| fs::remove_file(file).unwrap(),
    ];
    for damage in damages {
        damage(&file);
        for _ in 0..2 {
            let refused = client.create_volume(restore("pvc-2", 5 * MIB, &snapshot));
            let refused = refused.await.unwrap_err();
            assert_refused(&refused, Code::FailedPrecondition, &[&snapshot, "restore"]);
            assert_eq!(fs::read_dir(bed.volumes_dir()).unwrap().count(), 1);
            assert!(!is_ready(&mut client, &snapshot).await);
            controller.kill();
            controller = bed.start();
            client = bed.client().await;
        }
        fs::copy(&away, &file).unwrap();
        assert!(is_ready(&mut client, &snapshot).await);
    }
    created(&mut client, restore("pvc-2", 5 * MIB, &snapshot)).await;
}

/// Whether the snapshot is ready, by the list and by a read of the snapshot.
async fn is_ready(client: &mut Client, id: &str) -> bool {
    let list = client.list_snapshots(csi::ListSnapshotsRequest::default());
    let list = list.await.unwrap().into_inner().entries;
    assert_eq!(list.len(), 1);
    let request = csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    let found = client.get_snapshot(request).await.unwrap().into_inner();
    let listed = list.into_iter().next().unwrap().snapshot.unwrap();
    assert_eq!(listed, found.snapshot.unwrap());
    listed.ready_to_use
}
