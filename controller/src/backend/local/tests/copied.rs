//! Tests of snapshots on a filesystem that cannot share blocks. The snapshots' files are filled in
//! the background. The tests do the work of the copier, the thread that makes copies in the
//! background.

use super::{
    Bed, MIB, cut, delete, ids, intended_snapshot, of_volume, opened, order, snapshot_order,
};
use crate::backend::Volume;
use crate::backend::local::files::Files;
use crate::backend::local::recover::Recovered;
use crate::backend::local::snapshot::SnapshotState;
use crate::backend::local::store::Store;
use belay_contract::drivers::local::{CLAIM, Claim};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, SnapshotId};
use std::fs::{self, File};
use std::path::Path;

/// Creates a snapshot whose copy is queued for the copier. A filesystem with reflinks needs no such
/// copy.
pub(super) fn left_to_copier(bed: &Bed, store: &Store, volume: &Volume) -> SnapshotId {
    let order = snapshot_order("snap", volume);
    let id = intended_snapshot(store, &order);
    drop(store.snapshots.begin(&id).unwrap());
    let from = store.files.get_for_reading(volume.id.as_str()).unwrap();
    let snapshot = store
        .leave_to_copier(&id, volume.id.as_str(), &from)
        .unwrap();
    assert!(!snapshot.ready && bed.snapshot_file(&id).exists());
    snapshot.id
}

fn claimed(store: &Store, volume: &Volume) -> Option<Claim> {
    let file = store.files.get_for_reading(volume.id.as_str()).unwrap();
    file.claimed().unwrap()
}

fn copy_of(id: &SnapshotId) -> Option<Claim> {
    Some(Claim::Copy(id.as_str().to_owned()))
}

/// Opens a store with a volume that holds data.
fn made(bed: &Bed) -> (Store, Volume) {
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    (store, volume)
}

fn copy_next(store: &Store) -> Result<(), Failure> {
    store.copy_snapshot(&store.copies.next().unwrap())
}

super::everywhere! {
    while_it_is_copied_a_volume_is_claimed_and_not_deleted,
    while_it_is_copied_no_other_copy_of_a_volume_begins,
    while_it_is_copied_a_volume_keeps_its_size,
    while_it_is_expanded_no_copy_of_a_volume_begins,
    a_plain_copy_of_what_a_device_may_write_to_is_refused_with_a_way_out,
    a_copy_that_died_begins_again_and_its_volume_waits_for_it,
    a_copy_that_was_never_queued_begins_with_the_next_call,
    a_copy_that_lost_its_claim_is_never_made_again,
    a_failed_copy_is_told_to_every_caller_and_frees_its_volume,
    a_claim_whose_end_died_is_ended_by_the_next_start,
    a_snapshot_that_is_still_copied_can_be_deleted,
}

fn while_it_is_copied_a_volume_is_claimed_and_not_deleted(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    assert_eq!(claimed(&store, &volume), copy_of(&id));
    let refused = delete(&store, volume.id.as_str()).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains(id.as_str()), "{refused}");
    let bound = File::open(bed.file(volume.id.as_str())).unwrap();
    assert!(bound.try_lock().is_err(), "the node cannot bind it either");
    let source = ContentSource::Snapshot(id.clone());
    let refused = store
        .create(&order("pvc-2", MIB), Some(&source))
        .unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert_eq!(ids(&store), [volume.id.as_str()]);
    copy_next(&store).unwrap();
    assert!(store.snapshot(&id).unwrap().unwrap().ready);
    assert_eq!(claimed(&store, &volume), None);
    store.create(&order("pvc-2", MIB), Some(&source)).unwrap();
    bound.try_lock().unwrap();
}

fn while_it_is_copied_no_other_copy_of_a_volume_begins(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let first = left_to_copier(&bed, &store, &volume);
    // Blocks are not shared with a file of another filesystem.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let elsewhere = Files::open(memory.path().join("files")).unwrap();
    let file = elsewhere.begin("vol-2").unwrap();
    let clone = store.fill("vol-2", &file, MIB, &of_volume(&volume).unwrap());
    let other = intended_snapshot(&store, &snapshot_order("other", &volume));
    drop(store.snapshots.begin(&other).unwrap());
    let from = store.files.get_for_reading(volume.id.as_str()).unwrap();
    let cut = || store.leave_to_copier(&other, volume.id.as_str(), &from);
    for refused in [clone.map(drop), cut().map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, Kind::Busy, "{refused}");
        assert!(refused.message.contains(first.as_str()), "{refused}");
    }
    assert_eq!(claimed(&store, &volume), copy_of(&first));
    copy_next(&store).unwrap();
    assert!(!cut().unwrap().ready);
    copy_next(&store).unwrap();
    assert_eq!(claimed(&store, &volume), None);
}

