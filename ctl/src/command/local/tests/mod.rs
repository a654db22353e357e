//! Tests of the rows and decisions, over small objects.

mod repairs;

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;
use serde_json::{Value, json};

use super::cluster::{Cluster, Kind};
use super::{doctor, list};
use crate::failure::Failure;
use crate::render::{Answer, Output, Rows};
use crate::report::Report;

const ID: &str = "vol-1";
const GIB: u64 = 1 << 30;

/// Returns the time this many seconds before the present of the tests.
fn before(seconds: u64) -> String {
    let now = Duration::from_secs(1_800_000_000 - seconds);
    Timestamp::from(SystemTime::UNIX_EPOCH + now).to_string()
}

/// Merges `part` into an object, as a merge patch does.
fn changed(mut object: Value, part: Value) -> Value {
    if let (Value::Object(into), Value::Object(part)) = (&mut object, part) {
        for (key, value) in part {
            let old = into.remove(&key).unwrap_or(Value::Null);
            let is_map = value.is_object() && old.is_object();
            let new = if is_map { changed(old, value) } else { value };
            into.insert(key, new);
        }
    }
    object
}

/// Returns a volume of 1 GiB that is ready.
fn volume(part: Value) -> Value {
    let metadata = json!({"name": "pvc-1", "generation": 3, "creationTimestamp": before(3600),
        "finalizers": ["belay.dev/store"]});
    let spec = json!({"version": 1, "id": ID, "name": "pvc-1", "place": "node1", "disk": "default",
        "node": "node1", "bytes": GIB});
    let status = json!({"phase": "Ready", "bytes": GIB});
    changed(
        json!({"metadata": metadata, "spec": spec, "status": status}),
        part,
    )
}

fn snapshot(part: Value) -> Value {
    let own = json!({"metadata": {"name": "snapshot-1"}, "spec": {"id": "snap-1", "bytes": null,
        "name": "snapshot-1", "volume": ID}});
    changed(changed(volume(json!({})), own), part)
}

/// Returns a disk of `node1` with 10 GiB, whose store has reported 20 seconds before.
fn disk(part: Value) -> Value {
    let metadata = json!({"name": "node1.default", "creationTimestamp": before(9000)});
    let status = json!({"bytes": 10 * GIB, "promisable": 9 * GIB, "readOnly": false, "uuid": "u",
        "reported": before(20)});
    let spec = json!({"node": "node1", "place": "node1", "disk": "default"});
    changed(
        json!({"metadata": metadata, "spec": spec, "status": status}),
        part,
    )
}

fn persistent() -> Value {
    json!({"metadata": {"name": "pv-1"}, "spec": {"csi": {"volumeHandle": ID},
        "claimRef": {"namespace": "shop", "name": "data"}}})
}

/// Returns a PersistentVolume with an ID of the driver.
fn ours() -> Value {
    let id = format!("vol-{:032}", 1);
    changed(
        persistent(),
        json!({"spec": {"csi": {"driver": "local.csi.belay.dev",
        "volumeHandle": id}}}),
    )
}

fn cluster(disks: Value, volumes: Value, snapshots: Value, claims: Value) -> Cluster {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    Cluster::of([disks, volumes, snapshots, claims], now)
}

/// Returns a cluster with one disk and one volume.
fn pair(disk: Value, volume: Value, claims: Value) -> Cluster {
    cluster(json!([disk]), json!([volume]), json!([]), claims)
}

/// Returns the words of each line of a table, without its head.
fn lines(rows: Rows) -> Vec<String> {
    let text = Answer::Rows(rows).text(Output::Table);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().skip(1).map(words).collect()
}

#[track_caller]
fn refused<T>(result: Result<T, Failure>, why: &str) {
    let failure = result.err().expect(why).to_string();
    assert!(failure.contains(why), "{failure}");
}

