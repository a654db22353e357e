//! Calls that are made between two steps of a different call.

use super::{Bed, MIB, cut, of_snapshot, order, snapshot_order};
use crate::backend::local::files::Files;
use crate::backend::local::files::journal::{Call, before};
use crate::backend::local::store::Store;
use belay_server::call::Kind;
use belay_server::request::SnapshotId;
use std::path::Path;
use std::sync::Arc;

super::everywhere! {
    a_snapshot_that_is_deleted_before_it_is_opened_is_not_found_rather_than_lost,
    a_snapshot_that_is_deleted_before_its_copy_begins_is_not_copied,
}

/// Opens a store with a snapshot of a volume with data.
fn with_snapshot(bed: &Bed) -> (Arc<Store>, SnapshotId) {
    let store = Arc::new(bed.open());
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    (store, snapshot.id)
}

/// Lets a different call delete the snapshot immediately before this step.
fn discard_before(call: Call, store: &Arc<Store>, id: &SnapshotId) {
    let (store, id) = (Arc::clone(store), id.clone());
    before(call, move || store.discard(id.as_str()).unwrap());
}

fn a_snapshot_that_is_deleted_before_it_is_opened_is_not_found_rather_than_lost(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, id) = with_snapshot(&bed);
    let snapshot = store.snapshot(&id).unwrap().unwrap();
    let path = bed.snapshot_file(id.as_str());
    discard_before(Call::Open(path), &store, &id);
    let source = of_snapshot(&snapshot);
    let failure = store.create(&order("pvc-2", MIB), source.as_ref());
    let failure = failure.unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound, "{failure}");
    assert_eq!(bed.files().len(), 1, "that of pvc-1");
}

fn a_snapshot_that_is_deleted_before_its_copy_begins_is_not_copied(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, id) = with_snapshot(&bed);
    let snapshot = store.snapshot(&id).unwrap().unwrap();
    let source = of_snapshot(&snapshot).unwrap();
    // Blocks are not shared with a file of another filesystem.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let elsewhere = Files::open(memory.path().join("files")).unwrap();
    let file = elsewhere.begin("vol-2").unwrap();
    discard_before(Call::Change(elsewhere.path_of("vol-2")), &store, &id);
    let failure = store.fill("vol-2", &file, MIB, &source).unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound, "{failure}");
    assert_eq!(file.bytes(), Ok(0));
}

/// The deletion ends between two steps of a call that creates a snapshot with the same name.
#[test]
fn a_snapshot_whose_deletion_has_ended_is_no_snapshot_to_complete() {
    let bed = Bed::new();
    let (store, id) = with_snapshot(&bed);
    store.begin_discard(id.as_str()).unwrap();
    assert_eq!(store.complete_whole_snapshot(id.as_str()), Ok(None));
    store.finish_discard(id.as_str()).unwrap();
    assert_eq!(store.complete_whole_snapshot(id.as_str()), Ok(None));
}
