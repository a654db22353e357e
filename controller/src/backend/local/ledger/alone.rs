//! For tests: detects a call that uses the ledger while its own thread already uses it. A nested
//! use of the ledger deadlocks, but only if a different thread is waiting to reopen the database.

use std::cell::Cell;

thread_local! {
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// A guard that exists while this thread has the database open.
pub(super) struct Alone;

/// Records that this thread opens the database, until the guard is dropped.
///
/// # Panics
/// Panics if this thread already has the database open.
pub(super) fn begin() -> Alone {
    assert!(
        !IS_OPEN.replace(true),
        "the ledger was called by code that already holds it"
    );
    Alone
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_OPEN.set(false);
    }
}
