//! Calls to the cloud: a small number for each volume, even with many volumes at once; and a cloud
//! that limits the rate of calls.

use crate::site::{CHANGE, Client, Site, attached, cloud, created, deleted, detached, instance};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const VOLUMES: usize = 50;
/// The number of calls for a volume from its creation to its deletion, apart from polls: four
/// changes, and the reads before and after them.
const CALLS: usize = 9;
/// The number of additional calls, once per cluster.
const MORE: usize = 2;
/// The number of polls per second: a list of all volumes and a read of one every 250 ms, regardless
/// of the number of waiting volumes and the time that the cloud takes.
const POLLS_PER_SECOND: u64 = 8;

async fn life(mut client: Client, n: usize) {
    let id = created(&mut client, &format!("pvc-{n}")).await.unwrap();
    let node = instance(1 + n % 3);
    attached(&mut client, &id, &node).await.unwrap();
    detached(&mut client, &id, &node).await.unwrap();
    deleted(&mut client, &id).await.unwrap();
}

async fn lives(client: &Client, volumes: usize) {
    let mut all = JoinSet::new();
    for n in 0..volumes {
        all.spawn(life(client.clone(), n));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_volumes_at_once_cost_their_own_calls_and_wait_together() {
    let cloud = cloud(CHANGE);
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = site.client().await;
    site.ready().await;
    cloud.forget();
    let begun = Instant::now();
    lives(&client, VOLUMES).await;
    let seconds = begun.elapsed().as_secs() + 1;
    let (calls, kinds) = (cloud.count(""), cloud.kinds());
    eprintln!("{calls} calls for {VOLUMES} volumes in {seconds} s: {kinds:?}");
    let polls = usize::try_from(POLLS_PER_SECOND * seconds).unwrap();
    let most = CALLS * VOLUMES + MORE + polls;
    assert!(calls <= most, "{calls}, not {most}: {kinds:?}");
    assert_eq!(cloud.service().twin().state().volumes.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_over_the_limit_of_the_rate_all_succeed() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = site.client().await;
    cloud.service().twin().settings.calls_per_second = Some(40);
    site.ready().await;
    cloud.forget();
    lives(&client, VOLUMES / 2).await;
    let refused = cloud.log().iter().filter(|call| call.status == 429).count();
    assert!(refused > 0, "the limit was not reached");
    assert!(
        refused * 2 < cloud.count(""),
        "{refused} of {}",
        cloud.count("")
    );
}
