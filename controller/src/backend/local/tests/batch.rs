//! Tests which changes share a transaction. Each change must be on disk, or fail if a different
//! change or the commit fails.

use super::metrics::measured;
use super::{Bed, MIB, delete, opened, order};
use crate::backend::Usage;
use crate::backend::local::files::journal::{
    Call, before, commits, expect_durable, expect_durable_blank,
};
use crate::backend::local::ledger::Changes;
use crate::backend::local::record::Record;
use crate::backend::local::state_file::panicked;
use crate::backend::local::store::Store;
use belay_bed::patience::until;
use belay_server::call::{Certainty, Failure, Kind};
use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

/// A change that one caller makes.
type Change = fn(&mut Changes<'_>) -> Result<(), Failure>;
/// The result of a change, the number of transactions that the changing thread has committed, and
/// the number of that thread's changes that other threads have committed.
type Changed = (Result<(), Failure>, [usize; 2]);

const COMMITS_ITSELF: [usize; 2] = [1, 0];
const IS_COMMITTED: [usize; 2] = [0, 1];

fn put(changes: &mut Changes<'_>, id: &str) -> Result<(), Failure> {
    let record = Record::creating(&format!("pvc-{id}"), MIB, &Usage::Block, None);
    changes.put(id, &record)
}

fn put_one(changes: &mut Changes<'_>) -> Result<(), Failure> {
    put(changes, "vol-1")
}

fn put_another(changes: &mut Changes<'_>) -> Result<(), Failure> {
    put(changes, "vol-2")
}

fn refused(_: &mut Changes<'_>) -> Result<(), Failure> {
    Err(Failure::busy("refused"))
}

fn half(changes: &mut Changes<'_>) -> Result<(), Failure> {
    put(changes, "vol-half")?;
    refused(changes)
}

fn panicking(changes: &mut Changes<'_>) -> Result<(), Failure> {
    put(changes, "vol-panic")?;
    panic!("as redb at some damage")
}

fn await_waiting(store: &Store, callers: usize) {
    until("all other callers wait", || {
        store.ledger.waiting() == callers
    });
}

/// Makes the first change once all other callers are waiting for their turn.
fn together<const N: usize>(
    store: &Store,
    first: impl FnOnce(&mut Changes<'_>) -> Result<(), Failure>,
    others: [Change; N],
) -> (Changed, [Changed; N]) {
    thread::scope(|scope| {
        let running = Mutex::new(Vec::new());
        let first = commits(|| {
            store.ledger.change(|changes| {
                for other in others {
                    let other = scope.spawn(move || commits(|| store.ledger.change(other)));
                    running.lock().unwrap().push(other);
                }
                await_waiting(store, N);
                first(changes)
            })
        });
        let running = running.into_inner().unwrap().into_iter();
        let others: Vec<_> = running.map(|other| other.join().unwrap()).collect();
        (first, others.try_into().unwrap())
    })
}

/// Returns the message of the failure, and checks that the message asks the caller to retry.
fn failed((result, commits): Changed, certainty: Certainty) -> String {
    let failure = result.unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
    assert_eq!(failure.certainty, certainty, "{failure}");
    assert!(failure.message.contains("state.redb"), "{failure}");
    assert_eq!(commits[1], 0, "{failure}");
    failure.message
}

fn volumes(store: &Store) -> Vec<String> {
    let mut ids: Vec<_> = store.ledger.ids().unwrap().into_iter().collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_lone_change_is_committed_at_once_and_a_refused_one_is_not() {
    let bed = Bed::new();
    let store = bed.open();
    let made = commits(|| store.ledger.change(put_one));
    assert_eq!(made, (Ok(()), COMMITS_ITSELF));
    let (result, commits) = commits(|| store.ledger.change(refused));
    assert_eq!((result.unwrap_err().kind, commits), (Kind::Busy, [0, 0]));
}

#[test]
fn the_last_of_those_that_wait_commits_for_all() {
    let bed = Bed::new();
    let store = bed.open();
    let (first, mut others) = together(
        &store,
        |changes| put(changes, "vol-0"),
        [
            put_one,
            put_another,
            |changes| put(changes, "vol-3"),
            |changes| put(changes, "vol-4"),
        ],
    );
    others.sort_by_key(|(_, commits)| *commits);
    assert_eq!(first, (Ok(()), IS_COMMITTED));
    let [rest @ .., last] = others;
    assert_eq!(last, (Ok(()), COMMITS_ITSELF));
    for one in rest {
        assert_eq!(one, (Ok(()), IS_COMMITTED));
    }
    assert_eq!(volumes(&store).len(), 5);
    assert_eq!(store.ledger.totals().unwrap().bytes, 5 * MIB);
    assert_eq!(store.ledger.waiting(), 0);
    drop(store);
    assert_eq!(volumes(&opened(&bed.config()).unwrap()).len(), 5);
}

#[test]
fn those_that_wait_during_a_commit_share_the_next_one() {
    const CALLERS: usize = 4;
    let bed = Bed::new();
    let store = Arc::new(bed.open());
    let running = Arc::new(Mutex::new(Vec::new()));
    let begun = (Arc::clone(&store), Arc::clone(&running));
    before(Call::Commit, move || {
        let (store, running) = begun;
        for number in 0..CALLERS {
            let other = Arc::clone(&store);
            let id = format!("vol-{number}");
            let put = move || commits(|| other.ledger.change(|changes| put(changes, &id)));
            running.lock().unwrap().push(thread::spawn(put));
        }
        await_waiting(&store, CALLERS);
    });
    let lone = commits(|| store.ledger.change(|changes| put(changes, "vol-lone")));
    assert_eq!(lone, (Ok(()), COMMITS_ITSELF));
    let running = std::mem::take(&mut *running.lock().unwrap()).into_iter();
    let others: Vec<_> = running.map(|other| other.join().unwrap()).collect();
    let count = |wanted: Changed| others.iter().filter(|other| **other == wanted).count();
    assert_eq!(count((Ok(()), COMMITS_ITSELF)), 1);
    assert_eq!(count((Ok(()), IS_COMMITTED)), CALLERS - 1);
    assert_eq!(volumes(&store).len(), CALLERS + 1);
}

#[test]
fn a_change_sees_those_before_it_in_its_transaction() {
    let bed = Bed::new();
    let store = bed.open();
    let sees: Change = |changes| {
        assert!(changes.get("vol-1")?.is_some());
        assert_eq!(changes.totals()?.bytes, MIB);
        Err(Failure::precondition("exists"))
    };
    let (first, [(result, commits)]) = together(&store, put_one, [sees]);
    assert_eq!(first, (Ok(()), IS_COMMITTED));
    let failure = result.unwrap_err();
    // The change was refused because of an earlier change that is on disk by now, so the refusal is
    // correct.
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert_eq!(commits, COMMITS_ITSELF);
    assert_eq!(volumes(&store), ["vol-1"]);
}

#[test]
fn the_totals_of_a_shared_transaction_are_shown_by_the_last_caller() {
    let bed = Bed::new();
    let store = &bed.open();
    let (has_begun, begun) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let put = store.ledger.change(|changes| {
                has_begun.send(()).unwrap();
                await_waiting(store, 1);
                put_one(changes)
            });
            put.unwrap();
        });
        begun.recv().unwrap();
        measured(|page| {
            let last = commits(|| store.ledger.change(refused));
            assert_eq!(last, (Err(Failure::busy("refused")), COMMITS_ITSELF));
            let bytes = page.value("belay_controller_provisioned_bytes");
            assert_eq!(bytes, Some(1_048_576.0));
        });
    });
}

