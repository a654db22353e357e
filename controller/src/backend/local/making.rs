//! The names at which a thread of this process is at work. What the ledger calls begun under any
//! other name was given up: whoever began it failed, and could not clean up.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Those names.
#[derive(Debug, Default)]
pub(super) struct Making {
    names: Mutex<HashSet<String>>,
}

/// The only maker of its name for as long as it lives.
#[derive(Debug)]
pub(super) struct Maker<'m> {
    making: &'m Making,
    name: String,
}

impl Making {
    /// Takes the name; none if somebody has it.
    pub(super) fn begin(&self, name: &str) -> Option<Maker<'_>> {
        let name = name.to_owned();
        let free = self.names().insert(name.clone());
        free.then(|| Maker { making: self, name })
    }

    /// The set is whole between any two statements, so a panic elsewhere does not spoil it.
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        self.making.names().remove(&self.name);
    }
}