#[test]
fn a_disk_is_shown_with_its_room_and_its_problem() {
    let objects = || (json!([volume(json!({}))]), json!([snapshot(json!({}))]));
    for (part, row) in [
        (json!({}), "10GiB 2GiB 7GiB 1 1 - 20s -"),
        (
            json!({"status": {"readOnly": true, "unlisted": {"count": 4}}}),
            "10GiB 2GiB 7GiB 1 1 4 20s read-only",
        ),
        (
            json!({"status": {"problem": "no"}}),
            "10GiB 2GiB 7GiB 1 1 - 20s no",
        ),
        (
            json!({"status": {"reported": before(180)}}),
            "10GiB 2GiB 7GiB 1 1 - 3m silent: its store does not report; check its pod",
        ),
        (
            json!({"status": null}),
            "- 2GiB - 1 1 - 2h its store has not reported its state",
        ),
    ] {
        let (volumes, snapshots) = objects();
        let cluster = cluster(json!([disk(part)]), volumes, snapshots, json!([]));
        assert_eq!(
            lines(list::disks(&cluster)),
            [format!("node1 default {row}")]
        );
    }
    let (volumes, snapshots) = objects();
    let gone = cluster(json!([]), volumes, snapshots, json!([]));
    let row = "node1 default - 2GiB - 1 1 - - gone: no LocalDisk";
    assert_eq!(lines(list::disks(&gone)), [row]);
}

#[test]
fn the_promised_size_is_the_one_that_the_controller_counts() {
    let no_finalizer = || json!({"finalizers": []});
    for (part, gib) in [
        (json!({}), 1),
        (json!({"status": null}), 1),
        (json!({"spec": {"bytes": 4 * GIB}}), 4),
        (
            json!({"spec": {"bytes": 4 * GIB}, "status": {"observedGeneration": 3}}),
            1,
        ),
        (
            json!({"spec": {"bytes": 4 * GIB}, "status": {"bytes": 5 * GIB}}),
            5,
        ),
        (
            json!({"metadata": no_finalizer(), "status": {"phase": "Refused"}}),
            0,
        ),
        (json!({"status": {"phase": "Refused"}}), 1),
        (
            json!({"metadata": no_finalizer(), "spec": {"remove": 3}}),
            0,
        ),
        (json!({"spec": {"remove": 3}}), 1),
    ] {
        let cluster = pair(disk(json!({})), volume(part.clone()), json!([]));
        assert_eq!(cluster.promised()["node1.default"], gib * GIB, "{part}");
    }
    // The size of a snapshot is the size of its volume until its store reports it.
    for (part, gib) in [(json!({"status": {"bytes": null}}), 2), (json!({}), 2)] {
        let snapshots = json!([snapshot(part)]);
        let cluster = cluster(json!([]), json!([volume(json!({}))]), snapshots, json!([]));
        assert_eq!(cluster.promised()["node1.default"], gib * GIB);
    }
}

#[test]
fn a_volume_is_shown_with_its_claim_and_its_failure() {
    let on = |node: &str| Some(node.to_owned());
    let row = |claims: Value, part: Value| {
        let cluster = pair(disk(json!({})), volume(part), claims);
        assert_eq!(
            lines(list::of_kind(&cluster, Kind::Volume, &on("node2"))),
            [""; 0]
        );
        lines(list::of_kind(&cluster, Kind::Volume, &on("node1"))).concat()
    };
    let of = |rest: &str| format!("pvc-1 vol-1 node1 default 1GiB {rest}");
    assert_eq!(
        row(json!([persistent()]), json!({})),
        of("Ready shop/data -")
    );
    let unbound = changed(persistent(), json!({"spec": {"claimRef": null}}));
    let unbound = row(json!([unbound]), json!({}));
    assert_eq!(unbound, of("Ready PersistentVolume pv-1 -"));
    let failed = json!({"status": {"phase": "Refused", "failure": {"message": "no room"}}});
    assert_eq!(row(json!([]), failed), of("Refused unclaimed no room"));
    assert_eq!(
        row(json!([]), json!({"status": null})),
        of("Ordered unclaimed -")
    );
}

#[test]
fn a_snapshot_is_claimed_by_the_content_with_its_handle() {
    for part in [
        json!({"status": {"snapshotHandle": "snap-1"}}),
        json!({"spec": {"source": {"snapshotHandle": "snap-1"}}}),
    ] {
        let content = json!({"metadata": {"name": "content-1"}, "spec": {
            "volumeSnapshotRef": {"namespace": "shop", "name": "daily"}}});
        let claims = json!([changed(content, part)]);
        let cluster = cluster(json!([]), json!([]), json!([snapshot(json!({}))]), claims);
        let rows = lines(list::of_kind(&cluster, Kind::Snapshot, &None));
        assert_eq!(
            rows,
            ["snapshot-1 snap-1 node1 default 1GiB Ready shop/daily -"]
        );
        assert_eq!(lines(list::of_unclaimed(&cluster)), [""; 0]);
    }
}

