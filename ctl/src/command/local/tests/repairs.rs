//! Tests of the commands that change something: what they refuse, and what they create.

use std::time::{Duration, SystemTime};

use belay_contract::drivers::local::{STATE_IS_MISSING, WAITS};
use prost_types::Timestamp;
use serde_json::{Value, json};

use super::super::cluster::problem;
use super::super::{adopt, forget, list, rehome, remove, reset};
use super::{GIB, ID, before, changed, cluster, disk, lines, pair, persistent, refused, volume};
use crate::objects::Object;

#[test]
fn a_node_is_forgotten_only_if_no_store_of_it_reports() {
    let plan = |part: Value, node: &str| {
        let cluster = pair(disk(part), volume(json!({})), json!([]));
        forget::plan(&cluster, node).map(|disks| disks.len())
    };
    let silent = json!({"reported": before(180)});
    assert_eq!(plan(json!({"status": silent}), "node1").unwrap(), 1);
    let reporting = "node1.default: its store still reports";
    refused(
        plan(json!({"status": {"reported": before(179)}}), "node1"),
        reporting,
    );
    // The clock of the node is slow, but the API server has recorded the report.
    let fields = json!([{"subresource": "status", "time": before(5)}]);
    let slow = json!({"status": silent, "metadata": {"managedFields": fields}});
    refused(plan(slow, "node1"), reporting);
    // The clock of this machine is slow.
    let future = Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000));
    let future = json!({"status": {"reported": future.to_string()}});
    refused(plan(future, "node1"), reporting);
    // The store has just created the disk again.
    let new = json!({"status": null, "metadata": {"creationTimestamp": before(9)}});
    refused(plan(new, "node1"), reporting);
    refused(plan(json!({}), "node2"), "node2: has no disk");
    let forgotten = cluster(json!([]), json!([volume(json!({}))]), json!([]), json!([]));
    assert_eq!(forget::plan(&forgotten, "node1").unwrap().len(), 0);
}

#[test]
fn only_an_unclaimed_volume_may_be_removed() {
    let plan = |volumes: Value, id: &str, claims: Value| {
        let cluster = cluster(json!([]), volumes, json!([]), claims);
        remove::plan(&cluster, None, id).map(|_item| ())
    };
    let (one, none) = (|| json!([volume(json!({}))]), || json!([]));
    plan(one(), ID, none()).unwrap();
    let claimed = plan(one(), ID, json!([persistent()]));
    refused(claimed, "volume vol-1: PersistentVolume pv-1 has it");
    refused(plan(one(), "vol-2", none()), "vol-2: not found");
    let twice = json!([volume(json!({})), volume(json!({}))]);
    refused(plan(twice, ID, none()), "several objects");
}

