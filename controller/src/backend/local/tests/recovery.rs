//! Tests a crash after every step of every change, and the recovery at the next start.

use super::{Bed, MIB, delete, ids, intended, order, snapshot_order};
use crate::backend::Volume;
use crate::backend::local::delete::Deletion;
use crate::backend::local::recover::Recovered;
use crate::backend::local::store::Store;
use belay_server::call::Kind;
use std::fs::{self, File};

#[test]
fn a_half_made_ledger_is_begun_again() {
    let bed = Bed::new();
    let draft = bed.dir.path().join("state/state.redb.new");
    fs::write(&draft, b"cut short").unwrap();
    let store = bed.open();
    store.create(&order("pvc-1", MIB), None).unwrap();
    assert!(!draft.exists());
}

#[test]
fn a_creation_that_died_after_any_step_leaves_nothing_and_frees_the_name() {
    type Step = fn(&Store, &str);
    let steps: [Step; 5] = [
        |_, _| {},
        |store, id| drop(store.files.begin(id).unwrap()),
        |store, id| store.files.get(id).unwrap().mark_new().unwrap(),
        |store, id| store.files.get(id).unwrap().grow(MIB).unwrap(),
        |store, _| store.files.sync().unwrap(),
    ];
    for died_after in 0..steps.len() {
        let bed = Bed::new();
        let store = bed.open();
        let id = intended(&store, &order("pvc-1", MIB));
        steps[..=died_after]
            .iter()
            .for_each(|step| step(&store, &id));
        drop(store);
        let (store, recovered) = bed.recover();
        assert_eq!(
            recovered,
            Recovered {
                undone: 1,
                ..Recovered::default()
            },
            "{died_after}"
        );
        assert_eq!(store.ledger.totals().unwrap().bytes, 0);
        assert!(bed.files().is_empty() && ids(&store).is_empty());
        let volume = store.create(&order("pvc-1", 2 * MIB), None).unwrap();
        assert_eq!(ids(&store), [volume.id.as_str()]);
    }
}

#[test]
fn a_creation_whose_file_holds_data_is_kept_and_told() {
    let bed = Bed::new();
    let store = bed.open();
    let id = intended(&store, &order("pvc-1", MIB));
    store.files.begin(&id).unwrap().grow(MIB).unwrap();
    bed.write(&id);
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            troubles: 1,
            ..Recovered::default()
        }
    );
    assert_eq!(bed.files(), [id.as_str()]);
    let failure = store.create(&order("pvc-1", MIB), None).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains(&id), "{failure}");
}

#[test]
fn a_deletion_that_died_after_any_step_is_finished() {
    type Step = fn(&Store, &str);
    let steps: [Step; 2] = [
        |store, id| store.begin_delete(id).unwrap(),
        |store, id| store.files.remove(id).unwrap(),
    ];
    for died_after in 0..steps.len() {
        let bed = Bed::new();
        let store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let id = volume.id.as_str();
        bed.write(id);
        steps[..=died_after]
            .iter()
            .for_each(|step| step(&store, id));
        assert_eq!(store.get(&volume.id).unwrap(), None);
        drop(store);
        let (store, recovered) = bed.recover();
        assert_eq!(
            recovered,
            Recovered {
                deleted: 1,
                ..Recovered::default()
            },
            "{died_after}"
        );
        assert!(bed.files().is_empty());
        assert_eq!(store.ledger.get(id).unwrap(), None);
        assert_eq!(store.ledger.totals().unwrap().bytes, 0);
    }
}

#[test]
fn a_name_whose_deletion_was_interrupted_is_made_anew_without_a_restart() {
    let bed = Bed::new();
    let store = bed.open();
    let old = store.create(&order("pvc-1", MIB), None).unwrap();
    store.begin_delete(old.id.as_str()).unwrap();
    let new = store.create(&order("pvc-1", MIB), None).unwrap();
    assert_ne!(old.id, new.id);
    assert_eq!(bed.files(), [new.id.as_str()]);
}

