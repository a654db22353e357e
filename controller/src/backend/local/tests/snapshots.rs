//! Snapshots and clones, on the filesystem of the temporary directory. If it cannot share blocks,
//! the tests do the work of the copier.

use super::{
    Bed, MIB, attach_order, cut, ids, intended_snapshot, node, of_snapshot, of_volume, order,
    snapshot_order,
};
use crate::backend::Volume;
use crate::backend::local::recover::Recovered;
use crate::backend::local::snapshot::SnapshotState;
use crate::backend::local::store::Store;
use belay_contract::publish_context::Content;
use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};
use std::fs::{self, File};
use std::path::Path;

fn content(store: &Store, volume: &Volume) -> Content {
    let content = store
        .attach(&attach_order(volume, "node-1"))
        .unwrap()
        .content;
    store.detach(volume.id.as_str(), &node("node-1")).unwrap();
    content
}

/// Creates a snapshot that waits for the copier, which does not happen with reflink.
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

super::everywhere! {
    a_snapshot_holds_what_the_volume_held_and_survives_it,
    the_same_name_finds_the_same_cut_and_its_instant_stays,
    what_is_made_from_a_new_volume_is_new_and_from_any_other_populated,
    lists_have_filters_and_pages_and_know_their_own_tokens,
    snapshots_count_against_what_may_be_promised,
    while_it_is_copied_a_volume_is_neither_attached_nor_deleted,
    two_copies_of_one_volume_share_its_lock,
    a_plain_copy_of_what_somebody_may_write_to_is_refused_with_a_way_out,
    a_cut_that_died_after_any_step_leaves_nothing_and_frees_the_name,
    a_failed_cut_that_cannot_be_removed_is_not_final_and_is_made_again,
    a_cut_that_failed_half_way_is_made_anew_without_a_restart,
    a_copy_that_died_begins_again_and_its_volume_waits_for_it,
    a_failed_copy_is_told_to_the_next_caller_and_repeated,
    a_failed_copy_keeps_its_volume_from_nobody_and_is_cut_anew_when_repeated,
    a_cut_that_is_made_again_counts_what_its_volume_has_grown_by,
    a_snapshot_that_is_still_copied_can_be_deleted,
    a_snapshot_that_is_read_from_is_not_deleted,
    a_deletion_that_died_after_any_step_is_finished,
    a_half_filled_volume_goes_although_it_holds_data,
    a_snapshot_without_its_file_is_kept_and_told,
}

fn a_snapshot_holds_what_the_volume_held_and_survives_it(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", 3 * MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let held = fs::read(bed.file(volume.id.as_str())).unwrap();
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    assert_eq!((snapshot.bytes, snapshot.ready), (3 * MIB, true));
    assert_eq!(snapshot.source, volume.id);
    fs::write(bed.file(volume.id.as_str()), b"overwritten").unwrap();
    store.delete(volume.id.as_str()).unwrap();
    assert!(fs::read(bed.snapshot_file(snapshot.id.as_str())).unwrap() == held);
    let restored = store
        .create(&order("pvc-2", 5 * MIB), of_snapshot(&snapshot).as_ref())
        .unwrap();
    assert_eq!(restored.source, of_snapshot(&snapshot));
    store.discard(snapshot.id.as_str()).unwrap();
    store.discard(snapshot.id.as_str()).unwrap();
    assert_eq!(bed.snapshot_files(), 0);
    let mut larger = held;
    larger.resize(usize::try_from(5 * MIB).unwrap(), 0);
    assert!(fs::read(bed.file(restored.id.as_str())).unwrap() == larger);
    assert_eq!(store.ledger.totals().unwrap().bytes, 5 * MIB);
}

