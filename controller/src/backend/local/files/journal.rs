//! For tests: records the order in which this thread changes, syncs and marks files. Only synced
//! changes are certain to be on disk after a power failure. The recorded order reveals a missing
//! sync on any filesystem. A test can also run an action before any of these steps.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A step of this thread on a file, a directory or the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::local) enum Call {
    /// A change of the content of a file, or of the names in a directory.
    Change(PathBuf),
    /// The size of the file is recorded, which marks its content as complete.
    Mark(PathBuf),
    Sync(PathBuf),
    Commit,
    /// A different thread has tried to commit this thread's change together with its own change.
    /// The value is true if the commit has succeeded.
    Share(bool),
    /// A file is opened, if it exists.
    Open(PathBuf),
}

/// A step, and the action that must run before it.
type Meanwhile = (Call, Box<dyn FnOnce()>);

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
}

/// Runs `act` immediately before the next step of this kind on this thread.
pub(in crate::backend::local) fn before(call: Call, act: impl FnOnce() + 'static) {
    MEANWHILE.set(Some((call, Box::new(act))));
}

/// Records a step, after running the action that must run before it.
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

/// Runs `work`. Returns the result of `work`, the number of transactions that this thread has
/// committed, and the number of this thread's changes that other threads have committed.
pub(in crate::backend::local) fn commits<T>(work: impl FnOnce() -> T) -> (T, [usize; 2]) {
    CALLS.take();
    let result = work();
    let calls = CALLS.take();
    let count = |wanted: Call| calls.iter().filter(|call| **call == wanted).count();
    (result, [count(Call::Commit), count(Call::Share(true))])
}

/// Runs `work`, and checks that its effect survives a power failure. The content of a file must be
/// on disk before the file is marked as complete, and all changes before the last commit.
pub(in crate::backend::local) fn expect_durable<T>(what: &str, work: impl FnOnce() -> T) -> T {
    expect_synced(what, true, work)
}

/// Like [`expect_durable`], for a new volume without a source: the file may be marked before its
/// size is on disk. The file has no content, and if the creation of the volume is not committed,
/// the next start removes the file.
pub(in crate::backend::local) fn expect_durable_blank<T>(work: impl FnOnce() -> T) -> T {
    expect_synced("a blank volume", false, work)
}

fn expect_synced<T>(what: &str, is_marked_last: bool, work: impl FnOnce() -> T) -> T {
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
                    is_new || !is_marked_last,
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