#[test]
fn only_old_objects_with_a_file_or_a_lost_file_are_unclaimed() {
    let unclaimed = |part: Value, claims: Value| {
        let cluster = pair(disk(json!({})), volume(part), claims);
        lines(list::of_unclaimed(&cluster)).concat()
    };
    let row = "pvc-1 vol-1 node1 default 1GiB Ready volume 60m";
    assert_eq!(unclaimed(json!({}), json!([])), row);
    let lost = unclaimed(json!({"status": {"phase": "Lost"}}), json!([]));
    assert_eq!(lost, row.replace("Ready", "Lost"));
    assert_eq!(unclaimed(json!({}), json!([persistent()])), "");
    assert_eq!(
        unclaimed(json!({"status": {"phase": "Making"}}), json!([])),
        ""
    );
    let young = json!({"metadata": {"creationTimestamp": before(599)}});
    assert_eq!(unclaimed(young, json!([])), "");
}

#[test]
fn files_without_an_object_are_listed_and_a_note_counts_the_others() {
    let file = json!({"id": "vol-9", "name": "pvc-9", "bytes": GIB});
    let disk =
        |count: u64| disk(json!({"status": {"unlisted": {"count": count, "first": [file]}}}));
    let rows = |count: u64| {
        let disks = json!([disk(count)]);
        lines(list::unlisted(&cluster(
            disks,
            json!([]),
            json!([]),
            json!([]),
        )))
    };
    let row = "node1 default vol-9 pvc-9 1GiB";
    assert_eq!(rows(1), [row]);
    let note = "disk node1.default: 21 files without an object, 1 listed";
    assert_eq!(rows(21), [row, note]);
}

#[test]
fn a_node_is_shown_with_its_place_and_the_totals_of_its_disks() {
    let spec = json!({"disk": "fast", "place": "old"});
    let fast = json!({"metadata": {"name": "node1.fast"}, "spec": spec,
        "status": {"readOnly": true}});
    let disks = json!([disk(json!({"spec": {"place": "old"}})), disk(fast)]);
    let gone = volume(json!({"spec": {"node": "node2", "place": "node2"}}));
    let volumes = json!([volume(json!({"spec": {"place": "old"}})), gone]);
    let cluster = cluster(disks, volumes, json!([]), json!([]));
    let rows = [
        "node1 old 2 20GiB 1GiB 17GiB 1 0 fast: read-only",
        "node2 node2 0 0B 1GiB 0B 1 0 default: gone: no LocalDisk",
    ];
    assert_eq!(lines(list::nodes(&cluster)), rows);
}

#[test]
fn the_doctor_names_each_problem_with_its_remedy() {
    let report = |cluster: &Cluster| {
        let mut report = Report::default();
        doctor::check(&mut report, cluster);
        report
    };
    let good = report(&pair(
        disk(json!({})),
        volume(json!({})),
        json!([persistent()]),
    ));
    assert!(good.is_good(), "{}", good.table());
    for text in [
        "ok    disk node1.default",
        "8GiB are free",
        "none of 1 is lost, unclaimed or missing",
    ] {
        assert!(good.table().contains(text), "{}", good.table());
    }
    let none = report(&cluster(json!([]), json!([]), json!([]), json!([])));
    assert!(none.is_good() && none.table().contains("no node has one"));
    for (part, phase, is_good, text) in [
        (
            json!({"problem": "the directory is empty"}),
            "Ready",
            false,
            "the directory is empty",
        ),
        (json!({"readOnly": true}), "Ready", false, "kernel's log"),
        (
            json!({"reported": before(180)}),
            "Ready",
            false,
            "`belayctl local forget node1`",
        ),
        (
            json!({"promisable": GIB}),
            "Ready",
            true,
            "1GiB of 1GiB are promised",
        ),
        (
            json!({"unlisted": {"count": 4}}),
            "Ready",
            true,
            "4 have no object",
        ),
        (json!({}), "Ready", true, "`belayctl local remove ID`"),
        (json!({}), "Lost", false, "1: vol-1"),
    ] {
        let phase = json!({"status": {"phase": phase}});
        let report = report(&pair(
            disk(json!({"status": part})),
            volume(phase),
            json!([]),
        ));
        let table = report.table();
        assert_eq!(report.is_good(), is_good, "{table}");
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(text), "{table}");
    }
    let missing = cluster(json!([]), json!([]), json!([]), json!([ours()]));
    assert_eq!(report(&missing).names(), "without an object\n");
    let gone = cluster(json!([]), json!([volume(json!({}))]), json!([]), json!([]));
    assert_eq!(report(&gone).names(), "disk node1.default\n");
}