fn the_same_name_finds_the_same_cut_and_its_instant_stays(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let [one, other] =
        ["pvc-1", "pvc-2"].map(|name| store.create(&order(name, MIB), None).unwrap());
    let snapshot = cut(&store, &snapshot_order("snap", &one));
    assert_eq!(
        store.cut(&snapshot_order("snap", &one)),
        Ok(snapshot.clone())
    );
    // The caller checks whether the snapshot belongs to another volume.
    assert_eq!(
        store.cut(&snapshot_order("snap", &other)),
        Ok(snapshot.clone())
    );
    store.delete(one.id.as_str()).unwrap();
    assert_eq!(
        store.cut(&snapshot_order("snap", &one)),
        Ok(snapshot.clone())
    );
    drop(store);
    let store = bed.open();
    assert_eq!(store.snapshot(&snapshot.id), Ok(Some(snapshot)));
    assert_eq!(store.ledger.totals().unwrap().bytes, 2 * MIB);
}

fn what_is_made_from_a_new_volume_is_new_and_from_any_other_populated(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let made = |name: &str| {
        let snapshot = cut(&store, &snapshot_order(&format!("{name}-snap"), &volume));
        let sources = [of_snapshot(&snapshot), of_volume(&volume)];
        let volumes = sources.map(|source| {
            let name = format!("{name}-{source:?}");
            store.create(&order(&name, MIB), source.as_ref()).unwrap()
        });
        volumes.map(|volume| content(&store, &volume))
    };
    assert_eq!(made("empty"), [Content::New; 2]);
    bed.write(volume.id.as_str());
    assert_eq!(made("written"), [Content::Populated; 2]);
    assert_eq!(content(&store, &volume), Content::Populated);
    // The file has only holes again, but the volume is not new.
    fs::File::create(bed.file(volume.id.as_str()))
        .unwrap()
        .set_len(MIB)
        .unwrap();
    assert_eq!(made("discarded"), [Content::Populated; 2]);
}

fn lists_have_filters_and_pages_and_know_their_own_tokens(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let [one, other] =
        ["pvc-1", "pvc-2"].map(|name| store.create(&order(name, MIB), None).unwrap());
    let mut all: Vec<_> = (0..7)
        .map(|n| {
            let volume = if n % 2 == 0 { &one } else { &other };
            cut(&store, &snapshot_order(&format!("snap-{n}"), volume))
        })
        .collect();
    all.sort_by(|a, b| a.id.as_str().cmp(b.id.as_str()));
    let paged = |of: Option<&VolumeId>, limit| {
        let (mut listed, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = store.list_snapshots(of, after.as_deref(), limit).unwrap();
            assert!(page.snapshots.len() <= limit);
            listed.extend(page.snapshots);
            after = page.next;
            if after.is_none() {
                return listed;
            }
        }
    };
    for limit in [1, 2, 3, 7, 100] {
        assert_eq!(paged(None, limit), all, "{limit}");
        for volume in [&one, &other] {
            let expected: Vec<_> = all
                .iter()
                .filter(|of| of.source == volume.id)
                .cloned()
                .collect();
            assert_eq!(paged(Some(&volume.id), limit), expected, "{limit}");
        }
    }
    let nobody = VolumeId::new("vol-0").unwrap();
    assert!(paged(Some(&nobody), 3).is_empty());
    for token in ["", "snap-1", one.id.as_str()] {
        let refused = store.list_snapshots(None, Some(token), 1).unwrap_err();
        assert_eq!(refused.kind, Kind::BadToken, "{token:?}");
    }
}

fn snapshots_count_against_what_may_be_promised(folder: &Path) {
    let mut bed = Bed::beneath(folder);
    let store = bed.open();
    let room = store.available_bytes(None).unwrap();
    drop(store);
    bed.overcommit = "1".parse().unwrap();
    let store = bed.open();
    let half = store.available_bytes(None).unwrap() / 5 * 3;
    assert!(half < room);
    let volume = store
        .create(&order("pvc-1", half - half % MIB), None)
        .unwrap();
    for refused in [
        store.cut(&snapshot_order("snap", &volume)).map(drop),
        store
            .create(&order("pvc-2", volume.bytes), of_volume(&volume).as_ref())
            .map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind, Kind::Quota);
    }
    assert_eq!(bed.snapshot_files(), 0);
    assert_eq!(store.ledger.totals().unwrap().snapshots, 0);
}

