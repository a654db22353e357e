//! The facts about `local` on `/metrics` and the status page: the volumes, their health, and their
//! filesystem. Changes nothing.

use super::Local;
use super::store::Store;
use belay_contract::reason::Reporter;
use belay_server::call::Failure;
use belay_server::facts::{Facts, Known, Measuring, Space};
use belay_server::lock::Lock;
use std::sync::Arc;

/// Number of unhealthy volumes that one read of the ledger lists.
const PAGE_ENTRIES: usize = 500;

/// The last measurement.
#[derive(Debug, Default)]
pub(super) struct Last(Lock<Known>);

impl Last {
    fn get(&self) -> Known {
        self.0.lock().clone()
    }

    fn set(&self, known: Known) {
        *self.0.lock() = known;
    }
}

impl Store {
    /// Counts and inspects all volumes, in pages of this many entries. May wait for a disk.
    ///
    /// # Errors
    /// Returns the errors of reading the state.
    pub(super) fn facts(&self, page_entries: usize) -> Result<Known, Failure> {
        // A failure here is also a health reason of every volume.
        let space = self.files.statvfs().ok().map(|stat| Space {
            free_bytes: stat.f_bfree.saturating_mul(stat.f_frsize),
            size_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        });
        let mut known = Known {
            storage: space,
            volumes: Some(self.ledger.totals()?.volumes),
            ..Known::default()
        };
        let mut after = None;
        loop {
            let page = self.list_unhealthy(after.as_deref(), page_entries)?;
            let conditions = page.volumes.iter().flat_map(|it| it.conditions.iter());
            for condition in conditions {
                *known.unhealthy.entry(condition.reason.name()).or_default() += 1;
            }
            after = page.next;
            if after.is_none() {
                return Ok(known);
            }
        }
    }
}

impl Facts for Local {
    fn reasons(&self) -> Vec<&'static str> {
        Reporter::Controller.volume_reasons()
    }

    fn known(&self) -> Known {
        self.last.get()
    }

    fn measure(self: Arc<Self>) -> Measuring {
        Box::pin(async move {
            // If no slot is free, many read-only calls are already waiting; the next request for
            // the page tries again.
            let Ok(slot) = self.slots.questions.take().await else {
                return;
            };
            let (store, readiness) = (Arc::clone(&self.store), self.readiness.clone());
            let work = move || {
                let _slot = slot;
                super::checked(&store, &readiness, |store| store.facts(PAGE_ENTRIES))
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(known)) => self.last.set(known),
                // Readiness or the calls report the reason; the last values are kept.
                Ok(Err(failure)) => tracing::debug!("cannot measure storage and health: {failure}"),
                Err(error) => tracing::error!("measuring storage and health: {error}"),
            }
        })
    }
}
