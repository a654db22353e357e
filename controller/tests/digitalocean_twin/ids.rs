//! IDs that cannot belong to the cloud.

use crate::site::{ACCOUNT, NODE, Site, attached, cut, deleted, detached, refused};
use belay_bed::requests;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_no_uuid_is_not_found_without_a_call() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let uuid = "00000000-0000-4000-8000-000000000000";
    let longer = format!("{uuid}/..");
    for id in ["a/b", "../droplets/1", "..", "1?type=detach", &longer] {
        detached(&mut client, id, NODE).await.unwrap();
        deleted(&mut client, id).await.unwrap();
        refused(attached(&mut client, id, NODE).await, Code::NotFound, id);
        refused(cut(&mut client, "s-1", id).await, Code::NotFound, id);
        let grow = requests::grow(id, 2 << 30);
        let answer = client.controller_expand_volume(grow).await;
        refused(answer, Code::NotFound, id);
        client.delete_snapshot(requests::discard(id)).await.unwrap();
    }
    let kinds = || {
        let mut kinds = site.cloud.kinds();
        // This call is made at the start.
        kinds.remove(ACCOUNT);
        kinds
    };
    assert!(kinds().is_empty(), "{:?}", kinds());
    detached(&mut client, uuid, NODE).await.unwrap();
    assert!(!kinds().is_empty());
    // The code is final: a snapshot of a missing volume would be repeated, and could not be
    // deleted.
    let missing = cut(&mut client, "s-1", uuid).await;
    refused(missing, Code::NotFound, uuid);
}
