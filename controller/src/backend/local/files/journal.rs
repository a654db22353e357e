//! In tests: which files this thread has changed, synced and marked, in their order. A power loss
//! keeps only what was synced, in any order, so that a missing sync shows here on any filesystem.
//! Another call can come in at any of them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What was done to a file or directory, or to the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::local) enum Call {
    /// Its content or names.
    Change(PathBuf),
    /// An attribute that describes the content.
    Mark(PathBuf),
    Sync(PathBuf),
    Commit,
    /// Another thread has tried to commit this one's change with its own; whether it has.
    Share(bool),
    /// Opening it, if it exists.
    Open(PathBuf),
}

/// What comes in, and right before which call.
type Meanwhile = (Call, Box<dyn FnOnce()>);

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
}

/// Runs `act` right before the next such call of this thread.
pub(in crate::backend::local) fn before(call: Call, act: impl FnOnce() + 'static) {
    MEANWHILE.set(Some((call, Box::new(act))));
}

/// Adds a call.
pub(in crate::backend::local) fn note(call: Call) {
    let due = MEANWHILE.with_borrow_mut(|due| due.take_if(|(awaited, _)| *awaited == call));
    if let Some((_, act)) = due {
        act();
    }
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

fn is_commit(call: &Call) -> bool {
    matches!(call, Call::Commit | Call::Share(true))
}

/// Runs `work`, and returns how many transactions this thread has committed, and how many of its
/// changes others have.
pub(in crate::backend::local) fn commits<T>(work: impl FnOnce() -> T) -> (T, [usize; 2]) {
    CALLS.take();
    let result = work();
    let calls = CALLS.take();
    let count = |wanted: Call| calls.iter().filter(|call| **call == wanted).count();
    (result, [count(Call::Commit), count(Call::Share(true))])
}

/// Runs `work`, and checks that a power loss keeps what it did: content that is marked is on disk
/// before its mark, and everything before the last commit.
pub(in crate::backend::local) fn expect_durable<T>(what: &str, work: impl FnOnce() -> T) -> T {
    CALLS.take();
    let result = work();
    let calls = CALLS.take();
    let mut unsynced = BTreeSet::new();
    let last = calls.iter().rposition(is_commit);
    for (number, call) in calls.iter().enumerate() {
        match call {
            Call::Change(path) => drop(unsynced.insert(path)),
            Call::Mark(path) => {
                let is_new = unsynced.insert(path);
                assert!(
                    is_new,
                    "{what}: marked before its sync: {path:?} in {calls:#?}"
                );
            }
            Call::Sync(path) => drop(unsynced.remove(path)),
            Call::Open(_) | Call::Share(false) => {}
            Call::Commit | Call::Share(true) => {
                let is_due = Some(number) == last;
                assert!(
                    !is_due || unsynced.is_empty(),
                    "{what}: {unsynced:?} in {calls:#?}"
                );
            }
        }
    }
    assert!(unsynced.is_empty(), "{what}: {unsynced:?} in {calls:#?}");
    assert!(!calls.is_empty(), "{what}: no calls");
    result
}
