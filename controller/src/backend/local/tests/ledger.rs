//! The database file: it is created once, and a lost file is never replaced with an empty one.

use super::{Bed, MIB, cut, delete, opened, order, snapshot_order};
use crate::backend::Usage;
use crate::backend::local::record::Record;
use crate::backend::local::snapshot::SnapshotRecord;
use belay_server::call::{Certainty, Failure, Kind};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

fn state_file(bed: &Bed) -> PathBuf {
    bed.dir.path().join("state/state.redb")
}

#[test]
fn a_state_directory_that_is_missing_is_not_made() {
    let bed = Bed::new();
    let dir = bed.config().state_dir;
    fs::remove_dir(&dir).unwrap();
    let failure = opened(&bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("mount"), "{failure}");
    assert!(!dir.exists());
}

#[test]
fn volumes_whose_ledger_is_lost_are_not_taken_for_deleted() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    drop(store);
    let (state, kept) = (state_file(&bed), bed.dir.path().join("kept"));
    fs::rename(&state, &kept).unwrap();
    let failure = opened(&bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    for named in ["state.redb", volume.id.as_str(), "restore"] {
        assert!(failure.message.contains(named), "{failure}");
    }
    assert!(!state.exists());
    fs::write(&state, b"").unwrap();
    let failure = opened(&bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable, "truncated counts as lost");
    fs::rename(&kept, &state).unwrap();
    assert_eq!(bed.open().get(&volume.id).unwrap(), Some(volume));
}

#[test]
fn snapshots_whose_ledger_is_lost_are_not_taken_for_deleted() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    delete(&store, volume.id.as_str()).unwrap();
    drop(store);
    fs::remove_file(state_file(&bed)).unwrap();
    let failure = opened(&bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains(snapshot.id.as_str()), "{failure}");
}

#[test]
fn room_for_small_changes_is_kept_on_disk() {
    let bed = Bed::new();
    drop(bed.open());
    let file = fs::metadata(state_file(&bed)).unwrap();
    assert!(file.blocks() * 512 >= 4 * MIB, "{} blocks", file.blocks());
}

#[test]
fn a_change_during_which_the_book_was_replaced_is_not_acknowledged() {
    let bed = Bed::new();
    let store = bed.open();
    let (state, kept) = (state_file(&bed), bed.dir.path().join("kept"));
    let restored = store.ledger.change(|_| {
        fs::rename(&state, &kept).unwrap();
        fs::copy(&kept, &state).unwrap();
        Ok(())
    });
    let failure = restored.unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable);
    assert_eq!(failure.certainty, Certainty::MayBeRunning);
    assert!(failure.message.contains("was replaced"), "{failure}");
    let untouched = store
        .ledger
        .change(|_| -> Result<(), _> { panic!("begun") });
    assert_eq!(untouched, Err(failure.clone()));
    assert_eq!(store.ledger.mend(), Err(failure));
}

/// The record of the volume with the name cannot be read, so an earlier call may have created the
/// volume.
#[test]
fn a_creation_whose_name_cannot_be_looked_up_may_have_an_earlier_result() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let snapshot = store.cut(&snapshot_order("snap", &volume)).unwrap();
    store.copies.cancel(snapshot.id.as_str());
    let expect = |kind| {
        let created = store.create(&order("pvc-1", MIB), None).map(drop);
        let cut = store.cut(&snapshot_order("snap", &volume)).map(drop);
        for failure in [created, cut].map(Result::unwrap_err) {
            let found = (failure.kind, failure.certainty);
            assert_eq!(found, (kind, Certainty::MayBeRunning), "{failure}");
        }
    };
    let panicked = store
        .ledger
        .change(|_| -> Result<(), _> { panic!("as redb at some damage") });
    assert_eq!(panicked.unwrap_err().kind, Kind::Unreachable);
    expect(Kind::Unreachable);
    store.ledger.mend().unwrap();
    let found = store.create(&order("pvc-1", MIB), None).unwrap();
    assert_eq!(found.id, volume.id);
    // The index refers to a record that was removed.
    store.ledger.lose_records();
    expect(Kind::Bug);
}

/// The number of records in a test: more than two pieces of a scan contain.
const MANY: usize = 100;

/// Scans the records, and calls `change` after each record. Returns the first `most` IDs.
fn passed(
    scan: impl FnOnce(&mut dyn FnMut(&str) -> bool) -> Result<(), Failure>,
    most: usize,
    mut change: impl FnMut(&str),
) -> Vec<String> {
    let mut ids = Vec::new();
    let all = scan(&mut |id| {
        ids.push(id.to_owned());
        change(id);
        ids.len() < most
    });
    all.unwrap();
    ids
}

fn numbered(kind: &str) -> Vec<String> {
    (0..MANY)
        .map(|number| format!("{kind}-{number:03}"))
        .collect()
}

#[test]
fn all_records_are_passed_on_once_and_in_order_while_the_ledger_can_be_used() {
    let bed = Bed::new();
    let store = bed.open();
    let (ledger, ids) = (&store.ledger, numbered("vol"));
    let record = |id: &str| Record::creating(&format!("pvc-{id}"), MIB, &Usage::Block, None);
    let filled = ledger.change(|changes| {
        let mut ids = ids.iter();
        ids.try_for_each(|id| changes.put(id, &record(id)))
    });
    filled.unwrap();
    let scan = |after: Option<&'static str>| {
        move |take: &mut dyn FnMut(&str) -> bool| {
            ledger.scan(after, |id, record| record.map(|_| take(id)))
        }
    };
    assert_eq!(passed(scan(None), usize::MAX, |_| ()), ids);
    assert_eq!(passed(scan(Some("vol-040")), 50, |_| ()), ids[41..91]);
    assert_eq!(passed(scan(Some("vol-099")), usize::MAX, |_| ()), [""; 0]);
    let forget = |id: &str| {
        assert!(ledger.get(id).unwrap().is_some());
        ledger.mend().unwrap();
        ledger.change(|changes| changes.forget(id)).unwrap();
    };
    assert_eq!(passed(scan(None), usize::MAX, forget), ids);
    assert_eq!(passed(scan(None), usize::MAX, |_| ()), [""; 0]);
}

#[test]
fn the_snapshots_of_a_volume_are_passed_on_once_and_in_order_without_those_of_others() {
    let bed = Bed::new();
    let store = bed.open();
    let (ledger, mut ids) = (&store.ledger, numbered("snap"));
    let volume = Record::creating("pvc-1", MIB, &Usage::Block, None);
    let filled = ledger.change(|changes| {
        let mut all = ids.iter().enumerate();
        all.try_for_each(|(number, id)| {
            let source = ["vol-2", "vol-1", "vol-3"][number % 3];
            changes.put_snapshot(id, &SnapshotRecord::cutting(id, source, &volume))
        })
    });
    filled.unwrap();
    let scan = |of: Option<&'static str>, after: Option<&'static str>| {
        move |take: &mut dyn FnMut(&str) -> bool| {
            ledger.scan_snapshots(of, after, |id, record| record.map(|_| take(id)))
        }
    };
    let all = passed(scan(None, None), usize::MAX, |id| {
        assert!(ledger.snapshot(id).unwrap().is_some());
    });
    assert_eq!(all, ids);
    let mut number = 0;
    ids.retain(|_| {
        number += 1;
        number % 3 == 1
    });
    assert_eq!(passed(scan(Some("vol-2"), None), usize::MAX, |_| ()), ids);
    let rest = passed(scan(Some("vol-2"), Some("snap-003")), usize::MAX, |_| ());
    assert_eq!(rest, ids[2..]);
}