fn while_it_is_copied_a_volume_is_neither_attached_nor_deleted(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let id = left_to_copier(&bed, &store, &volume);
    let refused = store.attach(&attach_order(&volume, "node-1")).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);
    assert!(refused.message.contains(id.as_str()), "{refused}");
    let refused = store.delete(volume.id.as_str()).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    let bound = File::open(bed.file(volume.id.as_str())).unwrap();
    assert!(bound.try_lock().is_err(), "the node cannot bind it either");
    let source = super::ContentSource::Snapshot(id.clone());
    let refused = store
        .create(&order("pvc-2", MIB), Some(&source))
        .unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert_eq!(ids(&store), [volume.id.as_str()]);
    store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    assert!(store.snapshot(&id).unwrap().unwrap().ready);
    store.create(&order("pvc-2", MIB), Some(&source)).unwrap();
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    bound.try_lock().unwrap();
}

fn two_copies_of_one_volume_share_its_lock(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = left_to_copier(&bed, &store, &volume);
    let record = store.ledger.get(volume.id.as_str()).unwrap().unwrap();
    let second = store.lock_source(volume.id.as_str(), &record).unwrap();
    store.copies.end(id.as_str());
    let bound = File::open(bed.file(volume.id.as_str())).unwrap();
    assert!(bound.try_lock().is_err());
    drop(second);
    bound.try_lock().unwrap();
}

fn a_plain_copy_of_what_somebody_may_write_to_is_refused_with_a_way_out(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let refusal = || -> Failure {
        let record = store.ledger.get(id).unwrap().unwrap();
        store.lock_source(id, &record).unwrap_err()
    };
    let bound = File::open(bed.file(id)).unwrap();
    bound.try_lock().unwrap();
    let by_device = refusal();
    assert!(by_device.message.contains("loop device"), "{by_device}");
    drop(bound);
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let by_node = refusal();
    assert!(by_node.message.contains("node-1"), "{by_node}");
    for failure in [by_device, by_node] {
        assert_eq!(failure.kind, Kind::Precondition);
        for word in ["inconsistent", "xfs", "detach"] {
            assert!(failure.message.contains(word), "{failure}");
        }
    }
}

fn a_cut_that_died_after_any_step_leaves_nothing_and_frees_the_name(folder: &Path) {
    type Step = fn(&Store, &str);
    let steps: [Step; 3] = [
        |_, _| {},
        |store, id| drop(store.snapshots.begin(id).unwrap()),
        |store, id| {
            store
                .snapshots
                .find(id)
                .unwrap()
                .unwrap()
                .grow(MIB)
                .unwrap()
        },
    ];
    for died_after in 0..steps.len() {
        let bed = Bed::beneath(folder);
        let store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let wanted = snapshot_order("snap", &volume);
        let id = intended_snapshot(&store, &wanted);
        let guard = store.cutting.begin("snap").unwrap();
        assert_eq!(store.cut(&wanted).unwrap_err().kind, Kind::Busy);
        assert_eq!(store.discard(&id).unwrap_err().kind, Kind::Busy);
        drop(guard);
        steps[..=died_after]
            .iter()
            .for_each(|step| step(&store, &id));
        drop(store);
        let (store, recovered) = bed.recover();
        let expected = Recovered {
            undone: 1,
            ..Recovered::default()
        };
        assert_eq!(recovered, expected, "{died_after}");
        assert_eq!(
            (bed.snapshot_files(), store.ledger.snapshot(&id)),
            (0, Ok(None))
        );
        assert!(cut(&store, &wanted).ready);
    }
}

