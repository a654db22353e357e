//! Detects calls that use the ledger while their own thread already uses it. They would deadlock,
//! but only while another thread waits to reopen the database.

use std::cell::Cell;

thread_local! {
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Exists while this thread has the database open.
pub(super) struct Alone;

/// Records that this thread opens the database.
///
/// # Panics
/// Panics if this thread already has the database open.
pub(super) fn begin() -> Alone {
    assert!(
        !IS_OPEN.replace(true),
        "the ledger is used within the ledger"
    );
    Alone
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_OPEN.set(false);
    }
}