#[test]
fn what_calls_have_acknowledged_is_on_disk_no_matter_which_of_them_commits() {
    const CALLS: usize = 4;
    let bed = Bed::new();
    let store = &bed.open();
    thread::scope(|scope| {
        let together = store.ledger.change(|_| {
            for number in 0..CALLS {
                let order = order(&format!("pvc-{number}"), MIB);
                scope.spawn(move || {
                    let made = expect_durable_blank(|| store.create(&order, None).unwrap());
                    expect_durable("delete", || delete(store, made.id.as_str()).unwrap());
                });
            }
            await_waiting(store, CALLS);
            Ok(())
        });
        together.unwrap();
    });
    assert_eq!(volumes(store), [""; 0]);
}

#[test]
fn a_failed_commit_fails_all_changes_and_refusals_of_its_transaction() {
    let bed = Bed::new();
    let store = bed.open();
    let state = bed.config().state_dir.join("state.redb");
    let replaced = |changes: &mut Changes<'_>| {
        put_one(changes)?;
        let kept = state.with_extension("kept");
        fs::rename(&state, &kept).unwrap();
        fs::copy(&kept, &state).unwrap();
        Ok(())
    };
    let (first, others) = together(&store, replaced, [refused, put_another, refused]);
    for (result, _) in [first].into_iter().chain(others) {
        let failure = result.unwrap_err();
        assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
        assert_eq!(failure.certainty, Certainty::MayBeRunning, "{failure}");
        assert!(failure.message.contains("was replaced"), "{failure}");
    }
}

