//! The secret of a volume's format mark, from the key to the publish context.

use crate::site::{Client, KEY, Site, block, created, deleted, detached};
use crate::wire::Cloud;
use belay_bed::requests;
use std::time::Duration;

const NODE: &str = "5e000000-0000-4000-8000-000000000001";

/// Attaches the volume; returns the mark in the publish context.
async fn mark(client: &mut Client, id: &str) -> String {
    let request = requests::attach(id, NODE, block());
    let answer = client.controller_publish_volume(request).await.unwrap();
    answer.into_inner().publish_context["mark"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_volume_has_a_secret_that_stays_and_is_not_logged() {
    let cloud = Cloud::start(Duration::ZERO, None);
    let mut site = Site::new(&cloud.url(), "");
    site.log_level = "debug";
    let first = site.start();
    let client = &mut site.client().await;
    let ids = [
        created(client, "a").await.unwrap(),
        created(client, "b").await.unwrap(),
    ];
    let marks = [mark(client, &ids[0]).await, mark(client, &ids[1]).await];
    assert!(marks[0].len() == 64 && marks[0] != marks[1], "{marks:?}");
    drop(first);
    let _second = site.start();
    let client = &mut site.client().await;
    for (id, before) in ids.iter().zip(&marks) {
        assert_eq!(mark(client, id).await, *before);
        detached(client, id, NODE).await.unwrap();
        assert_eq!(mark(client, id).await, *before);
        detached(client, id, NODE).await.unwrap();
        deleted(client, id).await.unwrap();
    }
    let log = site.log();
    assert!(log.contains("DEBUG"), "{log}");
    for secret in [KEY, &marks[0], &marks[1]] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_replaced_applies_to_the_next_attachment_without_a_restart() {
    let cloud = Cloud::start(Duration::ZERO, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "a").await.unwrap();
    let old = mark(client, &id).await;
    let keys = site.keys();
    let new = "n".repeat(KEY.len());
    std::fs::write(&keys, format!("{new}\n{KEY}\n")).unwrap();
    let both = mark(client, &id).await;
    assert!(both.ends_with(&old) && both.len() > old.len(), "{both}");
    std::fs::write(&keys, "too short").unwrap();
    assert_eq!(mark(client, &id).await, both, "the last valid keys apply");
    let log = site.log();
    assert!(log.contains("its 2 keys apply"), "{log}");
    assert!(log.contains("key 1 has less than 32 characters"), "{log}");
    assert!(!log.contains(KEY) && !log.contains(&new), "{log}");
    detached(client, &id, NODE).await.unwrap();
    deleted(client, &id).await.unwrap();
}
