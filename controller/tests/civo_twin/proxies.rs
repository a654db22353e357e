//! A proxy returns 404 instead of Civo, or Civo misses another object: no existing object is
//! reported as deleted or detached.

use crate::site::{Client, Cloud, Site, attached, cloud, created, deleted, detached, instance};
use belay_bed::requests;
use belay_twins::Fault;
use belay_twins::civo::Status as At;
use belay_twins::http::Response;
use serde_json::json;
use std::time::Duration;
use tonic::{Code, Status};

/// Returns responses that do not mean that a volume or a snapshot is missing.
fn others() -> Vec<Fault> {
    let words = |code: &str| {
        let body = json!({ "code": code, "reason": "not found" });
        Fault::Refused(Response::json(404, &body))
    };
    let codes = ["database_network_not_found", "database_account_not_found"];
    let proxies = Fault::of_proxies(404).into_iter();
    proxies.chain(codes.map(words)).collect()
}

async fn discarded(client: &mut Client, id: &str) -> Result<(), Status> {
    let request = requests::discard(id);
    client.delete_snapshot(request).await.map(drop)
}

fn volumes(cloud: &Cloud) -> usize {
    cloud.service().twin().state().volumes.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_civo_itself_says_that_a_volume_or_snapshot_is_missing() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let cut = client.create_snapshot(requests::cut("snap-1", &id)).await;
    let snapshot = cut.unwrap().into_inner().snapshot.unwrap().snapshot_id;
    for fault in others() {
        for kind in ["GET /v2/volumes/ID", "DELETE /v2/volumes/ID"] {
            cloud.disturb(kind, 1, fault.clone());
            assert!(deleted(client, &id).await.is_err(), "{kind} {fault:?}");
            cloud.calm();
        }
        cloud.disturb("DELETE /v2/snapshots/ID", 1, fault.clone());
        assert!(discarded(client, &snapshot).await.is_err(), "{fault:?}");
        cloud.calm();
    }
    assert_eq!(volumes(&cloud), 1);
    for _ in 0..2 {
        discarded(client, &snapshot).await.unwrap();
        deleted(client, &id).await.unwrap();
    }
    assert_eq!(volumes(&cloud), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_reported_as_detached_unless_civo_says_so() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = &mut site.client().await;
    let (id, node) = (created(client, "pvc-1").await.unwrap(), instance(1));
    attached(client, &id, &node).await.unwrap();
    for fault in others() {
        for kind in ["GET /v2/volumes/ID", "PUT /v2/volumes/ID/detach"] {
            cloud.disturb(kind, 1, fault.clone());
            assert!(
                detached(client, &id, &node).await.is_err(),
                "{kind} {fault:?}"
            );
            cloud.calm();
            let at = cloud.service().twin().state().volumes[&id].clone();
            assert_eq!((at.status, at.instance), (At::Attached, Some(node.clone())));
        }
    }
    detached(client, &id, &node).await.unwrap();
    deleted(client, &id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_a_proxy_stops_is_final_and_one_that_it_may_pass_on_is_not() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = &mut site.client().await;
    for (status, code) in [
        (403, Code::Unavailable),
        (407, Code::Internal),
        (413, Code::Internal),
    ] {
        for fault in Fault::of_proxies(status) {
            cloud.disturb("POST /v2/volumes", 1, fault);
            let refused = created(client, "pvc-1").await.unwrap_err();
            assert_eq!(refused.code(), code, "{status}: {refused}");
            let part = format!("{status}, which is not an answer of Civo");
            assert!(refused.message().contains(&part), "{refused}");
            cloud.calm();
        }
    }
    assert_eq!(volumes(&cloud), 0);
    created(client, "pvc-1").await.unwrap();
}