#[test]
fn a_file_without_an_object_is_removed_by_an_object_that_adopts_it() {
    let named = json!({"id": "vol-9", "name": "pvc-9", "bytes": GIB});
    let unknown = json!({"id": "snap-9", "name": null, "bytes": 0});
    let snapshot = json!({"id": "snap-8", "name": "snapshot-8", "bytes": GIB});
    let files = json!({"unlisted": {"count": 3, "first": [named, unknown, snapshot]}});
    let of = |claims: Value| pair(disk(json!({"status": files})), volume(json!({})), claims);
    let one = of(json!([]));
    let found = |id: &str| adopt::find(&one, id).unwrap();
    let file = found("vol-9").unwrap();
    let item = remove::plan(&one, Some(&file), "vol-9").unwrap();
    assert_eq!(item.object.text("/spec/name"), "pvc-9");
    assert_eq!(item.object.number("/spec/bytes"), GIB);
    assert_eq!(
        (item.place(), item.disk_name().as_str()),
        ("node1", "node1.default")
    );
    let row = lines(list::objects("objects", &one, std::iter::once(item)));
    assert_eq!(row, ["pvc-9 vol-9 node1 default 1GiB Unlisted unclaimed -"]);
    let snapshot = found("snap-8").unwrap();
    let spec = snapshot.item().object.at("/spec").unwrap();
    assert_eq!(spec["volume"], "vol-00000000000000000000000000000000");
    assert_eq!((&spec["adopt"], spec.get("bytes")), (&json!(true), None));
    assert!(found(ID).is_none(), "it has an object");
    assert!(found("vol-7").is_none(), "no disk lists it");
    let silent = json!({"status": changed(files.clone(), json!({"reported": before(180)}))});
    let silent = pair(disk(silent), volume(json!({})), json!([]));
    refused(
        adopt::find(&silent, "vol-9").map(drop),
        "disk node1.default: silent",
    );
    let copy = disk(json!({"metadata": {"name": "node2.default"}, "status": files}));
    let disks = json!([disk(json!({"status": files})), copy]);
    let twice = cluster(disks, json!([]), json!([]), json!([]));
    let why = "the disks node1.default and node2.default have it";
    refused(adopt::find(&twice, "vol-9").map(drop), why);
    let claim = changed(
        persistent(),
        json!({"spec": {"csi": {"volumeHandle": "vol-9"}}}),
    );
    refused(
        found("snap-9").unwrap().check(),
        "has no readable record of it",
    );
    let claimed = of(json!([claim]));
    let plan = remove::plan(&claimed, Some(&file), "vol-9");
    refused(plan, "PersistentVolume pv-1 has it");
}

#[test]
fn a_place_is_given_to_a_node_only_if_no_other_has_it_and_the_node_has_no_other() {
    let on = |node: &str, place: &str, uuid: Value| {
        let spec = json!({"node": node, "place": place});
        let metadata = json!({"name": format!("{node}.default")});
        disk(json!({"metadata": metadata, "spec": spec, "status": {"uuid": uuid}}))
    };
    let plan = |disks: Value| {
        let cluster = cluster(disks, json!([]), json!([]), json!([]));
        rehome::plan(&cluster, "old", "new").map(|disks| disks.len())
    };
    let waiting = || on("new", "new", Value::Null);
    let empty = on("old", "old", Value::Null);
    assert_eq!(plan(json!([waiting(), empty])).unwrap(), 1);
    assert_eq!(plan(json!([waiting()])).unwrap(), 1);
    // An earlier command was interrupted.
    assert_eq!(plan(json!([on("new", "old", json!("u"))])).unwrap(), 1);
    refused(plan(json!([])), "node new has no disk");
    let held = plan(json!([waiting(), on("old", "old", json!("u"))]));
    refused(
        held,
        "place old: LocalDisk old.default has it; first run `belayctl local forget old`",
    );
    refused(
        plan(json!([on("new", "new", json!("u"))])),
        "a node has one place",
    );
}

#[test]
fn only_a_disk_whose_state_is_missing_may_be_reset() {
    let plan = |part: Value| {
        let cluster = pair(disk(json!({"status": part})), volume(json!({})), json!([]));
        reset::plan(&cluster, "node1.default").map(|_disk| ())
    };
    let missing = format!("/v: {STATE_IS_MISSING} u; mount the disk");
    plan(json!({"problem": missing})).unwrap();
    // An earlier reset was interrupted.
    let waits = format!("/v: empty; {WAITS} to use it");
    plan(json!({"problem": waits, "uuid": null})).unwrap();
    refused(
        plan(json!({"problem": waits})),
        "the state of the disk is not missing",
    );
    refused(plan(json!({})), "reports no problem");
    refused(
        plan(json!({"problem": "input/output error"})),
        "its store reports: input/output error",
    );
    let silent = plan(json!({"problem": missing, "reported": before(180)}));
    refused(silent, "its store does not report");
    let none = cluster(json!([]), json!([]), json!([]), json!([]));
    refused(
        reset::plan(&none, "node1.default").map(|_disk| ()),
        "does not exist",
    );
    let value = disk(json!({}));
    assert_eq!(problem(&none, Object::new(&value)), "");
}
