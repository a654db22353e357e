//! How many calls the cloud gets, counted at the proxy, and what a limit of their rate does.

use belay_bed::programs::Running;
use belay_openstack::{Bed, Cloud, Server};
use serde_json::json;
use std::time::Instant;

use crate::site::{Site, attached, by_password, created, deleted, detached, unique};

const VOLUMES: usize = 50;
/// Changes of a volume: creation, two marks, attachment, detachment, deletion. Few are repeated.
const CHANGES: u64 = 6;
const REPEATED_MAX: u64 = 5;
/// Reads of a volume: before it is attached, before it is detached, and once it is deleted.
const READS: u64 = 3;
/// Additional lists for searches and waiting, for any number of volumes and any duration: one every
/// 250 ms.
const LISTS_PER_SECOND: u64 = 4;

/// A controller, and servers to attach to.
pub(crate) struct Field {
    pub(crate) bed: Bed,
    pub(crate) servers: Vec<Server>,
    pub(crate) site: Site,
    _controller: Running,
}

impl Field {
    pub(crate) fn new(servers: usize) -> Self {
        let bed = Bed::open();
        let cloud = Cloud::by_password(&bed);
        let site = Site::new(&by_password(&bed));
        Self {
            servers: (0..servers).map(|_| cloud.server("az-a")).collect(),
            _controller: site.start(),
            site,
            bed,
        }
    }

    /// Volumes that are created, attached, detached and deleted, all at one time.
    async fn live(&self, volumes: usize) {
        let client = self.site.client().await;
        let lives = (0..volumes).map(|n| {
            let node = self.servers[n % self.servers.len()].id.clone();
            let mut client = client.clone();
            tokio::spawn(async move {
                let id = created(&mut client, &unique("many")).await.volume_id;
                let _context = attached(&mut client, &id, &node).await;
                detached(&mut client, &id, &node).await;
                deleted(&mut client, &id).await;
            })
        });
        for life in lives.collect::<Vec<_>>() {
            life.await.unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn fifty_volumes_at_once_take_their_own_calls_and_wait_together() {
    let field = Field::new(10);
    let fronts = field.bed.fronts();
    fronts.forget();
    let begun = Instant::now();
    field.live(VOLUMES).await;
    let seconds = begun.elapsed().as_secs() + 1;
    let calls = fronts.count("", "", "");
    let counted = field.calls();
    eprintln!("{VOLUMES} volumes: {calls} calls in {seconds} s\n{counted}");
    let count = |verbs: &[&str]| -> u64 { verbs.iter().map(|verb| field.count(verb)).sum() };
    let changes = count(&[
        "create_volume",
        "mark_volume",
        "attach_volume",
        "detach_volume",
        "delete_volume",
    ]);
    let reads = count(&["get_volume", "find_volume", "list_volumes"]);
    let volumes = VOLUMES as u64;
    assert_eq!(calls, changes + reads + count(&["login"]), "{counted}");
    assert!(changes <= CHANGES * volumes + REPEATED_MAX, "{counted}");
    assert!(
        reads <= READS * volumes + LISTS_PER_SECOND * seconds,
        "{counted}"
    );
}

impl Field {
    /// Calls by what they were for.
    pub(crate) fn calls(&self) -> String {
        let metrics = self.site.metrics();
        let counts = metrics
            .lines()
            .filter(|line| line.starts_with("belay_cloud_duration_seconds_count"));
        counts.collect::<Vec<_>>().join("\n")
    }

    /// How many of them were for that.
    fn count(&self, verb: &str) -> u64 {
        let verb = format!("verb=\"{verb}\"");
        let calls = self.calls();
        let counts = calls.lines().filter(|line| line.contains(&verb));
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_limited_rate_slows_all_volumes_and_fails_none() {
    let field = Field::new(2);
    let fronts = field.bed.fronts();
    fronts.obey(
        &json!([{"action": "rate", "per_second": 5.0, "burst": 5, "retry_after": 1,
                         "service": "cinder"}]),
    );
    fronts.forget();
    field.live(20).await;
    let refused = fronts.applied()[0];
    let calls = fronts.count("cinder", "", "");
    eprintln!(
        "{calls} calls, {refused} of them refused\n{}",
        field.calls()
    );
    assert!(refused > 0, "the limit was not reached");
    assert!(
        refused * 4 < calls,
        "{refused} of {calls} calls were refused"
    );
}
