//! Combines the changes of concurrent callers into shared transactions ("group commit"). Callers
//! that arrive while a transaction is being written to disk share the next transaction, which needs
//! only one flush. These callers make their changes one after the other, and the last caller
//! commits. A caller without concurrent callers commits at once. This module does not depend on the
//! tables of the database.

use super::totals::Totals;
use super::{Changes, Ledger, closed};
#[cfg(test)]
use crate::backend::local::files::journal::{self, Call};
use crate::backend::local::state_file::{failed, panicked};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use redb::{Database, WriteTransaction};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

/// The concurrent callers of [`Ledger::change`].
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The number of callers that have not made their change yet.
    waiting: AtomicUsize,
    /// The lock that a caller holds while it makes its change or commits. The lock protects the
    /// batch that the previous caller has left open; `None` if no batch is open.
    turn: Lock<Option<Batch>>,
}

/// An open transaction with the changes of one or more callers.
struct Batch {
    transaction: WriteTransaction,
    /// The totals over all records, after the last change.
    totals: Totals,
    /// The outcome for callers that have made their change and wait for the commit; `None` if no
    /// caller waits.
    outcome: Option<Arc<Outcome>>,
}

/// Whether the transaction of a batch is on disk, once this is known.
type Outcome = OnceLock<Result<(), Failure>>;

/// The result of a caller's change to the open batch.
enum Changed<T> {
    Made(T),
    /// The change has failed with this failure, and nothing was changed.
    Refused(Failure),
    /// The change has failed with this failure, and may have been made in part.
    Broken(Failure),
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Callers {
    /// Waits until this caller may make its change. The last caller in the queue commits for all
    /// callers, so a caller must not wait for anything else between calling this method and making
    /// its change. The argument `_open` proves that the caller holds the database open, so that
    /// [`Ledger::mend`] does not close the database before the last change.
    fn turn(&self, _open: &Database) -> MutexGuard<'_, Option<Batch>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.lock();
        // Decrement the counter only while holding the lock, so that a caller does not count itself
        // when it checks for waiting callers.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        turn
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Batch {
    fn begin(database: &Database) -> Result<Self, Failure> {
        Ok(Self {
            transaction: database.begin_write().map_err(failed)?,
            totals: Totals::default(),
            outcome: None,
        })
    }

    fn make<T>(&mut self, work: impl FnOnce(&mut Changes<'_>) -> Result<T, Failure>) -> Changed<T> {
        let mut changes = match Changes::of(&self.transaction) {
            Ok(changes) => changes,
            Err(failure) => return Changed::Broken(failure),
        };
        match work(&mut changes) {
            Err(failure) if changes.has_written => Changed::Broken(failure),
            Err(failure) => Changed::Refused(failure),
            Ok(made) => match changes.totals() {
                Err(failure) => Changed::Broken(failure),
                Ok(totals) => {
                    self.totals = totals;
                    Changed::Made(made)
                }
            },
        }
    }
}

impl Ledger {
    /// Returns the number of callers that have not made their change yet.
    #[cfg(test)]
    pub(in crate::backend::local) fn waiting(&self) -> usize {
        self.callers.waiting()
    }

    /// Runs `work` in a transaction. When this method returns, the changes of `work` are on disk,
    /// or have no effect. The transaction may contain the changes of other callers, which `work`
    /// sees. Either all changes of the transaction are written, or none. `work` must not use the
    /// ledger again, since that could deadlock (see [`Ledger::read`]).
    ///
    /// # Errors
    /// Returns the errors of `work`, once the changes that `work` has seen are on disk. Returns
    /// `Unreachable` if the database cannot be written, is damaged or was replaced. If it is
    /// unknown whether the change is on disk, the failure has `Certainty::MayBeRunning`.
    pub(in crate::backend::local) fn change<T>(
        &self,
        work: impl FnOnce(&mut Changes<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        #[cfg(test)]
        let _alone = super::alone::begin();
        // Hold the read lock until the transaction has ended, so that no other call closes the
        // database meanwhile.
        let database = self.opened()?;
        let database = database.as_ref().ok_or_else(closed)?;
        let mut turn = self.callers.turn(database);
        let mut batch = match turn.take() {
            Some(batch) => batch,
            // After a panic, redb may still hold the lock that allows only one write transaction.
            None if self.is_suspect() => return Err(panicked()),
            None => self.caught(|| Batch::begin(database)).flatten()?,
        };
        let changed = self.caught(|| batch.make(work));
        match changed.unwrap_or_else(Changed::Broken) {
            Changed::Made(made) => self.end(turn, batch).map(|()| made),
            // `work` may have failed because of earlier changes in the batch, which are not on disk
            // yet.
            Changed::Refused(failure) if batch.outcome.is_some() => {
                self.end(turn, batch).and(Err(failure))
            }
            Changed::Refused(failure) | Changed::Broken(failure) => {
                Err(self.roll_back(batch, failure))
            }
        }
    }

    /// If other callers are waiting, leaves the batch to these callers, and waits for the outcome
    /// of the batch. Otherwise, commits the batch.
    fn end(
        &self,
        mut turn: MutexGuard<'_, Option<Batch>>,
        mut batch: Batch,
    ) -> Result<(), Failure> {
        if self.callers.waiting() > 0 {
            let outcome = Arc::clone(batch.outcome.get_or_insert_default());
            *turn = Some(batch);
            drop(turn);
            let written = outcome.wait().clone();
            #[cfg(test)]
            journal::note(Call::Share(written.is_ok()));
            return written;
        }
        let outcome = batch.outcome.take();
        let written = self.caught(|| self.commit(batch)).flatten();
        let written = written.map_err(Failure::may_be_running);
        drop(turn);
        if let Some(outcome) = outcome {
            outcome.get_or_init(|| written.clone());
        }
        written
    }

    /// Commits a batch. The caller must hold the lock of [`Callers::turn`], so that the metrics
    /// never show older totals after newer totals.
    fn commit(&self, batch: Batch) -> Result<(), Failure> {
        batch.transaction.commit().map_err(failed)?;
        #[cfg(test)]
        journal::note(Call::Commit);
        self.file.refuse_replaced()?;
        batch.totals.show();
        Ok(())
    }

    /// Rolls back all changes of the batch, and returns the failure for the caller. The caller must
    /// hold the lock of [`Callers::turn`].
    fn roll_back(&self, batch: Batch, why: Failure) -> Failure {
        let Batch {
            transaction,
            outcome,
            ..
        } = batch;
        // If dropping the transaction panics, the panic is logged, and nothing on disk changes.
        self.caught(|| drop(transaction)).unwrap_or_default();
        let Some(outcome) = outcome else { return why };
        let failure = Failure::new(
            Kind::Unreachable,
            format!(
                "state.redb: a change failed halfway, so all changes of its transaction were \
                 rolled back; repeat the call: {why}"
            ),
        );
        outcome.get_or_init(|| Err(failure.clone()));
        failure
    }
}
