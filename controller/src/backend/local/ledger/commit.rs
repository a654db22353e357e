//! Shares transactions between changes: changes that wait while one transaction is written are
//! combined in the next one, with a single flush. The callers make their changes one after the
//! other, and the last caller commits; a caller without concurrent callers commits at once.
//! Independent of the tables.

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

/// The state of concurrent callers of [`Ledger::change`].
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The number of callers that have yet to make their change.
    waiting: AtomicUsize,
    /// The lock of the caller that makes its change or commits. It contains the batch that the
    /// previous caller has left for the next one; `None` without waiting callers.
    turn: Lock<Option<Batch>>,
}

/// A transaction with the changes of callers.
struct Batch {
    transaction: WriteTransaction,
    /// The totals after the last change.
    totals: Totals,
    /// The outcome for callers that have left their changes in the batch, if any.
    outcome: Option<Arc<Outcome>>,
}

/// Whether a batch is on disk, once this is known.
type Outcome = OnceLock<Result<(), Failure>>;

/// The effect of a caller on its batch.
enum Changed<T> {
    Made(T),
    /// The caller has changed nothing, for this reason.
    Refused(Failure),
    /// The caller may have made a part of its change.
    Broken(Failure),
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Callers {
    /// Waits for the turn. A batch waits for all callers that wait here, so they must not wait for
    /// anything else. The caller has the database open, since [`Ledger::mend`] only closes it after
    /// the last change.
    fn turn(&self, _open: &Database) -> MutexGuard<'_, Option<Batch>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.lock();
        // Decrement only once this caller holds the turn, so that no caller counts itself as
        // waiting when it decides whether to leave the batch open.
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
    /// Returns the number of callers that have yet to make their change.
    #[cfg(test)]
    pub(in crate::backend::local) fn waiting(&self) -> usize {
        self.callers.waiting()
    }

    /// Runs `work` in a transaction, which is on disk when this returns, or has no effect. The
    /// transaction may contain the changes of other callers, which `work` sees; either all are
    /// written, or none. `work` must not use the ledger again, for the same reason as in
    /// [`Ledger::read`].
    ///
    /// # Errors
    /// Returns the errors of `work`, once the changes that it has seen are on disk. Returns
    /// `Unreachable` if the database cannot be written, is damaged or was replaced; if it is
    /// unknown whether the change is on disk, the failure has `Certainty::MayBeRunning`.
    pub(in crate::backend::local) fn change<T>(
        &self,
        work: impl FnOnce(&mut Changes<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        #[cfg(test)]
        let _alone = super::alone::begin();
        // Hold it to the end, so that the database is not closed during the transaction.
        let database = self.opened()?;
        let database = database.as_ref().ok_or_else(closed)?;
        let mut turn = self.callers.turn(database);
        let mut batch = match turn.take() {
            Some(batch) => batch,
            // After a panic, redb may still hold the lock of its single transaction.
            None if self.is_suspect() => return Err(panicked()),
            None => self.caught(|| Batch::begin(database)).flatten()?,
        };
        let changed = self.caught(|| batch.make(work));
        match changed.unwrap_or_else(Changed::Broken) {
            Changed::Made(made) => self.end(turn, batch).map(|()| made),
            // The refusal may depend on earlier changes that are not on disk yet.
            Changed::Refused(failure) if batch.outcome.is_some() => {
                self.end(turn, batch).and(Err(failure))
            }
            Changed::Refused(failure) | Changed::Broken(failure) => {
                Err(self.roll_back(batch, failure))
            }
        }
    }

    /// Leaves the batch to a waiting caller and waits for its outcome, or commits the batch.
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

    /// Commits a batch. The caller must hold the turn, since older totals must not be shown after
    /// newer ones.
    fn commit(&self, batch: Batch) -> Result<(), Failure> {
        batch.transaction.commit().map_err(failed)?;
        #[cfg(test)]
        journal::note(Call::Commit);
        self.file.refuse_replaced()?;
        batch.totals.show();
        Ok(())
    }

    /// Rolls back all changes of the batch, and returns the failure of the caller. The caller must
    /// hold the turn.
    fn roll_back(&self, batch: Batch, why: Failure) -> Failure {
        let Batch {
            transaction,
            outcome,
            ..
        } = batch;
        // A panic is logged, and changes nothing on disk.
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