#[test]
fn a_creation_that_failed_half_way_is_made_anew_without_a_restart() {
    let bed = Bed::new();
    let store = bed.open();
    let old = intended(&store, &order("pvc-1", MIB));
    store.files.begin(&old).unwrap().grow(MIB).unwrap();
    let new = store.create(&order("pvc-1", MIB), None).unwrap();
    assert_ne!(old, new.id.as_str());
    assert_eq!(bed.files(), [new.id.as_str()]);
}

#[test]
fn a_name_that_is_being_made_or_whose_volume_is_being_deleted_is_busy() {
    let bed = Bed::new();
    let store = bed.open();
    let order = order("pvc-1", MIB);
    let old = store.create(&order, None).unwrap();
    let id = old.id.as_str();
    // The file is locked and the record is marked like this while a different thread runs
    // DeleteVolume.
    let deleting = store.files.get(id).unwrap();
    assert!(deleting.try_lock().unwrap());
    store.begin_delete(id).unwrap();
    assert_eq!(store.create(&order, None).unwrap_err().kind, Kind::Busy);
    assert_eq!(store.try_delete(id), Ok(Deletion::InUse));
    drop(deleting);
    // The name is reserved like this while a different thread runs CreateVolume.
    let guard = store.in_progress.begin("pvc-1").unwrap();
    assert_eq!(store.create(&order, None).unwrap_err().kind, Kind::Busy);
    drop(guard);
    let new = store.create(&order, None).unwrap();
    assert_eq!(bed.files(), [new.id.as_str()]);
    assert!(store.in_progress.begin("pvc-1").is_some());
}

#[test]
fn a_promised_growth_follows_at_the_next_start() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    promise(&store, &volume, 3 * MIB);
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            grown: 1,
            ..Recovered::default()
        }
    );
    let record = store.ledger.get(volume.id.as_str()).unwrap().unwrap();
    assert_eq!(record.growing_from, None);
    assert_eq!(
        fs::metadata(bed.file(volume.id.as_str())).unwrap().len(),
        3 * MIB
    );
    assert_eq!(store.get(&volume.id).unwrap().unwrap().bytes, 3 * MIB);
}

/// Performs only the first step of an expansion.
fn promise(store: &Store, volume: &Volume, bytes: u64) {
    let id = volume.id.as_str();
    let backing = store.files.get(id).unwrap();
    store.promise(id, bytes, &backing).unwrap();
}

#[test]
fn a_growth_that_died_after_any_step_is_finished_by_the_next_growth() {
    for steps in 0..3 {
        let bed = Bed::new();
        let store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let id = volume.id.as_str();
        promise(&store, &volume, 2 * MIB);
        promise(&store, &volume, 3 * MIB);
        let file = File::options().write(true).open(bed.file(id)).unwrap();
        match steps {
            0 => {}
            1 => file.set_len(3 * MIB).unwrap(),
            _ => store.files.get(id).unwrap().grow(3 * MIB).unwrap(),
        }
        assert!(store.health(&volume.id).unwrap().unwrap().is_empty());
        assert_eq!(store.resize(id, 2 * MIB).unwrap(), 3 * MIB);
        assert_eq!(fs::metadata(bed.file(id)).unwrap().len(), 3 * MIB);
        assert_eq!(store.ledger.get(id).unwrap().unwrap().growing_from, None);
        assert_eq!(store.files.recorded_bytes(id).unwrap(), 3 * MIB);
    }
}

#[test]
fn a_file_that_was_truncated_below_an_unfinished_growth_is_not_enlarged() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", 2 * MIB), None).unwrap();
    let id = volume.id.as_str();
    promise(&store, &volume, 3 * MIB);
    let file = File::options().write(true).open(bed.file(id)).unwrap();
    file.set_len(2 * MIB - 1).unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!((recovered.grown, recovered.troubles), (0, 1));
    assert_eq!(file.metadata().unwrap().len(), 2 * MIB - 1);
    let failure = store.resize(id, 3 * MIB).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    file.set_len(2 * MIB).unwrap();
    assert_eq!(store.resize(id, 3 * MIB).unwrap(), 3 * MIB);
}

