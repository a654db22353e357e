//! Volumes, their capacity, and the totals over all of them.

use super::{Bed, MIB, cut, delete, ids, intended, opened, order, snapshot_order};
use crate::backend::local::record::State;
use crate::backend::local::space::ours;
use crate::backend::local::store::Store;
use crate::backend::local::{Config, Local, Overcommit};
use crate::backend::{Order, Sizes};
use belay_contract::topology::Topology;
use belay_server::call::{Certainty, Failure, Kind};
use belay_server::readiness::{Readiness, State as Ready};
use belay_server::request::{Name, TopologyRequirement};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

#[test]
fn a_volume_is_a_private_sparse_file_of_its_size() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", 5 * MIB), None).unwrap();
    let file = fs::metadata(bed.file(volume.id.as_str())).unwrap();
    assert_eq!((file.len(), file.blocks()), (5 * MIB, 0));
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    for private in ["state.redb", "lock"] {
        let file = fs::metadata(bed.dir.path().join("state").join(private)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{private}");
    }
    assert_eq!(
        store.find(&Name::new("pvc-1").unwrap()).unwrap(),
        Some(volume.clone())
    );
    assert_eq!(store.get(&volume.id).unwrap(), Some(volume));
}

#[test]
fn a_taken_name_gives_the_volume_that_has_it() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    assert_eq!(
        store.create(&order("pvc-1", 7 * MIB), None).unwrap(),
        volume
    );
    assert_eq!(bed.files().len(), 1);
}

#[test]
fn a_second_process_cannot_have_the_same_state_directory() {
    let bed = Bed::new();
    let _store = bed.open();
    let failure = Store::open(bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("state/lock"), "{failure}");
}

