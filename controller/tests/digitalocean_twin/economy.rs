//! The number of calls that the controller makes, and its observance of the cloud's limits.

use crate::site::{ATTACH, DELAY, DROPLETS, Site, attached, created, deleted, detached};
use std::time::Duration;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn ten_attaches_to_one_droplet_make_no_storm_of_pending_events() {
    let site = Site::new();
    let _running = site.start();
    let client = site.client().await;
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(
            created(&mut client.clone(), &format!("pvc-{n}"))
                .await
                .unwrap(),
        );
    }
    site.cloud.forget();
    let mut calls = JoinSet::new();
    for id in ids {
        let mut client = client.clone();
        calls.spawn(async move { attached(&mut client, &id, "101").await.unwrap() });
    }
    calls.join_all().await;
    let log = site.cloud.log();
    let refused: Vec<_> = log.iter().filter(|call| call.status == 422).collect();
    assert!(refused.is_empty(), "{refused:?}");
    // The calls are a read, the attach, a poll, the action and the tag; the first tag is created
    // once.
    let calls = site.cloud.count("");
    assert!(calls <= 10 * 5 + 2, "{calls}: {:?}", site.cloud.kinds());
    assert_eq!(site.cloud.count(ATTACH), 10);
}

/// Runs the lifecycle of one volume, from its creation to its deletion.
async fn life(mut client: crate::site::Client, n: usize) {
    let node = DROPLETS[n % DROPLETS.len()].to_string();
    let id = created(&mut client, &format!("pvc-{n}")).await.unwrap();
    attached(&mut client, &id, &node).await.unwrap();
    detached(&mut client, &id, &node).await.unwrap();
    deleted(&mut client, &id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_lifecycles_at_once_take_eleven_calls_each() {
    let site = Site::new();
    let hour = Duration::from_secs(3600);
    site.twin().limit((5000, hour), (5000, hour));
    let _running = site.start();
    let client = site.client().await;
    let mut lives = JoinSet::new();
    for n in 0..50 {
        lives.spawn(life(client.clone(), n));
    }
    lives.join_all().await;
    let calls = site.cloud.count("");
    assert!(calls <= 550, "{calls}: {:?}", site.cloud.kinds());
    assert!(site.twin().attached().is_empty());
}

/// The nightly run has the limits of DigitalOcean and fifty volumes, which takes minutes.
#[tokio::test(flavor = "multi_thread")]
async fn lifecycles_beyond_the_rate_limit_fail_no_call() {
    let site = Site::new();
    let second = Duration::from_secs(1);
    let (calls, window, volumes) = match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => (250, 60 * second, 50),
        None => (25, 3 * second, 10),
    };
    site.twin().limit((calls, window), (5000, 3600 * second));
    site.twin().settings().delay = DELAY / 10;
    let _running = site.start();
    let client = site.client().await;
    let mut lives = JoinSet::new();
    for n in 0..volumes {
        lives.spawn(life(client.clone(), n));
    }
    lives.join_all().await;
    let log = site.cloud.log();
    assert!(
        log.iter().any(|call| call.status == 429),
        "the limit was reached"
    );
}
