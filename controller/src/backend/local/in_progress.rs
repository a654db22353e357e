//! The names that a thread of this process is working on. If the ledger has an unfinished creation
//! or deletion of any other name, it has failed, and its cleanup too.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The set of these names.
#[derive(Debug, Default)]
pub(super) struct InProgress {
    names: Mutex<HashSet<String>>,
}

/// The only holder of its name until it is dropped.
#[derive(Debug)]
pub(super) struct InProgressGuard<'m> {
    in_progress: &'m InProgress,
    name: String,
}

impl InProgress {
    /// Takes the name; none if another thread has it.
    pub(super) fn begin(&self, name: &str) -> Option<InProgressGuard<'_>> {
        let name = name.to_owned();
        let free = self.names().insert(name.clone());
        free.then(|| InProgressGuard {
            in_progress: self,
            name,
        })
    }

    /// The set is consistent between any two statements, so a panic elsewhere does not corrupt it.
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InProgressGuard<'_> {
    fn drop(&mut self) {
        self.in_progress.names().remove(&self.name);
    }
}
