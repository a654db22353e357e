//! The controller's memory, which must not grow with the number of volumes in the cloud.

use crate::site::{Client, Site, attached, created, nth_server};
use crate::wire::{CHANGE, Cloud};
use belay_bed::patience::until;
use belay_bed::{programs, scrape};
use belay_proto::csi::v1 as csi;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The number of concurrent calls, like those of a busy provisioner and a busy attacher.
const CALLERS: usize = 100;

/// Limits in KiB: of private memory, with which the program of a release uses less than 20 MiB in
/// total; of the growth by a list of ten times as many volumes; and of private memory shortly after
/// the calls. The page cache determines how much of the program itself is mapped.
const ANONYMOUS_MAX: u64 = 14 << 10;
const LIST_MAX: u64 = 4 << 10;
const RESTED_MAX: u64 = 11 << 10;

/// Lists all volumes, in the longest pages that the driver makes; returns their number.
async fn listed(client: &mut Client) -> usize {
    let (mut count, mut starting_token) = (0, String::new());
    loop {
        let request = csi::ListVolumesRequest {
            max_entries: 0,
            starting_token,
        };
        let page = client.list_volumes(request).await.unwrap().into_inner();
        count += page.entries.len();
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return count;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures the program of `make build`: make matrices"]
async fn memory_stays_small_with_a_thousand_volumes_and_flat_over_a_list_of_ten_thousand() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    let running = site.start_program(&programs::binary("belay-controller").unwrap());
    let kib = |name: &str| scrape::status(running.id(), name).unwrap();
    let idle = (kib("VmRSS"), kib("RssAnon"));
    let mut client = site.client().await;
    let (callers, mut working) = (Arc::new(Semaphore::new(CALLERS)), JoinSet::new());
    for n in 0..1000 {
        let (mut client, callers) = (client.clone(), Arc::clone(&callers));
        working.spawn(async move {
            let _permit = callers.acquire().await;
            let id = created(&mut client, &format!("pvc-{n}")).await.unwrap();
            attached(&mut client, &id, &nth_server(n % 100))
                .await
                .unwrap();
        });
    }
    working.join_all().await;
    assert_eq!(listed(&mut client).await, 1000);
    let thousand = (kib("VmRSS"), kib("RssAnon"), kib("VmHWM"));
    cloud.twin().fill(9000);
    for _ in 0..3 {
        assert_eq!(listed(&mut client).await, 10_000);
    }
    let all = (kib("VmRSS"), kib("RssAnon"), kib("VmHWM"));
    eprintln!(
        "KiB resident, anonymous, peak: idle {idle:?}, 1,000 volumes {thousand:?}, 10,000 {all:?}"
    );
    assert!(thousand.1 <= ANONYMOUS_MAX, "{thousand:?}");
    assert!(all.2 <= thousand.2 + LIST_MAX, "{thousand:?} {all:?}");
    until("free memory is given back", || kib("RssAnon") <= RESTED_MAX);
}
