//! A volume that is no longer attached to a server, but may have been written to.

use crate::site::{Client, Site, block, created, detached, nth_server};
use crate::wire::Cloud;
use belay_bed::requests;
use std::time::Duration;

/// Attaches the volume; returns the content in the publish context.
async fn content(client: &mut Client, id: &str, node: &str) -> String {
    let request = requests::attach(id, node, block());
    let answer = client.controller_publish_volume(request).await.unwrap();
    answer.into_inner().publish_context["content"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_server_was_deleted_is_used_after_a_detach_that_names_no_node() {
    let cloud = Cloud::start(Duration::ZERO, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    assert_eq!(content(client, &id, &nth_server(1)).await, "new");
    cloud.twin().delete_server(&id);
    // The second call finds the mark.
    for marks in [1, 0] {
        cloud.twin().calls.clear();
        detached(client, &id, "").await.unwrap();
        let calls = cloud.twin().calls.clone();
        let count = |kind: &str| calls.get(kind).copied().unwrap_or_default();
        assert_eq!(count("POST metadata"), marks, "{calls:?}");
        assert_eq!(count("GET volume"), 1, "{calls:?}");
    }
    assert_eq!(content(client, &id, &nth_server(2)).await, "used");
}
