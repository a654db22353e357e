//! A volume or snapshot that was once ready remains complete even if its record is out of date,
//! after a restore of state.redb or a crash before the last step.

use super::copied::left_to_copier;
use super::emptied::{empty, written};
use super::{Bed, MIB, ids, of_volume, order, snapshot_order};
use crate::backend::local::files::Use;
use crate::backend::local::record::State;
use crate::backend::local::snapshot::SnapshotState;
use crate::backend::local::store::Store;
use std::fs;
use std::path::Path;

/// Changes a record as if the volume were still being created.
fn forget_clone(store: &Store, id: &str) {
    let forgotten = store.ledger.change(|changes| {
        let mut record = changes.get(id)?.unwrap();
        record.state = State::Creating;
        changes.put(id, &record)
    });
    forgotten.unwrap();
}

/// Changes a record as if the snapshot were in this state.
fn forget_snapshot(store: &Store, id: &str, state: SnapshotState) {
    let forgotten = store.ledger.change(|changes| {
        let mut record = changes.snapshot(id)?.unwrap();
        record.state = state;
        changes.put_snapshot(id, &record)
    });
    forgotten.unwrap();
}

super::everywhere! {
    a_clone_that_was_ready_once_is_kept_with_what_was_written_since,
    a_snapshot_that_was_ready_once_is_not_copied_again,
    the_file_of_a_snapshot_says_its_size_and_whether_its_volume_was_ever_used,
}

fn a_clone_that_was_ready_once_is_kept_with_what_was_written_since(folder: &Path) {
    for again in ["the next start", "the next call"] {
        let bed = Bed::beneath(folder);
        let mut store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        bed.write(volume.id.as_str());
        let wanted = order("pvc-2", MIB);
        let made = store.create(&wanted, of_volume(&volume).as_ref()).unwrap();
        let id = made.id.as_str();
        fs::write(bed.file(id), vec![7; 1 << 20]).unwrap();
        forget_clone(&store, id);
        if again == "the next start" {
            drop(store);
            let recovered;
            (store, recovered) = bed.recover();
            assert_eq!((recovered.completed, recovered.undone), (1, 0), "{again}");
            assert_eq!(ids(&store).len(), 2, "{again}");
        }
        let found = store.create(&wanted, of_volume(&volume).as_ref()).unwrap();
        assert_eq!(found.id.as_str(), id, "{again}");
        assert!(fs::read(bed.file(id)).unwrap() == vec![7; 1 << 20]);
    }
}

fn a_snapshot_that_was_ready_once_is_not_copied_again(folder: &Path) {
    for again in ["the next start", "the next call"] {
        for state in [SnapshotState::Cutting, SnapshotState::Copying] {
            let bed = Bed::beneath(folder);
            let mut store = bed.open();
            let volume = store.create(&order("pvc-1", MIB), None).unwrap();
            bed.write(volume.id.as_str());
            let id = left_to_copier(&bed, &store, &volume);
            store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
            let file = bed.snapshot_file(id.as_str());
            let whole = fs::read(&file).unwrap();
            let cut = store.snapshot(&id).unwrap().unwrap().created;
            let written = fs::metadata(&file).unwrap().modified().unwrap();
            fs::write(bed.file(volume.id.as_str()), vec![7; 1 << 20]).unwrap();
            forget_snapshot(&store, id.as_str(), state);
            if again == "the next start" {
                drop(store);
                let recovered;
                (store, recovered) = bed.recover();
                assert_eq!(
                    (recovered.completed, recovered.resumed),
                    (1, 0),
                    "{state:?}"
                );
            } else if state == SnapshotState::Copying {
                store.copies.queue(id.as_str(), volume.id.as_str(), None);
                store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
            }
            let found = store.cut(&snapshot_order("snap", &volume)).unwrap();
            assert_eq!((found.id, found.ready), (id, true), "{again} {state:?}");
            let created = match state {
                SnapshotState::Cutting => written,
                _ => cut,
            };
            assert_eq!(found.created, created, "{again} {state:?}");
            assert!(fs::read(&file).unwrap() == whole, "{again} {state:?}");
        }
    }
}

/// If blocks are shared, a crash after the blocks were cloned, but before this is recorded, leaves
/// only the attributes of the file.
fn the_file_of_a_snapshot_says_its_size_and_whether_its_volume_was_ever_used(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let raw = |name| order(name, MIB);
    let [now, never] = ["now", "never"].map(|name| store.create(&raw(name), None).unwrap());
    bed.write(now.id.as_str());
    // The user of the volume has discarded all blocks since.
    let once = written(&bed, &store, &raw("once"));
    empty(&bed.file(once.id.as_str()));
    for (volume, used) in [(now, Use::Used), (once, Use::Used), (never, Use::New)] {
        let order = snapshot_order(volume.id.as_str(), &volume);
        let snapshot = super::cut(&store, &order);
        let file = store.snapshots.get(snapshot.id.as_str()).unwrap();
        assert_eq!(file.use_so_far(), Ok(used), "{volume:?}");
        assert_eq!(file.recorded_bytes(), Ok(Some(MIB)), "{volume:?}");
    }
}
