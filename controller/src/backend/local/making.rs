//! The names that a thread of this process is working on. If the ledger has an unfinished creation
//! or deletion of any other name, it has failed, and its cleanup too.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The set of these names.
#[derive(Debug, Default)]
pub(super) struct Making {
    names: Mutex<HashSet<String>>,
}

/// The only holder of its name until it is dropped.
#[derive(Debug)]
pub(super) struct Maker<'m> {
    making: &'m Making,
    name: String,
}

impl Making {
    /// Takes the name; none if another thread has it.
    pub(super) fn begin(&self, name: &str) -> Option<Maker<'_>> {
        let name = name.to_owned();
        let free = self.names().insert(name.clone());
        free.then(|| Maker { making: self, name })
    }

    /// The set is consistent between any two statements, so a panic elsewhere does not corrupt it.
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        self.making.names().remove(&self.name);
    }
}
