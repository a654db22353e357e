//! Responses about another object than that of the call, and with invalid IDs: no caller receives
//! them, nothing is changed, and the repeated call finds the object that Civo has created.

use crate::site::{Site, attached, cloud, created, instance};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use belay_twins::civo::Status;
use serde_json::{Value, json};
use std::time::Duration;
use tonic::{Code, Status as Failed};

const CREATE: &str = "POST /v2/volumes";
const DELETE: &str = "DELETE /v2/volumes/ID";
const NO_ID: &str = "../../quota";

fn refused<T: std::fmt::Debug>(answer: Result<T, Failed>, words: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains(words), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_is_answered_with_another_volume_fails_and_its_retry_finds_its_own() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let other = created(&mut client, "pvc-1").await.unwrap();
    for (n, (values, words)) in [
        // A response may lack the name: the volume is read then.
        (
            vec![("/id", json!(other)), ("/name", Value::Null)],
            "whose name is \"pvc-1\"",
        ),
        (
            vec![("/id", json!(other)), ("/name", json!("pvc-1"))],
            "whose name is \"pvc-1\"",
        ),
        (vec![("/id", json!(NO_ID))], NO_ID),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("own-{n}");
        cloud.disturb(CREATE, 1, Fault::Altered(values));
        refused(created(&mut client, &name).await, words);
        assert_ne!(created(&mut client, &name).await.unwrap(), other);
        let volumes = cloud.service().twin().state().volumes.len();
        assert_eq!(volumes, n + 2, "one for each name");
    }
    assert_eq!(created(&mut client, "pvc-1").await.unwrap(), other);
    assert_eq!(cloud.count(DELETE), 0);
}

/// A failed volume is deleted only by the process that has created it.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_volume_that_a_creation_is_answered_with_is_not_deleted() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let other = created(&mut client, "pvc-1").await.unwrap();
    {
        let mut twin = cloud.service().twin();
        twin.change().volumes.get_mut(&other).unwrap().status = Status::Error;
    }
    let strange = vec![("/id", json!(other)), ("/name", Value::Null)];
    cloud.disturb(CREATE, 1, Fault::Altered(strange));
    refused(
        created(&mut client, "pvc-2").await,
        "whose name is \"pvc-1\"",
    );
    let failed = created(&mut client, "pvc-1").await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    assert_eq!(cloud.count(DELETE), 0);
    assert_ne!(created(&mut client, "pvc-2").await.unwrap(), other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_another_object_is_no_word_on_this_one_and_a_list_hides_no_other() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let (id, other) = (
        created(&mut client, "pvc-1").await.unwrap(),
        created(&mut client, "pvc-2").await.unwrap(),
    );
    let strange = Fault::Altered(vec![("/id", json!(other))]);
    cloud.disturb("GET /v2/volumes/ID", 1, strange);
    let answer = attached(&mut client, &id, &instance(1)).await;
    refused(answer, &format!("has answered with volume \"{other}\""));
    attached(&mut client, &id, &instance(1)).await.unwrap();
    for kind in ["POST /v2/volumes/ID/snapshots", "GET /v2/snapshots"] {
        // The result of a cut is read from the list.
        let place = if kind.starts_with("GET") {
            "/0/snapshot_id"
        } else {
            "/snapshot_id"
        };
        cloud.disturb(kind, 1, Fault::Altered(vec![(place, json!(NO_ID))]));
    }
    let cut = client
        .create_snapshot(requests::cut("s-1", &id))
        .await
        .unwrap();
    let cut = cut.into_inner().snapshot.unwrap();
    cloud.disturb(
        "GET /v2/volumes",
        1,
        Fault::Altered(vec![("/0/id", json!(NO_ID))]),
    );
    let listed = client.list_volumes(csi::ListVolumesRequest::default());
    assert_eq!(listed.await.unwrap().into_inner().entries.len(), 1);
    cloud.disturb(
        "GET /v2/snapshots",
        1,
        Fault::Altered(vec![("/0/snapshot_id", json!(NO_ID))]),
    );
    let listed = client.list_snapshots(csi::ListSnapshotsRequest::default());
    assert!(listed.await.unwrap().into_inner().entries.is_empty());
    let discard = requests::discard(&cut.snapshot_id);
    client.delete_snapshot(discard).await.unwrap();
}
