//! Responses about another object than that of the call, and with invalid IDs: no caller receives
//! them, nothing is changed, and the repeated call finds the object that the cloud has created.

use crate::site::{
    CREATE, CUT, GIB, NODE, RESIZE, Site, attached, block, create, created, cut, deleted, refused,
    sized,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use serde_json::{Value, json};
use tonic::Code;

const GET: &str = "GET /v2/volumes/ID";
const LIST: &str = "GET /v2/volumes";
const NO_ID: &str = "../../account";

fn altered(values: &[(&'static str, Value)]) -> Fault {
    Fault::Altered(values.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_is_answered_with_another_volume_fails_and_its_retry_finds_its_own() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let other = created(&mut client, "pvc-1").await.unwrap();
    for (n, (values, words)) in [
        (
            vec![
                ("/volume/id", json!(other)),
                ("/volume/name", json!("pvc-1")),
            ],
            "whose name is \"pvc-1\"",
        ),
        // Only the ID differs; name and size are those of the order.
        (
            vec![("/volume/id", json!(other))],
            "whose name is \"pvc-1\"",
        ),
        (vec![("/volume/id", json!(NO_ID))], NO_ID),
        (vec![("/volume/id", json!(""))], "the ID \"\""),
        (
            vec![("/volume/size_gigabytes", json!(1))],
            "of 1 GiB, and not of 2 GiB",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("own-{n}");
        site.cloud.disturb(CREATE, 1, Fault::Altered(values));
        let answer = client.create_volume(sized(&name, 2 * GIB)).await;
        refused(answer, Code::Aborted, words);
        let made = client.create_volume(sized(&name, 2 * GIB)).await.unwrap();
        let made = made.into_inner().volume.unwrap();
        assert_ne!(made.volume_id, other);
        assert_eq!(made.capacity_bytes, 2 * GIB);
        assert_eq!(site.twin().volumes().len(), n + 2, "one for each name");
    }
    assert_eq!(create(&mut client, "pvc-1").await.unwrap().volume_id, other);
    assert_eq!(site.cloud.count("DELETE /v2/volumes/ID"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_answered_with_another_volume_expands_none() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let other = created(&mut client, "pvc-1").await.unwrap();
    let snapshot = cut(&mut client, "s-1", &other).await.unwrap();
    let source = requests::of_snapshot(&snapshot.snapshot_id);
    let asked = csi::CreateVolumeRequest {
        capacity_range: requests::range(3 * GIB, 0),
        ..requests::create("pvc-2", block(), Some(source))
    };
    let (id, name) = (
        ("/volume/id", json!(other)),
        ("/volume/name", json!("pvc-1")),
    );
    for values in [vec![id.clone(), name], vec![id]] {
        let asked = csi::CreateVolumeRequest {
            name: format!("pvc-{}", 1 + values.len()),
            ..asked.clone()
        };
        let before = site.cloud.count(RESIZE);
        site.cloud.disturb(CREATE, 1, altered(&values));
        let answer = client.create_volume(asked.clone()).await;
        refused(answer, Code::Aborted, "whose name is \"pvc-1\"");
        assert_eq!(site.cloud.count(RESIZE), before);
        let made = client.create_volume(asked).await.unwrap();
        assert_eq!(made.into_inner().volume.unwrap().capacity_bytes, 3 * GIB);
    }
    let sizes: Vec<_> = site.twin().volumes().into_iter().map(|it| it.1).collect();
    assert_eq!(sizes, [1, 3, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_answered_as_another_one_fails_and_its_retry_finds_its_own() {
    let site = Site::new();
    site.twin().settings().snapshot_rest = std::time::Duration::ZERO;
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let first = cut(&mut client, "s-0", &id).await.unwrap().snapshot_id;
    for (name, values, words) in [
        (
            "s-3",
            [("/snapshot/id", json!(first))],
            "whose name is \"s-0\"",
        ),
        ("s-1", [("/snapshot/id", json!(NO_ID))], NO_ID),
        (
            "s-2",
            [("/snapshot/name", json!("s-1"))],
            "whose name is \"s-1\"",
        ),
    ] {
        site.cloud.disturb(CUT, 1, altered(&values));
        refused(cut(&mut client, name, &id).await, Code::Aborted, words);
        cut(&mut client, name, &id).await.unwrap();
    }
    assert_eq!(site.twin().snapshots(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_is_answered_with_another_object_is_no_word_on_this_one() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let [id, other] = [
        created(&mut client, "pvc-1").await,
        created(&mut client, "pvc-2").await,
    ];
    let (id, other) = (id.unwrap(), other.unwrap());
    site.cloud
        .disturb(GET, 1, altered(&[("/volume/id", json!(other))]));
    let answer = attached(&mut client, &id, NODE).await;
    refused(
        answer,
        Code::Aborted,
        &format!("has answered with volume \"{other}\""),
    );
    attached(&mut client, &id, NODE).await.unwrap();
    assert_eq!(site.twin().attached()[&other], None);
    deleted(&mut client, &other).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_a_list_whose_id_is_none_hides_no_other() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let first = created(&mut client, "pvc-1").await.unwrap();
    created(&mut client, "pvc-2").await.unwrap();
    cut(&mut client, "s-1", &first).await.unwrap();
    site.cloud
        .disturb(LIST, 1, altered(&[("/volumes/1/id", json!(NO_ID))]));
    let listed = client.list_volumes(csi::ListVolumesRequest::default());
    let listed = listed.await.unwrap().into_inner().entries;
    let ids: Vec<_> = listed
        .into_iter()
        .map(|it| it.volume.unwrap().volume_id)
        .collect();
    assert_eq!(ids, [first]);
    let strange = altered(&[("/snapshots/0/id", json!(NO_ID))]);
    site.cloud.disturb("GET /v2/snapshots", 1, strange);
    let listed = client.list_snapshots(csi::ListSnapshotsRequest::default());
    assert!(listed.await.unwrap().into_inner().entries.is_empty());
    assert!(
        site.log()
            .contains("an object with an invalid ID is not listed"),
        "{}",
        site.log()
    );
}
