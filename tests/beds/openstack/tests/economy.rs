//! How many calls the cloud gets, counted at the proxy, and what a limit of their rate does.

use belay_bed::programs::Running;
use belay_openstack::{Bed, Cloud, Server};
use serde_json::json;

use crate::site::{Site, attached, by_password, created, deleted, detached, unique};

const VOLUMES: usize = 50;
/// In all verbs of a volume, waiting included.
const CALLS_MAX: usize = 10;

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
async fn fifty_volumes_at_once_take_ten_calls_each() {
    let field = Field::new(10);
    let fronts = field.bed.fronts();
    fronts.forget();
    field.live(VOLUMES).await;
    let calls = fronts.count("", "", "");
    eprintln!("{VOLUMES} volumes: {calls} calls\n{}", field.calls());
    assert!(calls <= (VOLUMES * CALLS_MAX) as u64, "{}", field.calls());
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