#[test]
fn a_change_that_fails_halfway_leaves_nothing_of_its_transaction() {
    let bed = Bed::new();
    let store = bed.open();
    let (first, [other]) = together(&store, put_one, [half]);
    for one in [first, other] {
        let message = failed(one, Certainty::NothingHappened);
        assert!(message.contains("repeat the call: refused"), "{message}");
    }
    assert_eq!(volumes(&store), [""; 0]);
    let (first, [other]) = together(&store, half, [put_another]);
    assert_eq!(first.0.unwrap_err().kind, Kind::Busy, "it was alone");
    assert_eq!(other, (Ok(()), COMMITS_ITSELF));
    assert_eq!(volumes(&store), ["vol-2"]);
}

#[test]
fn a_refusal_alone_leaves_the_next_change_its_transaction() {
    let bed = Bed::new();
    let store = bed.open();
    let (first, [other]) = together(&store, refused, [put_another]);
    assert_eq!(first.0.unwrap_err().kind, Kind::Busy);
    assert_eq!(other, (Ok(()), COMMITS_ITSELF));
}

#[test]
fn a_panic_in_a_change_fails_its_transaction_until_the_database_is_reopened() {
    let bed = Bed::new();
    let store = bed.open();
    let (first, [other]) = together(&store, put_one, [panicking]);
    for one in [first, other] {
        let message = failed(one, Certainty::NothingHappened);
        assert!(message.contains("panic"), "{message}");
    }
    store.ledger.mend().unwrap();
    let (first, [other]) = together(&store, panicking, [put_another]);
    failed(first, Certainty::NothingHappened);
    let waited = failed(other, Certainty::NothingHappened);
    assert_eq!(waited, panicked().message);
    assert_eq!(store.ledger.ids(), Err(panicked()));
    store.ledger.mend().unwrap();
    assert_eq!(volumes(&store), [""; 0]);
    store.ledger.change(put_one).unwrap();
    assert_eq!(volumes(&store), ["vol-1"]);
}

#[test]
fn a_panic_in_a_commit_leaves_its_outcome_open() {
    let bed = Bed::new();
    let store = bed.open();
    before(Call::Commit, || panic!("as redb at some damage"));
    let lone = commits(|| store.ledger.change(put_one));
    failed(lone, Certainty::MayBeRunning);
    store.ledger.mend().unwrap();
    assert_eq!(volumes(&store), ["vol-1"], "it had been written");
}

#[test]
fn a_panic_in_a_read_names_the_database_which_is_then_reopened() {
    let bed = Bed::new();
    let store = bed.open();
    store.ledger.change(put_one).unwrap();
    let read = store.ledger.break_read();
    failed((read, [0, 0]), Certainty::NothingHappened);
    assert_eq!(store.ledger.get("vol-1"), Err(panicked()));
    store.ledger.mend().unwrap();
    assert!(store.ledger.get("vol-1").unwrap().is_some());
}