fn a_cut_that_failed_half_way_is_made_anew_without_a_restart(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let wanted = snapshot_order("snap", &volume);
    let old = intended_snapshot(&store, &wanted);
    store.snapshots.begin(&old).unwrap().grow(MIB).unwrap();
    let new = cut(&store, &wanted);
    assert_ne!(old, new.id.as_str());
    assert_eq!(store.ledger.snapshot(&old), Ok(None));
    assert_eq!(bed.snapshot_files(), 1);
}

fn a_failed_cut_that_cannot_be_removed_is_not_final_and_is_made_again(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let wanted = snapshot_order("snap", &volume);
    let old = intended_snapshot(&store, &wanted);
    // A directory can neither be filled nor unlinked.
    fs::create_dir(bed.snapshot_file(&old)).unwrap();
    let failure = store.fill_or_discard(&old, volume.id.as_str()).unwrap_err();
    assert_eq!(failure.certainty, Certainty::MayBeRunning);
    assert!(
        failure.message.contains("the cleanup failed too"),
        "{failure}"
    );
    assert!(store.cut(&wanted).is_err(), "the directory is still there");
    fs::remove_dir(bed.snapshot_file(&old)).unwrap();
    assert_ne!(cut(&store, &wanted).id.as_str(), old);
    assert_eq!(store.ledger.snapshot(&old), Ok(None));
}

fn a_copy_that_died_begins_again_and_its_volume_waits_for_it(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
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
    let refused = store.attach(&attach_order(&volume, "node-1")).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);
    store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    let snapshot = store.snapshot(&id).unwrap().unwrap();
    // Other programs could have written to the volume in between.
    assert!(snapshot.ready && snapshot.created > created);
    let [is, should] = [bed.snapshot_file(id.as_str()), bed.file(volume.id.as_str())];
    assert!(fs::read(is).unwrap() == fs::read(should).unwrap());
}

fn a_failed_copy_is_told_to_the_next_caller_and_repeated(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = left_to_copier(&bed, &store, &volume);
    fs::remove_file(bed.snapshot_file(id.as_str())).unwrap();
    fs::create_dir(bed.snapshot_file(id.as_str())).unwrap();
    let wanted = snapshot_order("snap", &volume);
    let copied = store.copy_snapshot(&store.copies.next().unwrap());
    assert!(copied.is_err());
    let failure = store.cut(&wanted).unwrap_err();
    assert!(failure.message.contains(id.as_str()), "{failure}");
    fs::remove_dir(bed.snapshot_file(id.as_str())).unwrap();
    assert!(!store.cut(&wanted).unwrap().ready, "queued again");
    store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    assert!(store.cut(&wanted).unwrap().ready);
}

fn a_failed_copy_keeps_its_volume_from_nobody_and_is_cut_anew_when_repeated(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let id = left_to_copier(&bed, &store, &volume);
    let created = store.snapshot(&id).unwrap().unwrap().created;
    let again = snapshot_order("snap", &volume);
    store.copies.fail(id.as_str(), Failure::busy("the disk"));
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    fs::write(bed.file(volume.id.as_str()), vec![7; 1 << 20]).unwrap();
    store.resize(volume.id.as_str(), 2 * MIB).unwrap();
    // A repetition while the volume is attached fails again, and releases the volume again.
    store.cut(&again).unwrap_err();
    let copied = store.copy_snapshot(&store.copies.next().unwrap());
    assert_eq!(copied.unwrap_err().kind, Kind::Precondition);
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    store.detach(volume.id.as_str(), &node("node-1")).unwrap();
    store.cut(&again).unwrap_err();
    store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    let snapshot = store.snapshot(&id).unwrap().unwrap();
    assert!(snapshot.ready && snapshot.created > created);
    assert_eq!(snapshot.bytes, 2 * MIB);
    let [is, should] = [bed.snapshot_file(id.as_str()), bed.file(volume.id.as_str())];
    assert!(fs::read(is).unwrap() == fs::read(should).unwrap());
}

