//! A proxy responds instead of the API: no existing object is reported as deleted or detached.

use crate::site::{DETACH, NODE, Site, TAG, attached, created, cut, deleted, detached, refused};
use belay_bed::requests;
use belay_twins::Fault;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_404_of_a_proxy_deletes_no_volume_and_no_snapshot() {
    let site = Site::new();
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let snapshot = cut(client, "snap-1", &id).await.unwrap().snapshot_id;
    for fault in Fault::of_proxies(404) {
        site.cloud
            .disturb("DELETE /v2/volumes/ID", 1, fault.clone());
        let answer = deleted(client, &id).await;
        refused(answer, Code::Unavailable, "a proxy on the way has answered");
        site.cloud
            .disturb("DELETE /v2/snapshots/ID", 1, fault.clone());
        let answer = client.delete_snapshot(requests::discard(&snapshot)).await;
        refused(answer, Code::Unavailable, "a proxy on the way has answered");
        site.cloud.disturb("GET /v2/volumes/ID", 1, fault);
        let answer = attached(client, &id, NODE).await;
        refused(answer, Code::Unavailable, "a proxy on the way has answered");
    }
    assert_eq!(site.cloud.count("DELETE /v2/volumes/ID"), 2);
    for _ in 0..2 {
        client
            .delete_snapshot(requests::discard(&snapshot))
            .await
            .unwrap();
        deleted(client, &id).await.unwrap();
    }
}

/// The response may be the page of a login, or of maintenance.
#[tokio::test(flavor = "multi_thread")]
async fn a_200_of_a_proxy_deletes_no_volume_and_no_snapshot_and_tags_nothing() {
    const ASTRAY: &str = "200, which is not an answer of DigitalOcean";
    let site = Site::new();
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let snapshot = cut(client, "snap-1", &id).await.unwrap().snapshot_id;
    for fault in Fault::of_proxies(200) {
        site.cloud
            .disturb("DELETE /v2/volumes/ID", 1, fault.clone());
        refused(deleted(client, &id).await, Code::Unavailable, ASTRAY);
        site.cloud
            .disturb("DELETE /v2/snapshots/ID", 1, fault.clone());
        let answer = client.delete_snapshot(requests::discard(&snapshot)).await;
        refused(answer, Code::Unavailable, ASTRAY);
        site.cloud.disturb(TAG, 1, fault);
        let answer = attached(client, &id, NODE).await;
        refused(answer, Code::Unavailable, ASTRAY);
    }
    assert_eq!(
        (site.twin().volumes().len(), site.twin().snapshots()),
        (1, 1)
    );
    attached(client, &id, NODE).await.unwrap();
    detached(client, &id, NODE).await.unwrap();
    client
        .delete_snapshot(requests::discard(&snapshot))
        .await
        .unwrap();
    deleted(client, &id).await.unwrap();
    assert!(site.twin().volumes().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_reported_as_detached_by_404s_of_a_proxy() {
    let site = Site::new();
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    for fault in Fault::of_proxies(404) {
        attached(client, &id, NODE).await.unwrap();
        site.cloud.disturb(DETACH, 1, fault.clone());
        site.cloud.disturb("GET /v2/volumes/ID", 1, fault);
        detached(client, &id, NODE).await.unwrap();
        assert_eq!(site.twin().attached()[&id], None);
    }
    deleted(client, &id).await.unwrap();
}
