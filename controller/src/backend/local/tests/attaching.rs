//! Calls that are refused while a volume is attached or its file is in use.

use super::{Bed, MIB, attach_order, node, opened, order};
use crate::backend::AttachOrder;
use crate::backend::local::Config;
use belay_contract::publish_context::Content;
use belay_server::call::Kind;
use std::fs::{self, File, OpenOptions};

#[test]
fn an_attached_volume_is_not_deleted_and_its_node_is_named() {
    let bed = Bed::new();
    let store = &bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let failure = store.delete(id).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("node-1"), "{failure}");
    store.detach(id, &node("node-1")).unwrap();
    store.delete(id).unwrap();
    store.delete(id).unwrap();
}

#[test]
fn a_file_that_a_loop_device_has_is_neither_deleted_nor_detached() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    // The node agent and the loop device lock the file in this way.
    let bound = File::open(bed.file(id)).unwrap();
    bound.try_lock().unwrap();
    assert_eq!(store.delete(id).unwrap_err().kind, Kind::Precondition);
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let failure = store.detach(id, &node("node-1")).unwrap_err();
    assert_eq!(failure.kind, Kind::Busy);
    assert!(failure.message.contains("unstage"), "{failure}");
    assert_eq!(
        store.get(&volume.id).unwrap().unwrap().nodes,
        [node("node-1")]
    );
    drop(bound);
    store.detach(id, &node("node-1")).unwrap();
    store.delete(id).unwrap();
}

#[test]
fn content_is_populated_from_the_first_data_on_and_stays_so() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let attach = || {
        store
            .attach(&attach_order(&volume, "node-1"))
            .unwrap()
            .content
    };
    assert_eq!(attach(), Content::New);
    store.detach(id, &node("node-1")).unwrap();
    assert_eq!(attach(), Content::New, "attached and never written");
    bed.write(id);
    assert_eq!(
        attach(),
        Content::Populated,
        "a repeated call returns the present state"
    );
    store.detach(id, &node("node-1")).unwrap();
    // A discard leaves only holes, but does not make the volume new again.
    let file = OpenOptions::new().write(true).open(bed.file(id)).unwrap();
    file.set_len(0).unwrap();
    file.set_len(MIB).unwrap();
    assert_eq!(attach(), Content::Populated);
}

#[test]
fn an_attachment_that_is_there_already_costs_no_write() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let order = attach_order(&volume, "node-1");
    let first = store.attach(&order).unwrap();
    let state = || std::fs::read(bed.dir.path().join("state/state.redb")).unwrap();
    let before = state();
    assert_eq!(store.attach(&order).unwrap(), first);
    assert!(state() == before);
}

#[test]
fn a_file_that_is_missing_since_its_volume_is_deleted_is_not_called_lost() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    store.begin_delete(id).unwrap();
    store.files.remove(id).unwrap();
    assert_eq!(store.backing(id).unwrap_err().kind, Kind::Busy);
    store.finish_delete(id).unwrap();
    assert_eq!(store.backing(id).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn a_node_takes_only_as_many_volumes_as_it_may() {
    let bed = Bed::new();
    let store = &bed.open();
    let volumes: Vec<_> = (0..3)
        .map(|n| {
            store
                .create(&order(&format!("pvc-{n}"), MIB), None)
                .unwrap()
        })
        .collect();
    let attach = |volume| {
        store.attach(&AttachOrder {
            node_limit: Some(2),
            ..attach_order(volume, "node-1")
        })
    };
    attach(&volumes[0]).unwrap();
    attach(&volumes[1]).unwrap();
    attach(&volumes[1]).unwrap();
    let failure = attach(&volumes[2]).unwrap_err();
    assert_eq!(failure.kind, Kind::Quota);
    store
        .detach(volumes[0].id.as_str(), &node("node-1"))
        .unwrap();
    attach(&volumes[2]).unwrap();
}

#[test]
fn a_volume_goes_to_this_node_only_and_not_to_two() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let failure = store.attach(&attach_order(&volume, "node-2")).unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound);
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    drop(store);
    // The node was renamed while a volume was attached.
    let renamed = Config {
        node: node("node-2"),
        ..bed.config()
    };
    let store = opened(&renamed).unwrap();
    let failure = store.attach(&attach_order(&volume, "node-2")).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("node-1"), "{failure}");
}