#[test]
fn an_unknown_volume_is_deleted_already() {
    let bed = Bed::new();
    let store = &bed.open();
    delete(store, "vol-0").unwrap();
    delete(store, "../state.redb").unwrap();
    assert_eq!(store.resize("vol-0", MIB).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn more_than_the_filesystem_holds_is_not_promised() {
    let bed = Bed {
        overcommit: Overcommit::default(),
        ..Bed::new()
    };
    let store = bed.open();
    let available = store.available_bytes(None).unwrap();
    // Changes of the free space by other programs during the test are far smaller.
    let most = available / 2;
    let failure = store
        .create(&order("pvc-1", available.saturating_mul(2)), None)
        .unwrap_err();
    assert_eq!(
        (failure.kind, failure.certainty),
        (Kind::Quota, Certainty::NothingHappened)
    );
    let volume = store.create(&order("pvc-2", most), None).unwrap();
    assert!(store.available_bytes(None).unwrap() < available - most / 2);
    let failure = store
        .resize(volume.id.as_str(), available.saturating_mul(2))
        .unwrap_err();
    assert_eq!(failure.kind, Kind::Quota);
    assert_eq!(store.get(&volume.id).unwrap().unwrap().bytes, most);
    assert!(bed.files().len() == 1);
}

#[test]
fn creates_expansions_and_deletes_do_not_scan_the_files() {
    let bed = Bed::new();
    let store = bed.open();
    let before = store.ceiling.scans();
    for number in 0..20 {
        let volume = store.create(&order(&format!("pvc-{number}"), MIB), None);
        let volume = volume.unwrap();
        store.resize(volume.id.as_str(), 2 * MIB).unwrap();
        if number % 2 == 0 {
            delete(&store, volume.id.as_str()).unwrap();
        }
    }
    assert_eq!(store.ceiling.scans(), before);
}

#[test]
fn a_create_for_another_node_is_refused_without_a_scan() {
    let bed = Bed::new();
    let config = Config {
        place: Topology::new("example.org/node", "here").ok(),
        ..bed.config()
    };
    let store = opened(&config).unwrap();
    store.recover().unwrap();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    // Some space was used after the last scan.
    bed.write(volume.id.as_str());
    let before = store.ceiling.scans();
    let there = Topology::new("example.org/node", "there").unwrap();
    let elsewhere = |name| Order {
        topology: Some(TopologyRequirement {
            requisite: vec![there.segments()],
            preferred: vec![],
        }),
        ..order(name, MIB)
    };
    let refused = store.create(&elsewhere("pvc-2"), None).unwrap_err();
    assert_eq!(refused.kind, Kind::Quota);
    assert!(refused.message.contains("accessibility_requirements"));
    assert_eq!(store.ceiling.scans(), before);
    // The volume already exists, so the repeated creation is not refused.
    let found = store.create(&elsewhere("pvc-1"), None).unwrap();
    assert_eq!(found.id, volume.id);
}

#[test]
fn a_query_soon_after_a_scan_needs_none() {
    let bed = Bed::new();
    let store = bed.open();
    store.create(&order("pvc-1", MIB), None).unwrap();
    store.ceiling().unwrap();
    let before = store.ceiling.scans();
    // After a scan of this duration, queries use its result as long as it is recent.
    store.ceiling.seem_slow(Duration::from_secs(1));
    store.available_bytes(None).unwrap();
    assert_eq!(store.ceiling.scans(), before);
    store.ceiling.seem_slow(Duration::ZERO);
    store.available_bytes(None).unwrap();
    assert_eq!(store.ceiling.scans(), before + 1);
    // If an estimate refuses a creation, the exact maximum is determined, even right after a scan.
    store.ceiling.seem_slow(Duration::from_secs(1));
    store.ceiling().unwrap();
    assert_eq!(store.ceiling.scans(), before + 2);
}

#[test]
fn the_blocks_of_removed_files_count_as_freed() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    let written = |path| fs::metadata(path).unwrap().blocks() * 512;
    let of_snapshot = written(bed.snapshot_file(snapshot.id.as_str()));
    let of_volume = written(bed.file(volume.id.as_str()));
    store.discard(snapshot.id.as_str()).unwrap();
    assert_eq!(store.ceiling.freed_bytes(), of_snapshot);
    delete(&store, volume.id.as_str()).unwrap();
    assert_eq!(store.ceiling.freed_bytes(), of_snapshot + of_volume);
    assert!(of_snapshot > 0 && of_volume > 0);
}

#[test]
fn space_that_was_freed_since_the_last_scan_is_provisioned() {
    let bed = Bed {
        overcommit: Overcommit::default(),
        ..Bed::new()
    };
    let store = bed.open();
    store.ceiling.seem_full();
    store.create(&order("pvc-1", MIB), None).unwrap();
}

#[test]
fn a_size_that_the_filesystem_has_not_is_undone_and_frees_the_name() {
    let bed = Bed::new();
    let store = bed.open();
    let too_large = store.largest_file_bytes + 1;
    if too_large > i64::MAX.unsigned_abs() {
        // The filesystem has no maximum file size.
        return;
    }
    let failure = store.create(&order("pvc-1", too_large), None).unwrap_err();
    assert_eq!(
        (failure.kind, failure.certainty),
        (Kind::Range, Certainty::RolledBack)
    );
    assert!(bed.files().is_empty());
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let failure = store.resize(volume.id.as_str(), too_large).unwrap_err();
    assert_eq!(
        (failure.kind, failure.certainty),
        (Kind::Range, Certainty::RolledBack)
    );
    assert_eq!(store.get(&volume.id).unwrap().unwrap().bytes, MIB);
}

#[test]
fn the_largest_volume_is_the_last_multiple_of_the_step_that_the_filesystem_has() {
    let bed = Bed::new();
    let local = Local::open(bed.config(), Readiness::new(Ready::Ready)).unwrap();
    let Sizes { step, min, max } = local.store.sizes();
    assert_eq!((step, min, max % step), (MIB, MIB, 0));
    let largest = local.store.largest_file_bytes;
    assert!(max <= largest && largest - max < MIB, "{max} of {largest}");
    // A filesystem without a maximum file size supports larger files than may be provisioned.
    if max < 1 << 62 {
        let volume = local.store.create(&order("pvc-1", max), None).unwrap();
        assert_eq!(volume.bytes, max);
    }
}

#[test]
fn a_stray_file_takes_room_and_a_volume_takes_what_it_was_promised() {
    let bed = Bed::new();
    let store = bed.open();
    let held = || {
        let (volumes, snapshots) = (store.ledger.ids(), store.ledger.snapshot_ids());
        [
            ours(&store.files, &volumes.unwrap()).unwrap(),
            ours(&store.snapshots, &snapshots.unwrap()).unwrap(),
        ]
    };
    let digits = "00000000000000000000000000000000";
    fs::write(bed.file(&format!("vol-{digits}")), [1; 1 << 16]).unwrap();
    let stray = bed.snapshot_file(&format!("snap-{digits}"));
    fs::write(stray, [1; 1 << 16]).unwrap();
    assert_eq!(held(), [0, 0]);
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    let snapshot = cut(&store, &snapshot_order("snap", &volume));
    let written = |path| fs::metadata(path).unwrap().blocks() * 512;
    let written = [
        written(bed.file(volume.id.as_str())),
        written(bed.snapshot_file(snapshot.id.as_str())),
    ];
    assert!(written.iter().all(|bytes| *bytes > 0), "{written:?}");
    assert_eq!(held(), written);
}

#[test]
fn a_file_that_grew_although_its_growth_failed_keeps_its_promise() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let backing = store.files.get(id).unwrap();
    let bytes = || store.get(&volume.id).unwrap().unwrap().bytes;
    let eio = || Failure::new(Kind::Unreachable, "fsync: EIO");

    let promise = store.promise(id, 3 * MIB, &backing).unwrap();
    let failure = store.settle(id, &promise, &backing, eio());
    assert_eq!((failure.certainty, bytes()), (Certainty::RolledBack, MIB));

    let promise = store.promise(id, 3 * MIB, &backing).unwrap();
    backing.grow(3 * MIB).unwrap();
    let failure = store.settle(id, &promise, &backing, eio());
    assert_eq!(
        (failure.certainty, bytes()),
        (Certainty::MayBeRunning, 3 * MIB)
    );
}