fn while_it_is_copied_a_volume_keeps_its_size(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    let grow = |bytes| store.resize(volume.id.as_str(), bytes);
    let refused = grow(2 * MIB).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    assert!(refused.message.contains(id.as_str()), "{refused}");
    assert_eq!(grow(MIB), Ok(MIB));
    copy_next(&store).unwrap();
    assert!(store.snapshot(&id).unwrap().unwrap().ready);
    assert_eq!(grow(2 * MIB), Ok(2 * MIB));
}

fn while_it_is_expanded_no_copy_of_a_volume_begins(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = volume.id.as_str();
    let backing = store.files.get(id).unwrap();
    store.promise(id, 2 * MIB, &backing).unwrap();
    drop(backing);
    let snapshot = intended_snapshot(&store, &snapshot_order("snap", &volume));
    drop(store.snapshots.begin(&snapshot).unwrap());
    let from = store.files.get_for_reading(id).unwrap();
    let cut = store.leave_to_copier(&snapshot, id, &from);
    let failure = cut.unwrap_err();
    assert_eq!(failure.kind, Kind::Busy, "{failure}");
    assert_eq!(store.copies.reading(id), None);
    assert_eq!(store.resize(id, 2 * MIB), Ok(2 * MIB));
    let cut = store.leave_to_copier(&snapshot, id, &from).unwrap();
    assert_eq!((cut.ready, cut.bytes), (false, 2 * MIB));
}

fn a_plain_copy_of_what_a_device_may_write_to_is_refused_with_a_way_out(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = volume.id.as_str();
    let bound = File::open(bed.file(id)).unwrap();
    bound.try_lock().unwrap();
    let failure = store.lock_source("snap-1", id).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    for word in ["loop device", "inconsistent", "xfs", "delete the pods"] {
        assert!(failure.message.contains(word), "{failure}");
    }
    drop(bound);
    store.lock_source("snap-1", id).unwrap();
}

fn a_copy_that_died_begins_again_and_its_volume_waits_for_it(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    let created = store.snapshot(&id).unwrap().unwrap().created;
    fs::write(bed.snapshot_file(id.as_str()), b"half").unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    let expected = Recovered {
        resumed: 1,
        ..Recovered::default()
    };
    assert_eq!(recovered, expected);
    assert_eq!(claimed(&store, &volume), copy_of(&id));
    let refused = delete(&store, volume.id.as_str()).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(!store.cut(&snapshot_order("snap", &volume)).unwrap().ready);
    copy_next(&store).unwrap();
    let snapshot = store.snapshot(&id).unwrap().unwrap();
    assert!(snapshot.ready);
    assert_eq!(snapshot.created, created, "no program could write since");
    assert_eq!(claimed(&store, &volume), None);
    let [is, should] = [bed.snapshot_file(id.as_str()), bed.file(volume.id.as_str())];
    assert!(fs::read(is).unwrap() == fs::read(should).unwrap());
}

/// The snapshot is recorded as taken, but the call has failed.
fn a_copy_that_was_never_queued_begins_with_the_next_call(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    store.copies.end(id.as_str());
    let refused = delete(&store, volume.id.as_str()).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains(id.as_str()), "{refused}");
    let wanted = snapshot_order("snap", &volume);
    for _ in 0..2 {
        assert!(!store.cut(&wanted).unwrap().ready);
    }
    copy_next(&store).unwrap();
    assert!(store.cut(&wanted).unwrap().ready);
    assert_eq!(claimed(&store, &volume), None);
    delete(&store, volume.id.as_str()).unwrap();
}

