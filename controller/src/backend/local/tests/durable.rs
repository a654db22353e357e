//! Tests the order in which files are synced and marked as complete, and changes are committed:
//! everything that a call has acknowledged must survive a power failure. tests/blackbox simulates
//! power failures on real filesystems, which sync more than required.

use super::{Bed, MIB, cut, delete, of_snapshot, of_volume, order, snapshot_order};
use crate::backend::local::files::journal::{Call, expect_durable, expect_durable_blank, note};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

super::everywhere! {
    what_a_call_has_acknowledged_is_on_disk,
}

fn what_a_call_has_acknowledged_is_on_disk(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    for is_written in [false, true] {
        let named = |kind: &str| order(&format!("{kind}-{is_written}"), MIB);
        let create = |kind: &str, source: Option<_>| {
            let order = named(kind);
            expect_durable(kind, || store.create(&order, source.as_ref()).unwrap())
        };
        let volume = expect_durable_blank(|| store.create(&named("new"), None).unwrap());
        if is_written {
            bed.write(volume.id.as_str());
        }
        let snapshot = snapshot_order(&format!("snap-{is_written}"), &volume);
        let snapshot = expect_durable("cut", || cut(&store, &snapshot));
        assert!(snapshot.ready);
        let restored = create("restored", of_snapshot(&snapshot));
        create("clone", of_volume(&volume));
        let id = restored.id.as_str();
        for bytes in [2 * MIB, 3 * MIB] {
            let grown = expect_durable("expand", || store.resize(id, bytes));
            assert_eq!(grown, Ok(bytes));
        }
        expect_durable("delete", || delete(&store, id).unwrap());
        let id = snapshot.id.as_str();
        expect_durable("delete a snapshot", || store.discard(id).unwrap());
    }
}

#[test]
fn what_is_not_synced_in_its_order_is_found() {
    let (change, mark, sync) = (Call::Change, Call::Mark, Call::Sync);
    let file = || "file".into();
    let kept = [
        change(file()),
        sync(file()),
        mark(file()),
        sync(file()),
        Call::Commit,
    ];
    let fails = |calls: &[Call]| {
        let work = || calls.iter().cloned().for_each(note);
        catch_unwind(AssertUnwindSafe(|| expect_durable("a test", work))).is_err()
    };
    assert!(!fails(&kept));
    for missing in [1, 3] {
        let mut calls = kept.to_vec();
        calls.remove(missing);
        assert!(fails(&calls), "{calls:?}");
    }
    assert!(fails(&[change(file()), Call::Commit, sync(file())]));
    assert!(fails(&[]));
}
