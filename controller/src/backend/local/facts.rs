//! The facts about `local` on `/metrics` and the status page: the volumes, their health, and their
//! filesystem. Changes nothing.

use super::Local;
use super::store::Store;
use belay_contract::reason::Reporter;
use belay_server::call::Failure;
use belay_server::facts::{Facts, Known, Measuring, SHOWN_MAX, Shown, Space};
use belay_server::lock::Lock;
use belay_server::size::Rounded;
use std::sync::Arc;

/// Number of unhealthy volumes that one read of the ledger lists.
const PAGE_ENTRIES: usize = 500;

/// The last measurement.
#[derive(Debug, Default)]
pub(super) struct Last(Lock<(Known, Vec<Shown>)>);

impl Store {
    /// Counts and inspects all volumes, in pages of this many entries. May wait for a disk.
    ///
    /// # Errors
    /// Returns the errors of reading the state.
    pub(super) fn facts(&self, page_entries: usize) -> Result<(Known, Vec<Shown>), Failure> {
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
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let page = self.list_unhealthy(after.as_deref(), page_entries)?;
            for volume in page.volumes {
                let reasons = volume.conditions.iter().map(|it| it.reason.name());
                let reasons: Vec<_> = reasons.collect();
                for reason in &reasons {
                    *known.unhealthy.entry(*reason).or_default() += 1;
                }
                shown.push(Shown {
                    id: volume.id.as_str().to_owned(),
                    reasons,
                    details: Vec::new(),
                });
                shown.truncate(SHOWN_MAX);
            }
            after = page.next;
            if after.is_none() {
                self.name(&mut shown)?;
                return Ok((known, shown));
            }
        }
    }

    /// Adds names and sizes to unhealthy volumes, and healthy volumes after them.
    fn name(&self, shown: &mut Vec<Shown>) -> Result<(), Failure> {
        for volume in self.list(None, SHOWN_MAX)?.volumes {
            let name = volume.name.into_iter();
            let details = name.chain([Rounded(volume.bytes).to_string()]).collect();
            match shown.iter_mut().find(|it| it.id == volume.id.as_str()) {
                Some(unhealthy) => unhealthy.details = details,
                None => shown.push(Shown {
                    id: volume.id.as_str().to_owned(),
                    reasons: Vec::new(),
                    details,
                }),
            }
        }
        shown.truncate(SHOWN_MAX);
        Ok(())
    }
}

impl Facts for Local {
    fn reasons(&self) -> Vec<&'static str> {
        Reporter::Controller.volume_reasons()
    }

    fn known(&self) -> Known {
        self.last.0.lock().0.clone()
    }

    fn shown(&self) -> Vec<Shown> {
        self.last.0.lock().1.clone()
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
                Ok(Ok(known)) => *self.last.0.lock() = known,
                // Readiness or the calls report the reason; the last values are kept.
                Ok(Err(failure)) => tracing::debug!("cannot measure storage and health: {failure}"),
                Err(error) => tracing::error!("measuring storage and health: {error}"),
            }
        })
    }
}
