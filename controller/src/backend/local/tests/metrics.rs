//! Tests of the metrics that the alerts and the dashboard use: each gauge must follow the changes.

use super::{Bed, MIB, cut, delete, order, snapshot_order};
use crate::backend::local::Local;
use crate::backend::local::copies::Copies;
use crate::backend::local::files::{Copied, Files};
use crate::backend::{
    Backend, Capacity as _, Clones as _, Expansion as _, Health, Planned, Snapshots as _,
};
use belay_server::call::Failure;
use belay_server::readiness::{Readiness, State};
use belay_server::request::{Name, Secrets};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt as _;

/// The metrics of this thread, in the format for Prometheus.
pub(super) struct Page(PrometheusHandle);

impl Page {
    /// Returns the value of a series; `None` if it does not exist.
    pub(super) fn value(&self, series: &str) -> Option<f64> {
        let page = self.0.render();
        let mut samples = page.lines().filter_map(|line| line.rsplit_once(' '));
        let found = samples.find(|(name, _)| *name == series);
        found.map(|(_, value)| value.parse().unwrap())
    }

    fn values<const N: usize>(&self, series: [&str; N]) -> [Option<f64>; N] {
        series.map(|series| self.value(series))
    }

    /// Returns the series of a metric.
    fn series(&self, metric: &str) -> BTreeSet<String> {
        let page = self.0.render();
        let samples = page.lines().filter_map(|line| line.rsplit_once(' '));
        let of_it = samples.filter(|(name, _)| name.starts_with(metric));
        of_it.map(|(name, _)| name.to_owned()).collect()
    }
}

/// Runs `act` on this thread, with a recorder for its metrics.
pub(super) fn measured(act: impl FnOnce(&Page)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = Page(recorder.handle());
    metrics::with_local_recorder(&recorder, || act(&page));
}

#[test]
fn the_sums_and_the_room_are_shown_as_they_are_after_every_change_and_start() {
    let bed = Bed::new();
    let sums = |page: &Page| {
        page.values([
            "belay_controller_volumes",
            "belay_controller_snapshots",
            "belay_controller_provisioned_bytes",
        ])
    };
    let are =
        |volumes, snapshots, mib: u32| [volumes, snapshots, f64::from(mib) * 1_048_576.0].map(Some);
    measured(|page| {
        let store = bed.open();
        assert_eq!(sums(page), are(0.0, 0.0, 0));
        let one = store.create(&order("pvc-1", 3 * MIB), None).unwrap();
        store.create(&order("pvc-2", 5 * MIB), None).unwrap();
        assert_eq!(sums(page), are(2.0, 0.0, 8));
        cut(&store, &snapshot_order("snap", &one));
        assert_eq!(sums(page), are(2.0, 1.0, 11));
        store.resize(one.id.as_str(), 4 * MIB).unwrap();
        assert_eq!(sums(page), are(2.0, 1.0, 12));
        delete(&store, one.id.as_str()).unwrap();
        assert_eq!(sums(page), are(1.0, 1.0, 8));
    });
    measured(|page| {
        let store = bed.open();
        assert_eq!(sums(page), are(1.0, 1.0, 8));
        let capacity = || page.value("belay_controller_capacity_bytes").unwrap();
        assert!(capacity() > 0.0, "the start sets it");
        let ceiling = store.ceiling().unwrap().bytes;
        assert!((capacity() - ceiling as f64).abs() < 1.0);
    });
}

#[test]
fn copies_are_shown_by_how_far_they_are() {
    measured(|page| {
        let are = |copies: [f64; 3]| {
            let shown = page.values([
                "belay_controller_copies{state=\"queued\"}",
                "belay_controller_copies{state=\"running\"}",
                "belay_controller_copies{state=\"failed\"}",
            ]);
            assert_eq!(shown, copies.map(Some));
        };
        let copies = Copies::default();
        copies.show();
        are([0.0, 0.0, 0.0]);
        copies.queue("snap-1", "vol-1", None);
        copies.queue("snap-2", "vol-2", None);
        copies.queue("snap-3", "vol-3", None);
        are([3.0, 0.0, 0.0]);
        copies.next().unwrap();
        are([2.0, 1.0, 0.0]);
        copies.begin("vol-4", "vol-1", None);
        are([2.0, 2.0, 0.0]);
        copies.fail("snap-1", Failure::busy("the disk"));
        are([2.0, 1.0, 1.0]);
        copies.end("vol-4");
        are([2.0, 0.0, 1.0]);
        copies.cancel("snap-2");
        are([1.0, 0.0, 1.0]);
    });
}

