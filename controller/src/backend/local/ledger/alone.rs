//! Detects calls that use the ledger within a call that does. Only while another thread waits to
//! reopen the database would they wait for themselves.

use std::cell::Cell;

thread_local! {
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, this thread has the database open.
pub(super) struct Alone;

/// # Panics
/// If this thread has the database open.
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