/// Without the claim on the file, the node could have used the volume while no controller was
/// running.
fn a_copy_that_lost_its_claim_is_never_made_again(folder: &Path) {
    type Loss = fn(&Path);
    let losses: [Loss; 3] = [
        |file| rustix::fs::removexattr(file, CLAIM).unwrap(),
        |file| {
            let copy = file.with_extension("copy");
            fs::copy(file, &copy).unwrap();
            fs::rename(&copy, file).unwrap();
        },
        |file| fs::remove_file(file).unwrap(),
    ];
    for lose in losses {
        let bed = Bed::beneath(folder);
        let (store, volume) = made(&bed);
        let id = left_to_copier(&bed, &store, &volume);
        drop(store);
        lose(&bed.file(volume.id.as_str()));
        for _ in 0..2 {
            let store = opened(&bed.config()).unwrap();
            assert_eq!(store.recover().unwrap().resumed, 1);
            assert_eq!(copy_next(&store).unwrap_err().kind, Kind::Precondition);
            for _ in 0..2 {
                let failure = store.cut(&snapshot_order("snap", &volume)).unwrap_err();
                assert_eq!(failure.kind, Kind::Precondition);
                let way_out = "delete the snapshot and create another";
                assert!(failure.message.contains(way_out), "{failure}");
            }
            assert!(!store.snapshot(&id).unwrap().unwrap().ready);
        }
        let store = bed.open();
        store.discard(id.as_str()).unwrap();
        assert_eq!(bed.snapshot_files(), 0);
    }
}

fn a_failed_copy_is_told_to_every_caller_and_frees_its_volume(folder: &Path) {
    let bed = Bed::beneath(folder);
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    let path = bed.snapshot_file(id.as_str());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    copy_next(&store).unwrap_err();
    let wanted = snapshot_order("snap", &volume);
    for _ in 0..2 {
        let failure = store.cut(&wanted).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition);
        assert!(failure.message.contains(id.as_str()), "{failure}");
    }
    fs::remove_dir(&path).unwrap();
    store.cut(&wanted).unwrap_err();
    assert_eq!(claimed(&store, &volume), None);
    assert_eq!(store.copies.reading(volume.id.as_str()), None);
    let bound = File::open(bed.file(volume.id.as_str())).unwrap();
    bound.try_lock().unwrap();
    drop(bound);
    store.resize(volume.id.as_str(), 2 * MIB).unwrap();
    // The error message advises to delete the snapshot.
    store.discard(id.as_str()).unwrap();
    let new = cut(&store, &wanted);
    assert!(new.ready && new.id != id);
    assert_eq!(new.bytes, 2 * MIB);
}

/// The copier removes the claim on the file only after it has recorded that the snapshot is ready.
/// If a crash happens before the removal, the next start removes the claim, since the file of the
/// snapshot is complete.
fn a_claim_whose_end_died_is_ended_by_the_next_start(folder: &Path) {
    for is_recorded in [true, false] {
        let bed = Bed::beneath(folder);
        let (store, volume) = made(&bed);
        let id = left_to_copier(&bed, &store, &volume);
        copy_next(&store).unwrap();
        let claim = copy_of(&id).unwrap();
        let file = store.files.get(volume.id.as_str()).unwrap();
        file.claim(&claim).unwrap();
        if !is_recorded {
            let forgotten = store.ledger.change(|changes| {
                let mut record = changes.snapshot(id.as_str())?.unwrap();
                record.state = SnapshotState::Copying;
                changes.put_snapshot(id.as_str(), &record)
            });
            forgotten.unwrap();
        }
        drop((store, file));
        let (store, recovered) = bed.recover();
        assert_eq!((recovered.resumed, recovered.troubles), (0, 0));
        assert!(store.snapshot(&id).unwrap().unwrap().ready);
        assert_eq!(claimed(&store, &volume), None, "{is_recorded}");
    }
}

fn a_snapshot_that_is_still_copied_can_be_deleted(folder: &Path) {
    for is_restarted in [false, true] {
        let bed = Bed::beneath(folder);
        let (mut store, volume) = made(&bed);
        let id = left_to_copier(&bed, &store, &volume);
        if is_restarted {
            drop(store);
            store = bed.open();
        }
        store.discard(id.as_str()).unwrap();
        assert_eq!(bed.snapshot_files(), 0);
        assert_eq!(claimed(&store, &volume), None);
        delete(&store, volume.id.as_str()).unwrap();
    }
}
