//! Volumes and snapshots whose intent is recorded before a caller asks to create them.

use super::*;
use crate::backend::local::id;
use crate::backend::local::record::{Record, State};
use crate::backend::local::snapshot_record::SnapshotState;
use belay_server::call::Kind;
use belay_server::request::VolumeId;
use std::os::unix::fs::MetadataExt as _;

fn bed() -> Bed {
    Bed {
        keeps_intents: true,
        ..Bed::new()
    }
}

fn intent(name: &str, source: Option<&ContentSource>) -> Record {
    Record::creating(name, MIB, &Usage::Block, source)
}

fn volume_id() -> String {
    id::fresh(id::VOLUME).unwrap()
}

#[test]
fn an_intent_outlives_a_restart_and_is_executed_once() {
    let bed = bed();
    let id = volume_id();
    let store = bed.open();
    store.intend_as(&id, &intent("pvc", None)).unwrap();
    // A creation was interrupted.
    drop(store.files.begin(&id).unwrap());
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!((recovered.undone, recovered.troubles), (1, 0));
    assert_eq!(bed.files(), [""; 0]);
    assert_eq!(store.ledger.totals().unwrap().bytes, MIB);
    store.make_intended(&id, None).unwrap();
    assert_eq!(store.ledger.get(&id).unwrap().unwrap().state, State::Ready);
    let inode = fs::metadata(bed.file(&id)).unwrap().ino();
    store.make_intended(&id, None).unwrap();
    store.intend_as(&id, &intent("pvc", None)).unwrap();
    assert_eq!(fs::metadata(bed.file(&id)).unwrap().ino(), inode);
    assert_eq!(store.ledger.totals().unwrap().bytes, MIB);
}

#[test]
fn a_failed_creation_keeps_the_intent_and_no_file() {
    let bed = bed();
    let store = bed.open();
    let id = volume_id();
    let source = ContentSource::Volume(VolumeId::new(volume_id()).unwrap());
    let record = intent("pvc", Some(&source));
    store.intend_as(&id, &record).unwrap();
    let failure = store.make_intended(&id, Some(&source)).unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound, "{failure}");
    assert_eq!(bed.files(), [""; 0]);
    assert_eq!(store.ledger.get(&id).unwrap(), Some(record));
    store.abandon(&id).unwrap();
    assert_eq!(store.ledger.get(&id).unwrap(), None);
    store.abandon(&id).unwrap();
}

#[test]
fn a_complete_volume_is_not_abandoned_and_unknown_data_is_kept() {
    let bed = bed();
    let store = bed.open();
    let id = volume_id();
    store.intend_as(&id, &intent("pvc", None)).unwrap();
    let file = store.files.begin(&id).unwrap();
    file.enlarge(MIB).unwrap();
    OpenOptions::new()
        .write(true)
        .open(bed.file(&id))
        .unwrap()
        .write_all_at(b"data", 0)
        .unwrap();
    for refused in [store.make_intended(&id, None), store.abandon(&id)] {
        assert!(refused.unwrap_err().message.contains("contains data"));
    }
    fs::remove_file(bed.file(&id)).unwrap();
    store.make_intended(&id, None).unwrap();
    assert_eq!(store.abandon(&id).unwrap_err().kind, Kind::Bug);
    assert!(bed.file(&id).exists());
}

#[test]
fn volumes_with_one_name_do_not_disturb_each_other() {
    let bed = bed();
    let store = bed.open();
    let ids = [volume_id(), volume_id()];
    for id in &ids {
        store.intend_as(id, &intent("pvc", None)).unwrap();
        store.make_intended(id, None).unwrap();
    }
    let name = Name::new("pvc").unwrap();
    let found = |store: &Store| {
        store
            .find(&name)
            .unwrap()
            .map(|it| it.id.as_str().to_owned())
    };
    assert_eq!(found(&store).as_ref(), Some(&ids[0]));
    assert_eq!(store.try_delete(&ids[1]).unwrap(), Deletion::Done);
    assert_eq!(found(&store).as_ref(), Some(&ids[0]));
    assert_eq!(store.try_delete(&ids[0]).unwrap(), Deletion::Done);
    assert_eq!(found(&store), None);
    assert_eq!(store.ledger.totals().unwrap().bytes, 0);
}

#[test]
fn the_intent_of_a_snapshot_outlives_a_restart() {
    let bed = bed();
    let store = bed.open();
    let volume = volume_id();
    store.intend_as(&volume, &intent("pvc", None)).unwrap();
    store.make_intended(&volume, None).unwrap();
    let id = id::fresh(id::SNAPSHOT).unwrap();
    let missing = store.intend_snapshot_as(&id, "snap", &volume_id());
    assert_eq!(missing.unwrap_err().kind, Kind::NotFound);
    store.intend_snapshot_as(&id, "snap", &volume).unwrap();
    drop(store.snapshots.begin(&id).unwrap());
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!((recovered.undone, recovered.troubles), (1, 0));
    assert_eq!(bed.snapshot_files(), 0);
    store.make_intended_snapshot(&id, &volume).unwrap();
    if let Some(copied) = store.ledger.snapshot(&id).unwrap()
        && copied.state == SnapshotState::Copying
    {
        store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    }
    let taken = store.ledger.snapshot(&id).unwrap().unwrap();
    assert_eq!(taken.state, SnapshotState::Ready);
    store.reserve_snapshot(&id).unwrap();
    store.finish_discard(&id).unwrap();
    assert_eq!(store.ledger.snapshot(&id).unwrap(), None);
}
