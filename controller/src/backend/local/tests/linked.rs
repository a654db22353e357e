//! Files to which another program has added names, as a deduplicating tool does.

use super::{Bed, MIB, cut, delete, of_snapshot, of_volume, order, snapshot_order};
use crate::backend::local::store::Store;
use crate::backend::{Snapshot, Volume};
use belay_contract::reason::volume;
use belay_server::call::{Failure, Kind};
use std::fs;
use std::path::Path;

/// Replaces a file with a hard link to another file.
fn dedup(kept: &Path, replaced: &Path) {
    fs::remove_file(replaced).unwrap();
    fs::hard_link(kept, replaced).unwrap();
}

/// Replaces a hard link with a separate file, as the error message advises.
fn separate(file: &Path) {
    let new = file.with_extension("new");
    fs::copy(file, &new).unwrap();
    fs::rename(&new, file).unwrap();
}

#[track_caller]
fn expect_linked<T: std::fmt::Debug>(answer: Result<T, Failure>, file: &Path) {
    let failure = answer.unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    let begin = format!("{}: has ", file.display());
    assert!(failure.message.starts_with(&begin), "{failure}");
    assert!(failure.message.contains("names (hard links)"), "{failure}");
}

fn is_foreign(store: &Store, volume: &Volume) -> bool {
    let conditions = store.health(&volume.id).unwrap().unwrap();
    let mut conditions = conditions.iter();
    conditions.any(|it| it.reason == volume::BACKING_FILE_FOREIGN)
}

#[test]
fn two_volumes_that_are_one_file_are_refused_by_every_verb_until_they_are_two_again() {
    let bed = Bed::new();
    let store = bed.open();
    let pair = ["pvc-1", "pvc-2"].map(|name| store.create(&order(name, MIB), None).unwrap());
    let files = [&pair[0], &pair[1]].map(|volume| bed.file(volume.id.as_str()));
    dedup(&files[0], &files[1]);
    for (volume, file) in pair.iter().zip(&files) {
        let id = volume.id.as_str();
        expect_linked(store.resize(id, 2 * MIB), file);
        expect_linked(store.cut(&snapshot_order("snap", volume)), file);
        let clone = store.create(&order("pvc-3", MIB), of_volume(volume).as_ref());
        expect_linked(clone, file);
        expect_linked(delete(&store, id), file);
        assert!(is_foreign(&store, volume));
    }
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(recovered.troubles, 2);
    separate(&files[0]);
    for volume in &pair {
        let id = volume.id.as_str();
        assert!(!is_foreign(&store, volume));
        store.resize(id, 2 * MIB).unwrap();
        delete(&store, id).unwrap();
    }
    assert!(bed.files().is_empty());
}

/// The file gets a second name between the two steps of the deletion. The deletion is repeated by a
/// call, and by a start of the controller.
#[test]
fn a_deletion_that_died_keeps_a_file_that_may_be_another_volumes() {
    let bed = Bed::new();
    let store = bed.open();
    let [one, other] =
        ["pvc-1", "pvc-2"].map(|name| store.create(&order(name, MIB), None).unwrap());
    let files = [&one, &other].map(|volume| bed.file(volume.id.as_str()));
    store.begin_delete(one.id.as_str()).unwrap();
    dedup(&files[1], &files[0]);
    expect_linked(delete(&store, one.id.as_str()), &files[0]);
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!((recovered.deleted, recovered.troubles), (0, 2));
    separate(&files[0]);
    delete(&store, one.id.as_str()).unwrap();
    store.resize(other.id.as_str(), 2 * MIB).unwrap();
}

#[test]
fn a_snapshot_that_is_the_file_of_its_volume_is_damaged_and_not_deleted() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    let file = bed.snapshot_file(snapshot.id.as_str());
    dedup(&bed.file(volume.id.as_str()), &file);
    let seen = |store: &Store| -> Snapshot { store.snapshot(&snapshot.id).unwrap().unwrap() };
    let damaged = seen(&store);
    assert!(!damaged.ready);
    assert!(
        damaged
            .damage
            .unwrap()
            .contains("has 2 names (hard links) instead of one")
    );
    let restored = store.create(&order("pvc-2", MIB), of_snapshot(&snapshot).as_ref());
    expect_linked(restored, &file);
    expect_linked(store.discard(snapshot.id.as_str()), &file);
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered.troubles, 2,
        "the volume's file and the snapshot's"
    );
    separate(&file);
    assert!(seen(&store).ready);
    let restored = store.create(&order("pvc-2", MIB), of_snapshot(&snapshot).as_ref());
    restored.unwrap();
    store.discard(snapshot.id.as_str()).unwrap();
}