#[test]
fn the_second_name_of_a_file_goes_when_its_volume_is_detached_or_with_the_next_start() {
    let bed = Bed::new();
    let store = bed.open();
    let [first, second] = ["pvc-1", "pvc-2"].map(|name| {
        let volume = store.create(&order(name, MIB), None).unwrap();
        store.attach(&attach_order(&volume, "node-1")).unwrap();
        volume
    });
    let dir = bed.dir.path().join("state/attached");
    let names = || fs::read_dir(&dir).unwrap().count();
    assert_eq!(names(), 2);
    store.detach(first.id.as_str(), &node("node-1")).unwrap();
    assert_eq!(names(), 1);
    drop(store);
    // Test a crash between the two steps of a detach, and a volume unknown to state.redb.
    let lost = bed.dir.path().join("lost");
    fs::write(&lost, b"data").unwrap();
    for (file, id) in [
        (bed.file(first.id.as_str()), first.id.as_str()),
        (lost, "vol-lost"),
    ] {
        fs::hard_link(file, dir.join(id)).unwrap();
    }
    let (store, recovered) = bed.recover();
    assert_eq!((names(), recovered.troubles), (1, 0));
    store.detach(second.id.as_str(), &node("node-1")).unwrap();
    store.delete(second.id.as_str()).unwrap();
    assert_eq!(names(), 0);
}

#[test]
fn a_second_name_that_is_the_last_one_or_in_use_is_left() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    drop(store);
    let dir = bed.dir.path().join("state/attached");
    fs::write(dir.join("vol-last"), b"data").unwrap();
    let used = dir.join(volume.id.as_str());
    fs::hard_link(bed.file(volume.id.as_str()), &used).unwrap();
    let device = File::open(&used).unwrap();
    device.try_lock().unwrap();
    let (store, recovered) = bed.recover();
    assert_eq!(recovered.troubles, 2);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    drop((store, device));
    let (_, recovered) = bed.recover();
    assert_eq!(recovered.troubles, 1);
    assert_eq!(fs::read(dir.join("vol-last")).unwrap(), b"data");
}

/// Another file replaced the volume's file while the volume was attached. Tests a detach, and a
/// deletion after a detach that was interrupted before its last step.
#[test]
fn a_replaced_file_is_kept_by_the_detach_and_by_the_deletion() {
    for has_died in [false, true] {
        let bed = Bed::new();
        let store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let id = volume.id.as_str();
        store.attach(&attach_order(&volume, "node-1")).unwrap();
        bed.write(id);
        let data = fs::read(bed.file(id)).unwrap();
        let restored = bed.dir.path().join("restored");
        fs::write(&restored, vec![0; data.len()]).unwrap();
        fs::rename(&restored, bed.file(id)).unwrap();
        if has_died {
            store
                .ledger
                .change(|changes| {
                    let mut record = changes.get(id)?.unwrap();
                    record.attached.clear();
                    changes.put(id, &record)
                })
                .unwrap();
        } else {
            store.detach(id, &node("node-1")).unwrap();
        }
        store.delete(id).unwrap();
        let dir = bed.dir.path().join("state/attached");
        let names = fs::read_dir(&dir)
            .unwrap()
            .map(|it| it.unwrap().file_name());
        let aside = format!("{id}.1");
        assert_eq!(names.collect::<Vec<_>>(), [&*aside]);
        assert_eq!(fs::read(dir.join(aside)).unwrap(), data);
    }
}

#[test]
fn a_file_that_cannot_be_given_its_second_name_now_is_not_attached() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    fs::remove_dir(bed.dir.path().join("state/attached")).unwrap();
    let failure = store.attach(&attach_order(&volume, "node-1")).unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
    store.delete(volume.id.as_str()).unwrap();
}