fn a_cut_that_is_made_again_counts_what_its_volume_has_grown_by(folder: &Path) {
    let mut bed = Bed::beneath(folder);
    bed.overcommit = "1".parse().unwrap();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let id = left_to_copier(&bed, &store, &volume);
    store.copies.fail(id.as_str(), Failure::busy("the disk"));
    let most = store.available_bytes(None).unwrap() / 5 * 3;
    store.resize(volume.id.as_str(), most - most % MIB).unwrap();
    store.cut(&snapshot_order("snap", &volume)).unwrap_err();
    let copied = store.copy_snapshot(&store.copies.next().unwrap());
    assert_eq!(copied.unwrap_err().kind, Kind::Quota);
}

fn a_snapshot_that_is_still_copied_can_be_deleted(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = left_to_copier(&bed, &store, &volume);
    store.discard(id.as_str()).unwrap();
    assert_eq!(bed.snapshot_files(), 0);
    store.delete(volume.id.as_str()).unwrap();
}

fn a_snapshot_that_is_read_from_is_not_deleted(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    let id = snapshot.id.as_str();
    store.copies.begin("vol-2", id, None);
    let refused = store.discard(id).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("vol-2"), "{refused}");
    store.copies.end("vol-2");
    store.discard(id).unwrap();
}

fn a_deletion_that_died_after_any_step_is_finished(folder: &Path) {
    type Step = fn(&Store, &str);
    let steps: [Step; 2] = [
        |store, id| store.begin_discard(id).unwrap(),
        |store, id| store.snapshots.remove(id).unwrap(),
    ];
    for died_after in 0..steps.len() {
        let bed = Bed::beneath(folder);
        let store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let snapshot = cut(&store, &snapshot_order("snap", &volume));
        let id = snapshot.id.as_str();
        steps[..=died_after]
            .iter()
            .for_each(|step| step(&store, id));
        assert_eq!(store.snapshot(&snapshot.id), Ok(None));
        drop(store);
        let (store, recovered) = bed.recover();
        let expected = Recovered {
            deleted: 1,
            ..Recovered::default()
        };
        assert_eq!(recovered, expected, "{died_after}");
        assert_eq!(
            (bed.snapshot_files(), store.ledger.snapshot(id)),
            (0, Ok(None))
        );
    }
}

fn a_half_filled_volume_goes_although_it_holds_data(folder: &Path) {
    for again in ["the next start", "the next call"] {
        let bed = Bed::beneath(folder);
        let mut store = bed.open();
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let (wanted, source) = (order("pvc-2", MIB), of_volume(&volume));
        let super::Intent::Made(id) = store.intend(&wanted, source.as_ref()).unwrap() else {
            panic!("a new name")
        };
        store.files.begin(&id).unwrap().grow(MIB).unwrap();
        bed.write(&id);
        if again == "the next start" {
            drop(store);
            let recovered;
            (store, recovered) = bed.recover();
            let expected = Recovered {
                undone: 1,
                ..Recovered::default()
            };
            assert_eq!(recovered, expected);
            assert_eq!(ids(&store), [volume.id.as_str()]);
        }
        let made = store.create(&wanted, source.as_ref()).unwrap();
        assert_ne!(made.id.as_str(), id, "{again}");
        assert_eq!(bed.files().len(), 2, "{again}");
    }
}

fn a_snapshot_without_its_file_is_kept_and_told(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    fs::remove_file(bed.snapshot_file(snapshot.id.as_str())).unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(recovered.troubles, 1);
    let record = store
        .ledger
        .snapshot(snapshot.id.as_str())
        .unwrap()
        .unwrap();
    assert_eq!(record.state, SnapshotState::Ready);
    let source = of_snapshot(&snapshot);
    let refused = store
        .create(&order("pvc-2", MIB), source.as_ref())
        .unwrap_err();
    assert!(refused.message.contains("state/snapshots/"), "{refused}");
    store.discard(snapshot.id.as_str()).unwrap();
}
