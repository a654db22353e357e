//! A cloud that limits the rate of requests: every call succeeds in the end, and in its order.

use crate::site::{self, Client, Site, attached, created, deleted, detached};
use crate::wire::{CHANGE, Cloud};
use belay_bed::patience::until;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Code;

/// The number of requests that the cloud serves per second.
const RATE: usize = 20;
const SERVERS: usize = 20;
/// The number of concurrent calls that create and delete volumes, like those of a busy provisioner.
const CALLERS: usize = 100;

/// Returns the number of concurrent attaches; 500 in the nightly run.
fn volumes() -> usize {
    match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => 500,
        None => 200,
    }
}

fn server(n: usize) -> String {
    site::nth_server(n % SERVERS)
}

/// Creates all volumes; returns their IDs in the order of their names.
async fn all_created(client: &Client) -> Vec<String> {
    let callers = Arc::new(Semaphore::new(CALLERS));
    let mut creating = JoinSet::new();
    for n in 0..volumes() {
        let (mut client, callers) = (client.clone(), Arc::clone(&callers));
        creating.spawn(async move {
            let _permit = callers.acquire().await;
            let id = created(&mut client, &format!("pvc-{n}")).await;
            (n, id.unwrap())
        });
    }
    let mut all = creating.join_all().await;
    all.sort_unstable();
    all.into_iter().map(|(_, id)| id).collect()
}

/// Attaches a volume as the attacher does: repeats a call that takes longer than its caller waits.
/// Returns the number of calls.
async fn attach(mut client: Client, id: String, node: String) -> usize {
    let mut calls = 1;
    while let Err(status) = attached(&mut client, &id, &node).await {
        let is_late = status.code() == Code::DeadlineExceeded;
        assert!(is_late || status.code() == Code::Aborted, "{id}: {status}");
        calls += 1;
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: make matrices"]
async fn attaches_over_the_limit_of_the_rate_all_succeed_in_the_order_of_each_server() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = site.client().await;
    let ids = all_created(&client).await;
    let before = cloud.twin().count();

    // All calls have begun, in this order, before the first one is served.
    cloud.hold(true);
    let mut clients = Vec::new();
    for _ in 0..SERVERS {
        clients.push(site.client().await);
    }
    let mut attaching = JoinSet::new();
    for (n, id) in ids.iter().enumerate() {
        attaching.spawn(attach(clients[n % SERVERS].clone(), id.clone(), server(n)));
        if n % SERVERS == SERVERS - 1 {
            until("a call for each server has begun", || site.jobs() == n + 1);
        }
    }
    cloud.limit(RATE);
    cloud.hold(false);
    let calls = attaching.join_all().await;

    let (served, refused) = (cloud.twin().count() - before, cloud.refused());
    let most = calls.into_iter().max().unwrap();
    eprintln!(
        "{} attaches: {served} requests, {refused} more refused for their rate; at most {most} \
         calls for a volume",
        ids.len()
    );
    assert!(refused > 0, "the limit was not reached");
    assert!(refused * 4 < served, "{refused} refused, {served} served");
    assert!(served <= ids.len() * 5, "{served} requests");
    let order = cloud.twin().attached.clone();
    for (server, attached) in &order {
        let place = |id: &String| ids.iter().position(|other| other == id);
        let order: Vec<_> = attached.iter().map(place).collect();
        assert!(order.is_sorted(), "{server}: {order:?}");
    }
    assert_eq!(order.values().flatten().count(), ids.len());

    cloud.limit(0);
    let mut ending = JoinSet::new();
    for (n, id) in ids.into_iter().enumerate() {
        let mut client = clients[n % SERVERS].clone();
        ending.spawn(async move {
            detached(&mut client, &id, &server(n)).await.unwrap();
            deleted(&mut client, &id).await.unwrap();
        });
    }
    ending.join_all().await;
    assert_eq!(cloud.twin().broken, [] as [&str; 0]);
}
