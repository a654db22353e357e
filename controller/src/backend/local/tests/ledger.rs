//! The database file: created once, never created again in place of a lost one.

use super::{Bed, MIB, order, snapshot_order};
use crate::backend::local::store::Store;
use belay_server::call::{Certainty, Kind};
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
    let failure = Store::open(bed.config()).unwrap_err();
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
    let failure = Store::open(bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    for named in ["state.redb", volume.id.as_str(), "restore"] {
        assert!(failure.message.contains(named), "{failure}");
    }
    assert!(!state.exists());
    fs::write(&state, b"").unwrap();
    let failure = Store::open(bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable, "truncated counts as lost");
    fs::rename(&kept, &state).unwrap();
    assert_eq!(bed.open().get(&volume.id).unwrap(), Some(volume));
}

#[test]
fn snapshots_whose_ledger_is_lost_are_not_taken_for_deleted() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let snapshot = store.cut(&snapshot_order("snap", &volume)).unwrap();
    store.copies.cancel(snapshot.id.as_str());
    store.delete(volume.id.as_str()).unwrap();
    drop(store);
    fs::remove_file(state_file(&bed)).unwrap();
    let failure = Store::open(bed.config()).unwrap_err();
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

/// What has the name cannot be looked up, so an earlier call may have created it.
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
    // An index that names a record which is lost.
    store.ledger.lose_records();
    expect(Kind::Bug);
}
