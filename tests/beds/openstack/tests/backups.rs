//! Backups as snapshots, by the real cinder-backup, with their data compared.

use std::time::Duration;

use belay_bed::requests;
use belay_contract::publish_context::Content;
use belay_openstack::{Bed, Cloud};
use belay_proto::csi::v1 as csi;
use serde_json::Value;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::lifecycle::read;
use crate::site::{
    Client, GIB, Site, assert_refused, attached, created, deleted, detached, in_time, unique,
};
use crate::snapshots::{content, copy, discarded, listed, named, pattern, write};

/// A bed with cinder-backup, which others do not need.
fn bed() -> Bed {
    let bed = Bed::open();
    if !bed.has_started("cinder-backup") {
        bed.command(&["start", "cinder-backup"]);
    }
    bed
}

/// A request of the class that makes backups.
async fn backed_up(client: &mut Client, name: &str, of: &str) -> Result<csi::Snapshot, Status> {
    let mut request = requests::cut(name, of);
    let kind = ("type".to_owned(), "backup".to_owned());
    request.parameters.extend([kind]);
    let answer = client.create_snapshot(request).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

/// Repeats the request, as the snapshotter does, until the backup can be restored.
async fn complete(client: &mut Client, name: &str, of: &str) -> csi::Snapshot {
    let repeated = async {
        loop {
            match backed_up(client, name, of).await {
                Ok(snapshot) if snapshot.ready_to_use => return snapshot,
                Err(status) if status.code() != Code::Aborted => panic!("{status}"),
                _ => sleep(Duration::from_secs(1)).await,
            }
        }
    };
    in_time("a complete backup", repeated).await
}

/// Backups of that name, as Cinder shows them.
fn backups(cloud: &Cloud, name: &str) -> Vec<Value> {
    let path = format!("/backups/detail?name={name}");
    let body = cloud.expect(200, "volumev3", ("GET", &path), &Value::Null);
    body["backups"].as_array().unwrap().clone()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_backup_of_a_volume_in_use_is_restored_with_the_data_of_its_instant() {
    let bed = bed();
    let cloud = Cloud::by_password(&bed);
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let of = created(client, &unique("source")).await.volume_id;
    attached(client, &of, &here.id).await;
    let (before, after) = (pattern(), pattern());
    write(&bed, &here, &before);
    let name = unique("backup");
    let begun = backed_up(client, &name, &of).await.unwrap();
    assert!(!begun.ready_to_use && begun.source_volume_id == of);
    write(&bed, &here, &after);
    // While it is copied, the volume moves, and a controller is killed.
    detached(client, &of, &here.id).await;
    drop(controller);
    let _controller = site.start();
    let client = &mut site.client().await;
    let id = begun.snapshot_id.clone();
    let early = client
        .create_volume(copy(1, requests::of_snapshot(&id)))
        .await;
    assert_refused(early, Code::FailedPrecondition, "not ready");
    assert_refused(
        client.delete_snapshot(requests::discard(&id)).await,
        Code::Aborted,
        "repeat",
    );
    let done = complete(client, &name, &of).await;
    assert_eq!((&done.snapshot_id, done.size_bytes), (&id, GIB));
    assert_eq!(done.creation_time, begun.creation_time);
    assert_eq!(backups(&cloud, &name).len(), 1);
    assert!(listed(client, &of).await.is_empty());
    let without_basis = async {
        while !named(&cloud, &name).is_empty() {
            sleep(Duration::from_millis(500)).await;
        }
    };
    in_time("a deleted basis", without_basis).await;

    // A backup outlives its volume.
    deleted(client, &of).await;
    let request = copy(2, requests::of_snapshot(&id));
    let volume = client.create_volume(request.clone()).await.unwrap();
    let volume = volume.into_inner().volume.unwrap();
    assert_eq!(volume.capacity_bytes, 2 * GIB);
    assert_eq!(volume.content_source, request.volume_content_source);
    let again = client.create_volume(request).await.unwrap().into_inner();
    assert_eq!(again.volume.unwrap(), volume, "the same");
    let restored = &volume.volume_id;
    let plan = read(restored, attached(client, restored, &there.id).await);
    assert_eq!(plan.content, Content::Populated);
    assert!(content(&bed, &there) == before, "other data");
    detached(client, restored, &there.id).await;
    for _ in 0..2 {
        discarded(client, &id).await;
    }
    assert_eq!(backups(&cloud, &name), [] as [Value; 0]);
    deleted(client, restored).await;
}
