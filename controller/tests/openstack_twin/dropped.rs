//! Changes that Nova or Cinder accepts and drops: the caller gets an error, and repeats the call.

use crate::site::{Site, attached, created, deleted, detached, nth_server};
use crate::wire::{CHANGE, Cloud};
use belay_bed::requests;
use serde_json::json;
use tonic::{Code, Status};

const GIB: i64 = 1 << 30;

/// Checks the code and parts of the message for a change that was not made.
#[track_caller]
fn assert_dropped(answer: Result<(), Status>, code: Code, parts: &[&str]) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    for part in parts {
        assert!(status.message().contains(part), "{part}: {status}");
    }
    assert!(!status.message().contains("in progress"), "{status}");
}

/// Returns the number of requests of this kind.
fn count(cloud: &Cloud, kind: &str) -> usize {
    let calls = cloud.twin().calls.clone();
    calls.get(kind).copied().unwrap_or_default()
}

/// Counts requests from now on, and drops this number of changes.
fn dropping(cloud: &Cloud, drops: usize) {
    let mut twin = cloud.twin();
    twin.calls.clear();
    twin.drops = drops;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_or_expansion_that_is_dropped_twice_is_named_with_its_cause_and_then_made() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let node = nth_server(1);
    let count = |kind: &str| count(&cloud, kind);
    let drops = |drops: usize| dropping(&cloud, drops);

    drops(2);
    let text = "update attachment:Driver is not initialized at present.";
    cloud.twin().messages = vec![json!({
        "user_message": text, "event_id": "VOLUME_VOLUME_004_002",
        "created_at": "2026-01-01T00:00:00.000000",
    })];
    let dropped = format!("Nova accepted the attachment to server {node} and dropped it");
    assert_dropped(
        attached(client, &id, &node).await,
        Code::Aborted,
        &[
            &id,
            &dropped,
            "the volume is available, attached to no server",
            text,
            "nova-compute",
        ],
    );
    assert_eq!((count("POST attachment"), count("GET message")), (2, 1));
    assert_eq!(cloud.twin().all()[&id], None);
    drops(1);
    attached(client, &id, &node).await.unwrap();
    assert_eq!((count("POST attachment"), count("GET message")), (2, 0));

    drops(2);
    let grown = client
        .controller_expand_volume(requests::grow(&id, 2 * GIB))
        .await;
    assert_dropped(
        grown.map(drop),
        Code::Aborted,
        &[&id, "expansion to 2 GiB", "has 1 GiB"],
    );
    cloud.twin().messages = vec![json!({
        "user_message": "extend volume:Could not find any available weighted backend.",
        "event_id": "VOLUME_VOLUME_007_003", "created_at": "2026-01-01T00:00:01.000000",
    })];
    drops(2);
    let grown = client
        .controller_expand_volume(requests::grow(&id, 2 * GIB))
        .await;
    assert_dropped(grown.map(drop), Code::Internal, &[&id, "weighted backend"]);
    assert_eq!(count("POST action"), 2);
    let grown = client.controller_expand_volume(requests::grow(&id, 2 * GIB));
    assert_eq!(grown.await.unwrap().into_inner().capacity_bytes, 2 * GIB);
    assert_eq!(cloud.twin().broken, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detachment_that_is_dropped_twice_is_named_and_a_volume_in_use_names_its_server() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let node = nth_server(1);
    attached(client, &id, &node).await.unwrap();
    dropping(&cloud, 2);
    let left = detached(client, &id, &node).await;
    assert_dropped(
        left,
        Code::Aborted,
        &[&id, "detachment from server", &node, "guest"],
    );
    assert_eq!(
        (
            count(&cloud, "DELETE attachment"),
            count(&cloud, "GET message")
        ),
        (2, 0)
    );
    assert_eq!(cloud.twin().all()[&id].as_ref(), Some(&node));
    let kept = deleted(client, &id).await;
    let attached_to = format!("attached to node {node}; detach it there first");
    assert_dropped(kept, Code::FailedPrecondition, &[&attached_to]);
    detached(client, &id, &node).await.unwrap();
    deleted(client, &id).await.unwrap();
    assert_eq!(cloud.twin().broken, [] as [&str; 0]);
}
