//! The facts about `local` on `/metrics` and the status page: its volumes, their health, and the
//! filesystem that contains them. Changes nothing.

use super::Local;
use super::store::Store;
use belay_contract::reason::Reporter;
use belay_server::call::Failure;
use belay_server::facts::{Facts, Known, Measuring, Space};
use belay_server::lock::Lock;
use std::sync::Arc;

/// Unhealthy volumes that are listed in one read of the ledger.
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
    /// Counts and inspects all volumes, listing at most so many at once. May wait for a disk.
    ///
    /// # Errors
    /// Those of reading the state.
    pub(super) fn facts(&self, page_entries: usize) -> Result<Known, Failure> {
        // If this fails, it is a condition of every volume.
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
            // Without a free slot, many read-only calls wait already; the next page tries again.
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
                // Readiness or the calls report why; the last values stay.
                Ok(Err(failure)) => tracing::debug!("cannot measure storage and health: {failure}"),
                Err(error) => tracing::error!("measuring storage and health: {error}"),
            }
        })
    }
}