#[test]
fn a_creation_that_cannot_be_completed_may_be_running() {
    let bed = Bed::new();
    let store = bed.open();
    let failure = store.complete("vol-0").unwrap_err();
    assert_eq!(failure.certainty, Certainty::MayBeRunning);
}

#[test]
fn pages_hold_what_is_ready_and_follow_a_token_whose_volume_is_gone() {
    let bed = Bed::new();
    let store = &bed.open();
    for n in 0..5 {
        store
            .create(&order(&format!("pvc-{n}"), MIB), None)
            .unwrap();
    }
    intended(store, &order("pvc-half", MIB));
    let all = ids(store);
    assert_eq!(all.len(), 5);
    let first = store.list(None, 2).unwrap();
    assert_eq!(first.next.as_deref(), Some(all[1].as_str()));
    delete(store, &all[1]).unwrap();
    let second = store.list(first.next.as_deref(), 3).unwrap();
    let seen: Vec<_> = second
        .volumes
        .iter()
        .map(|volume| volume.id.as_str())
        .collect();
    assert_eq!(seen, all[2..]);
    assert_eq!(second.next, None);
    assert_eq!(store.list(Some("7"), 2).unwrap_err().kind, Kind::BadToken);
}

#[test]
fn the_sums_and_indexes_follow_every_change() {
    let bed = Bed::new();
    let store = bed.open();
    let totals = |store: &Store| {
        let totals = store.ledger.totals().unwrap();
        (totals.volumes, totals.bytes)
    };
    let one = store.create(&order("pvc-1", MIB), None).unwrap();
    let two = store.create(&order("pvc-2", 2 * MIB), None).unwrap();
    assert_eq!(totals(&store), (2, 3 * MIB));
    let half = intended(&store, &order("pvc-half", 8 * MIB));
    assert_eq!(totals(&store), (2, 11 * MIB), "provisioned, but no volume");
    store.finish_delete(&half).unwrap();
    assert_eq!(store.resize(one.id.as_str(), 4 * MIB).unwrap(), 4 * MIB);
    assert_eq!(store.resize(one.id.as_str(), MIB).unwrap(), 4 * MIB);
    drop(store);
    let store = bed.open();
    assert_eq!(totals(&store), (2, 6 * MIB));
    delete(&store, two.id.as_str()).unwrap();
    assert_eq!(totals(&store), (1, 4 * MIB));
    assert_eq!(store.find(&Name::new("pvc-2").unwrap()).unwrap(), None);
}

#[test]
fn a_failed_transaction_changes_nothing() {
    let bed = Bed::new();
    let store = &bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let failed: Result<(), _> = store.ledger.change(|changes| {
        let mut record = changes.get(id)?.unwrap();
        record.state = State::Deleting;
        changes.put(id, &record)?;
        Err(Failure::busy("no"))
    });
    assert_eq!(failed.unwrap_err().kind, Kind::Busy);
    assert_eq!(store.get(&volume.id).unwrap(), Some(volume));
}
