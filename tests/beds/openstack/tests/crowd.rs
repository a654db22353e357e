//! Many attaches at one time to a cloud that limits the rate of requests: each succeeds in the end,
//! and once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_bed::requests;
use belay_openstack::Cloud;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::economy::Field;
use crate::site::{Client, block, create, unique};

/// Volumes, servers, and requests that the cloud serves in a second.
fn crowd() -> (usize, usize, f64) {
    match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => (500, 20, 20.0),
        None => (20, 2, 5.0),
    }
}

/// Calls at one time that create, detach or delete, as of a busy provisioner.
const CALLERS: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Calls for each number, so many at one time; the results in the order of the numbers.
async fn at_once<T, F>(count: usize, width: usize, call: impl Fn(usize) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let permits = Arc::new(Semaphore::new(width));
    let calls = (0..count).map(|n| {
        let (permits, call) = (Arc::clone(&permits), call(n));
        tokio::spawn(async move {
            let _permit = permits.acquire().await;
            call.await
        })
    });
    let mut results = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        results.push(call.await.unwrap());
    }
    results
}

/// Repeats a call that takes longer than its caller waits, as the sidecars do; the answer, and how
/// many calls it took.
async fn repeated<T, F>(call: impl Fn(Client) -> F, client: &Client) -> (T, usize)
where
    F: Future<Output = Result<T, Status>>,
{
    let mut calls = 1;
    loop {
        match call(client.clone()).await {
            Ok(answer) => return (answer, calls),
            Err(status) => {
                let may_run = matches!(status.code(), Code::DeadlineExceeded | Code::Aborted);
                assert!(may_run, "{status}");
                calls += 1;
                sleep(PAUSE).await;
            }
        }
    }
}

/// The IDs of that many new volumes.
async fn all_created(client: &Client, volumes: usize) -> Vec<String> {
    let one = |_| {
        let (client, name) = (client.clone(), unique("crowd"));
        async move {
            let create = |mut client: Client| {
                let request = create(&name, 1);
                async move { client.create_volume(request).await }
            };
            let (answer, _) = repeated(create, &client).await;
            answer.into_inner().volume.unwrap().volume_id
        }
    };
    at_once(volumes, CALLERS, one).await
}

/// Attaches all at one time, each to its server; for each the number of calls, and when it was
/// attached.
async fn all_attached(client: &Client, places: &[(String, String)]) -> Vec<(usize, Duration)> {
    let begun = Instant::now();
    let one = |n: usize| {
        let (client, (id, node)) = (client.clone(), &places[n]);
        let request = requests::attach(id, node, block());
        async move {
            let attach = |mut client: Client| {
                let request = request.clone();
                async move { client.controller_publish_volume(request).await }
            };
            (repeated(attach, &client).await.1, begun.elapsed())
        }
    };
    at_once(places.len(), places.len(), one).await
}

/// Detaches and deletes all.
async fn all_deleted(client: &Client, places: &[(String, String)]) {
    let one = |n: usize| {
        let (client, (id, node)) = (client.clone(), &places[n]);
        let requests = (requests::detach(id, node), requests::delete(id));
        async move {
            let detach = |mut client: Client| {
                let request = requests.0.clone();
                async move { client.controller_unpublish_volume(request).await }
            };
            repeated(detach, &client).await;
            let delete = |mut client: Client| {
                let request = requests.1.clone();
                async move { client.delete_volume(request).await }
            };
            repeated(delete, &client).await;
        }
    };
    at_once(places.len(), CALLERS, one).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn attaches_over_the_limit_of_the_rate_all_succeed_once() {
    let (volumes, servers, rate) = crowd();
    let field = Field::new(servers);
    let client = field.site.client().await;
    let fronts = field.bed.fronts();
    fronts.obey(&json!([{"action": "rate", "per_second": rate, "burst": 5, "retry_after": 1}]));
    fronts.forget();
    let counted = || (fronts.count("", "", ""), fronts.applied()[0]);
    let ids = all_created(&client, volumes).await;
    let nodes = field.servers.iter().map(|server| server.id.clone()).cycle();
    let places: Vec<_> = ids.into_iter().zip(nodes).collect();
    let created = counted();

    let attached = all_attached(&client, &places).await;
    let (requests, refused) = counted();
    let most = attached.iter().map(|(calls, _)| calls).max().unwrap();
    let mut ends: Vec<_> = attached.iter().map(|(_, end)| end.as_secs()).collect();
    ends.sort_unstable();
    eprintln!(
        "{volumes} creates, {rate} requests a second: {} requests, {} of them refused\n\
         {volumes} attaches to {servers} servers: {} requests, {} of them refused; at most {most} \
         calls for a volume; half were attached after {} s, all after {} s\n{}",
        created.0,
        created.1,
        requests - created.0,
        refused - created.1,
        ends[volumes / 2],
        ends[volumes - 1],
        field.calls()
    );
    assert!(refused > 0, "the limit was not reached");
    assert!(refused * 4 < requests, "{refused} of {requests} refused");
    let shown = Cloud::by_password(&field.bed).volumes(None);
    let shown: HashMap<_, _> = shown.into_iter().map(|it| (it.id, it.servers)).collect();
    for (id, node) in &places {
        assert_eq!(shown[id], [node.as_str()], "{id}");
    }
    fronts.obey(&json!([]));
    all_deleted(&client, &places).await;
}