#[test]
fn the_data_of_a_copy_is_counted_and_its_holes_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path().join("files")).unwrap();
    let (from, to) = (files.begin("from").unwrap(), files.begin("to").unwrap());
    from.grow(64 * MIB).unwrap();
    let file = std::fs::File::options().write(true).open(from.path());
    let file = file.unwrap();
    let data = vec![7; 2 << 20];
    for at in [0, 32 * MIB] {
        file.write_all_at(&data, at).unwrap();
    }
    measured(|page| {
        assert_eq!(to.copy(&from, 64 * MIB, || true), Ok(Copied::Whole));
        let copied = page.value("belay_controller_copied_bytes_total");
        assert_eq!(copied, Some(4.0 * 1_048_576.0));
    });
}

/// Calls each method of the backend once; some calls fail.
async fn every_verb(local: &Local, done: impl Fn(&str, &str)) {
    let name = |name: &str| Name::new(name).unwrap();
    let none = Secrets::default;
    let one = local.create(order("pvc-1", MIB).into()).await.unwrap();
    done("create", "ok");
    local.find(name("pvc-1"), none()).await.unwrap();
    done("find", "ok");
    local.get(one.id.clone(), none()).await.unwrap();
    done("get", "ok");
    local.list(None, 1, none()).await.unwrap();
    done("list", "ok");
    local
        .list(Some("nonsense".to_owned()), 1, none())
        .await
        .unwrap_err();
    done("list", "bad_token");
    local.resize(one.id.clone(), 2 * MIB, none()).await.unwrap();
    done("resize", "ok");
    local.available_bytes(Planned::default()).await.unwrap();
    done("available", "ok");
    Health::health(local, one.id.clone(), none()).await.unwrap();
    done("health", "ok");
    local
        .conditions(vec![(one.id.clone(), 2 * MIB)])
        .await
        .unwrap();
    done("conditions", "ok");
    local.list_unhealthy(None, 1, none()).await.unwrap();
    done("list_unhealthy", "ok");
    let mut snapshot = local.cut(snapshot_order("snap", &one)).await.unwrap();
    done("cut", "ok");
    while !snapshot.ready {
        let found = local.snapshot(snapshot.id.clone(), none()).await.unwrap();
        snapshot = found.unwrap();
    }
    local.snapshot(snapshot.id.clone(), none()).await.unwrap();
    done("snapshot", "ok");
    local.list_snapshots(None, None, 1, none()).await.unwrap();
    done("list_snapshots", "ok");
    let restored = local.restore(order("pvc-2", 2 * MIB).into(), snapshot.id.clone());
    restored.await.unwrap();
    done("restore", "ok");
    let cloned = local.clone_volume(order("pvc-3", 2 * MIB).into(), one.id.clone());
    cloned.await.unwrap();
    done("clone", "ok");
    local.discard(snapshot.id, none()).await.unwrap();
    done("discard", "ok");
    local.delete(one.id, none()).await.unwrap();
    done("delete", "ok");
}

#[test]
fn each_verb_of_the_backend_is_measured_by_its_name_and_outcome() {
    let bed = Bed::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let local = Local::open(bed.config(), Readiness::new(State::Ready)).unwrap();
    let metric = "belay_backend_duration_seconds_count";
    measured(|page| {
        let seen = std::cell::RefCell::new(BTreeSet::from([format!(
            "{metric}{{verb=\"snapshot\",outcome=\"ok\"}}"
        )]));
        let done = |verb: &str, outcome: &str| {
            let series = format!("{metric}{{verb=\"{verb}\",outcome=\"{outcome}\"}}");
            assert!(page.series(metric).contains(&series), "{series}");
            seen.borrow_mut().insert(series);
            let mut shown = page.series(metric);
            // The call is repeated until the snapshot is ready.
            shown.insert(format!("{metric}{{verb=\"snapshot\",outcome=\"ok\"}}"));
            assert_eq!(shown, *seen.borrow(), "after {verb}");
        };
        runtime.block_on(every_verb(&local, done));
    });
}
