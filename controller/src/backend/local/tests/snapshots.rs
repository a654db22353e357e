//! Snapshots and clones, on the filesystem of the temporary directory. If the filesystem cannot
//! share blocks, the tests do the work of the copier, the thread that makes copies in the
//! background.

use super::emptied::empty;
use super::{
    Bed, MIB, cut, delete, ids, intended_snapshot, of_snapshot, of_volume, order, snapshot_order,
};
use crate::backend::local::files::Use;
use crate::backend::local::recover::Recovered;
use crate::backend::local::snapshot::SnapshotState;
use crate::backend::local::store::Store;
use belay_contract::drivers::local::{Claim, NEW};
use belay_server::call::{Certainty, Kind};
use belay_server::request::VolumeId;
use rustix::fs::XattrFlags;
use std::fs;
use std::path::Path;

/// The value of the extended attribute while the node is formatting the file.
const UUID: &[u8] = b"7b0b2f4c-60a3-4b6e-9b0c-3b8d8a9f3f5e";

super::everywhere! {
    a_snapshot_holds_what_the_volume_held_and_survives_it,
    the_same_name_finds_the_same_cut_and_its_instant_stays,
    what_is_made_from_a_new_volume_is_new_and_from_any_other_used,
    a_volume_that_is_being_formatted_gives_no_half_made_filesystem,
    lists_have_filters_and_pages_and_know_their_own_tokens,
    snapshots_count_against_what_may_be_promised,
    a_cut_that_died_after_any_step_leaves_nothing_and_frees_the_name,
    a_failed_cut_that_cannot_be_removed_is_not_final_and_is_made_again,
    a_cut_that_failed_half_way_is_made_anew_without_a_restart,
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
    delete(&store, volume.id.as_str()).unwrap();
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
    delete(&store, one.id.as_str()).unwrap();
    assert_eq!(
        store.cut(&snapshot_order("snap", &one)),
        Ok(snapshot.clone())
    );
    drop(store);
    let store = bed.open();
    assert_eq!(store.snapshot(&snapshot.id), Ok(Some(snapshot)));
    assert_eq!(store.ledger.totals().unwrap().bytes, 2 * MIB);
}

fn what_is_made_from_a_new_volume_is_new_and_from_any_other_used(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let path = bed.file(volume.id.as_str());
    let set = |value: &[u8]| rustix::fs::setxattr(&path, NEW, value, XattrFlags::empty()).unwrap();
    let made = |name: &str| {
        let snapshot = cut(&store, &snapshot_order(&format!("{name}-snap"), &volume));
        let sources = [of_snapshot(&snapshot), of_volume(&volume)];
        sources.map(|source| {
            let name = format!("{name}-{source:?}");
            let volume = store
                .create(&order(&name, 2 * MIB), source.as_ref())
                .unwrap();
            let file = store.files.get(volume.id.as_str()).unwrap();
            assert_eq!(file.recorded_bytes(), Ok(Some(2 * MIB)), "{name}");
            file.use_so_far().unwrap()
        })
    };
    assert_eq!(made("empty"), [Use::New; 2]);
    // The node has begun to format the file, but has not written to it.
    set(UUID);
    assert_eq!(made("formatting"), [Use::New; 2]);
    set(b"1");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    assert_eq!(made("zeros"), [Use::New; 2]);
    empty(&path);
    set(b"0");
    assert_eq!(made("first used"), [Use::Used; 2]);
    bed.write(volume.id.as_str());
    assert_eq!(made("written"), [Use::Used; 2]);
    // The file contains only holes again, but the volume is no longer new.
    empty(&path);
    assert_eq!(made("discarded"), [Use::Used; 2]);
}

fn a_volume_that_is_being_formatted_gives_no_half_made_filesystem(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let path = bed.file(volume.id.as_str());
    bed.write(volume.id.as_str());
    rustix::fs::setxattr(&path, NEW, UUID, XattrFlags::empty()).unwrap();
    let refused = store.create(&order("pvc-2", MIB), of_volume(&volume).as_ref());
    assert_eq!(refused.unwrap_err().kind, Kind::Busy);
    // If blocks cannot be shared, the call that takes the snapshot is refused.
    let order = snapshot_order("snap", &volume);
    assert_eq!(store.cut(&order).unwrap_err().kind, Kind::Busy);
    assert_eq!((bed.files().len(), bed.snapshot_files()), (1, 0));
    let file = store.files.get_for_reading(volume.id.as_str()).unwrap();
    assert_eq!(file.claimed(), Ok(None));
    drop(file);
    rustix::fs::removexattr(&path, NEW).unwrap();
    assert!(cut(&store, &order).ready);
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

fn a_cut_that_died_after_any_step_leaves_nothing_and_frees_the_name(folder: &Path) {
    type Step = fn(&Store, &str);
    let steps: [Step; 4] = [
        |_, _| {},
        |store, id| drop(store.snapshots.begin(id).unwrap()),
        |store, id| store.snapshots.get(id).unwrap().enlarge(MIB).unwrap(),
        |store, id| {
            let source = store.ledger.snapshot(id).unwrap().unwrap().source;
            let claim = Claim::Copy(id.to_owned());
            store.files.get(&source).unwrap().claim(&claim).unwrap();
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
        let source = store.files.get_for_reading(volume.id.as_str()).unwrap();
        assert_eq!(source.claimed(), Ok(None), "{died_after}");
        assert!(cut(&store, &wanted).ready);
    }
}

fn a_cut_that_failed_half_way_is_made_anew_without_a_restart(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let wanted = snapshot_order("snap", &volume);
    let old = intended_snapshot(&store, &wanted);
    store.snapshots.begin(&old).unwrap().enlarge(MIB).unwrap();
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
    // A directory cannot be filled with data or unlinked.
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
        store.files.begin(&id).unwrap().enlarge(MIB).unwrap();
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
