//! A snapshot with a changed file and an unreadable record are reported, and affect no other volume
//! or snapshot.

use super::copied::left_to_copier;
use super::emptied::{empty, filesystem, written};
use super::{Bed, MIB, cut, of_snapshot, order, snapshot_order};
use crate::backend::local::Local;
use crate::backend::local::health::HARDLY_ANY;
use crate::backend::local::recover::Recovered;
use belay_server::call::Kind;
use belay_server::readiness::{Readiness, State};
use redb::{Database, TableDefinition};
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;

#[test]
fn a_snapshot_whose_file_has_another_size_is_not_ready_and_not_restored() {
    for (bytes, words) in [(MIB - 1, "1048575"), (2 * MIB, "2 MiB")] {
        let bed = Bed::new();
        let store = bed.open();
        let volume = written(&bed, &store, &order("pvc-1", MIB));
        let snapshot = cut(&store, &snapshot_order("s", &volume));
        let file = File::options()
            .write(true)
            .open(bed.snapshot_file(snapshot.id.as_str()))
            .unwrap();
        file.set_len(bytes).unwrap();
        let found = store.snapshot(&snapshot.id).unwrap().unwrap();
        assert!(!found.ready);
        let restored = store.create(&order("pvc-2", 2 * MIB), of_snapshot(&snapshot).as_ref());
        let failure = restored.unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        for text in [found.damage.unwrap(), failure.message] {
            for word in [snapshot.id.as_str(), words, "had 1 MiB", "restore it"] {
                assert!(text.contains(word), "{text}");
            }
        }
        drop(store);
        let (store, recovered) = bed.recover();
        let one = Recovered {
            troubles: 1,
            ..Recovered::default()
        };
        assert_eq!(recovered, one);
        // The file was restored from a backup.
        file.set_len(MIB).unwrap();
        assert!(store.snapshot(&snapshot.id).unwrap().unwrap().ready);
    }
}

/// ListSnapshots opens only snapshot files that have few allocated blocks.
#[test]
fn a_snapshot_is_inspected_for_data_only_if_its_file_has_hardly_any_blocks() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = written(&bed, &store, &filesystem("pvc-1"));
    let snapshot = cut(&store, &snapshot_order("s", &volume));
    let path = bed.snapshot_file(snapshot.id.as_str());
    empty(&path);
    let file = File::options().write(true).open(&path).unwrap();
    // The blocks have no data, as after fallocate(1).
    let allocate = |bytes| {
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes).unwrap();
    };
    let allocated = || file.metadata().unwrap().blocks() * 512;
    allocate(HARDLY_ANY - allocated());
    assert_eq!(allocated(), HARDLY_ANY);
    let found = store.snapshot(&snapshot.id).unwrap().unwrap();
    assert!(!found.ready && found.damage.is_some());
    allocate(2 * HARDLY_ANY);
    let found = store.snapshot(&snapshot.id).unwrap().unwrap();
    assert!(found.ready && found.damage.is_none());
}

#[test]
fn the_empty_snapshot_of_a_new_volume_is_ready() {
    let bed = Bed::new();
    let store = bed.open();
    for order in [filesystem("pvc-1"), order("pvc-2", MIB)] {
        let volume = store.create(&order, None).unwrap();
        let snapshot = cut(&store, &snapshot_order(order.name.as_str(), &volume));
        assert!(snapshot.ready && snapshot.damage.is_none());
    }
}

#[test]
fn a_snapshot_counts_once_it_is_ready() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    left_to_copier(&bed, &store, &volume);
    assert_eq!(store.ledger.totals().unwrap().snapshots, 0);
    store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    assert_eq!(store.ledger.totals().unwrap().snapshots, 1);
}

fn overwrite(bed: &Bed, table: &'static str, id: &str) {
    let table = TableDefinition::<&str, &[u8]>::new(table);
    let book = Database::open(bed.dir.path().join("state/state.redb")).unwrap();
    let page = book.begin_write().unwrap();
    let before = {
        let mut records = page.open_table(table).unwrap();
        let before = records.insert(id, b"{ not JSON".as_slice()).unwrap();
        before.is_some()
    };
    assert!(before);
    page.commit().unwrap();
}

#[test]
fn records_that_cannot_be_read_are_counted_at_the_start_and_hide_no_others() {
    let bed = Bed::new();
    let store = bed.open();
    let volumes = ["pvc-1", "pvc-2"].map(|name| store.create(&order(name, MIB), None).unwrap());
    let snapshots = [0, 1].map(|at| {
        let order = snapshot_order(&format!("s-{at}"), &volumes[at]);
        cut(&store, &order)
    });
    drop(store);
    overwrite(&bed, "volumes", volumes[0].id.as_str());
    overwrite(&bed, "snapshots", snapshots[0].id.as_str());
    let (store, recovered) = bed.recover();
    let both = Recovered {
        troubles: 2,
        ..Recovered::default()
    };
    assert_eq!(recovered, both);
    let listed = store.list_snapshots(None, None, usize::MAX).unwrap();
    assert_eq!(listed.snapshots, [snapshots[1].clone()]);
    let unread = store.snapshot(&snapshots[0].id).unwrap_err();
    assert_eq!(unread.kind, Kind::Bug, "{unread}");
    let found = store.list(None, usize::MAX).unwrap().volumes;
    let mut sizes: Vec<_> = found.iter().map(|volume| volume.bytes).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [0, MIB]);
    assert!(fs::exists(bed.snapshot_file(snapshots[0].id.as_str())).unwrap());
}

#[test]
fn a_stray_file_among_the_snapshots_is_counted_and_kept() {
    let bed = Bed::new();
    drop(bed.open());
    let stray = bed.snapshot_file("snap-of-nobody");
    fs::write(&stray, b"precious").unwrap();
    let (_store, recovered) = bed.recover();
    let one = Recovered {
        troubles: 1,
        ..Recovered::default()
    };
    assert_eq!(recovered, one);
    assert_eq!(fs::read(&stray).unwrap(), b"precious");
}

/// redb panics on some kinds of damage.
#[test]
fn a_damaged_database_is_named_and_ends_no_start_without_a_reason() {
    const PAGE_BYTES: usize = 4096;
    let bed = Bed::new();
    let store = bed.open();
    for number in 0..40 {
        bed.write(
            store
                .create(&order(&format!("pvc-{number}"), MIB), None)
                .unwrap()
                .id
                .as_str(),
        );
    }
    drop(store);
    let path = bed.config().state_dir.join("state.redb");
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for (number, page) in whole.chunks(PAGE_BYTES).enumerate() {
        if page.iter().all(|&byte| byte == 0) {
            continue;
        }
        let mut damaged = whole.clone();
        damaged[number * PAGE_BYTES..][..page.len()].fill(0);
        fs::write(&path, &damaged).unwrap();
        if let Err(failure) = Local::open(bed.config(), Readiness::new(State::Ready)) {
            assert!(failure.message.contains("state.redb"), "{failure}");
            assert!(
                !failure.message.contains("repeat the call; if"),
                "{failure}"
            );
            refused += 1;
        }
    }
    assert!(refused > 0);
}