#[test]
fn a_file_that_an_unfinished_growth_had_enlarged_is_not_enlarged_again_once_it_was_cut() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    promise(&store, &volume, 2 * MIB);
    store.files.get(id).unwrap().grow(2 * MIB).unwrap();
    drop(store);
    // The node stages the volume with its full size, a pod fills the volume, and then the file is
    // truncated.
    let file = File::options().write(true).open(bed.file(id)).unwrap();
    file.set_len(MIB).unwrap();
    let (store, recovered) = bed.recover();
    assert_eq!((recovered.grown, recovered.troubles), (0, 1));
    let refusals = [
        store.resize(id, 2 * MIB).map(drop),
        store.resize(id, 3 * MIB).map(drop),
        store.cut(&snapshot_order("snap", &volume)).map(drop),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap_err().kind, Kind::Precondition);
    }
    assert_eq!(file.metadata().unwrap().len(), MIB);
    assert!(!store.health(&volume.id).unwrap().unwrap().is_empty());
    // The file was restored, or enlarged by hand.
    file.set_len(2 * MIB).unwrap();
    assert_eq!(store.resize(id, 3 * MIB).unwrap(), 3 * MIB);
    assert!(store.health(&volume.id).unwrap().unwrap().is_empty());
}

#[test]
fn a_growth_for_which_there_was_no_room_leaves_no_note_of_it() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let beyond = store.largest_file_bytes + 1;
    let backing = store.files.get(id).unwrap();
    assert!(backing.grow(beyond).is_err());
    promise(&store, &volume, 2 * MIB);
    drop(store);
    let (_, recovered) = bed.recover();
    assert_eq!((recovered.grown, recovered.troubles), (1, 0));
}

#[test]
fn a_short_file_whose_record_knows_of_no_growth_is_left_as_it_is() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", 2 * MIB), None).unwrap();
    let id = volume.id.as_str();
    promise(&store, &volume, 3 * MIB);
    // The state is as if the file were truncated after the expansion.
    let old = store.ledger.change(|changes| {
        let mut record = changes.get(id)?.unwrap();
        record.growing_from = None;
        changes.put(id, &record)
    });
    old.unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!((recovered.grown, recovered.troubles), (0, 1));
    assert_eq!(fs::metadata(bed.file(id)).unwrap().len(), 2 * MIB);
    assert_eq!(
        store.resize(id, 3 * MIB).unwrap_err().kind,
        Kind::Precondition
    );
    // The documentation advises to enlarge the file.
    let file = File::options().write(true).open(bed.file(id)).unwrap();
    file.set_len(3 * MIB).unwrap();
    assert_eq!(store.resize(id, 3 * MIB).unwrap(), 3 * MIB);
    assert!(store.health(&volume.id).unwrap().unwrap().is_empty());
}

#[test]
fn a_volume_without_its_file_is_kept_and_every_verb_names_the_path() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    fs::remove_file(bed.file(id)).unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            troubles: 1,
            ..Recovered::default()
        }
    );
    let failures = [
        delete(&store, id).unwrap_err(),
        store.resize(id, 2 * MIB).unwrap_err(),
    ];
    for failure in failures {
        assert_eq!(failure.kind, Kind::Precondition);
        assert!(
            failure.message.contains(&format!("state/volumes/{id}")),
            "{failure}"
        );
    }
    // The error message advises to create an empty file.
    File::create(bed.file(id)).unwrap();
    delete(&store, id).unwrap();
    assert!(ids(&store).is_empty());
}

#[test]
fn a_stray_file_is_never_touched() {
    let bed = Bed::new();
    drop(bed.open());
    fs::write(
        bed.file("vol-00000000000000000000000000000000"),
        b"precious",
    )
    .unwrap();
    let (_store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            troubles: 1,
            ..Recovered::default()
        }
    );
    let kept = fs::read(bed.file("vol-00000000000000000000000000000000")).unwrap();
    assert_eq!(kept, b"precious");
}

#[test]
fn a_database_without_the_tables_of_this_release_is_refused() {
    use redb::{Database, TableDefinition};
    const VOLUMES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("volumes");
    let bed = Bed::new();
    drop(bed.open());
    let path = bed.dir.path().join("state/state.redb");
    fs::remove_file(&path).unwrap();
    {
        let other = Database::create(&path).unwrap();
        let page = other.begin_write().unwrap();
        page.open_table(VOLUMES).unwrap();
        page.commit().unwrap();
    }
    let refused = super::opened(&bed.config()).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("run the release"), "{refused}");
}
