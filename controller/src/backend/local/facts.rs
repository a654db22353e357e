//! The facts about `local` for `/metrics` and the status page: its volumes, their health, and the
//! filesystem with their files. Changes nothing.

use super::Local;
use super::store::Store;
use crate::backend::Volume;
use belay_contract::drivers::local::DEFAULT_DISK;
use belay_contract::reason::Reporter;
use belay_server::call::Failure;
use belay_server::facts::{Facts, Known, Measuring, SHOWN_MAX, Shown, Space};
use belay_server::lock::Lock;
use belay_server::size::Rounded;
use std::sync::Arc;

/// Maximum number of unhealthy volumes per call of `list_unhealthy`.
const PAGE_ENTRIES: usize = 500;

/// The results of the last measurement.
#[derive(Debug, Default)]
pub(super) struct Last(Lock<(Known, Vec<Shown>)>);

impl Store {
    /// Counts and inspects all volumes, in pages of `page_entries` volumes. May wait for a disk.
    ///
    /// # Errors
    /// Returns the errors of reading the ledger.
    pub(super) fn facts(&self, page_entries: usize) -> Result<(Known, Vec<Shown>), Failure> {
        // If the size of the filesystem cannot be read, each volume is reported as unhealthy, so
        // the failure can be ignored here.
        let space = self.files.statvfs().ok().map(|stat| Space {
            free_bytes: stat.f_bfree.saturating_mul(stat.f_frsize),
            size_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        });
        let storage = space.map(|space| (DEFAULT_DISK.to_owned(), space));
        let mut known = Known {
            storage: storage.into_iter().collect(),
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
                if shown.len() < SHOWN_MAX {
                    // The name and size of a volume whose record cannot be read are omitted.
                    let readable = self.get(&volume.id).ok().flatten();
                    shown.push(Shown {
                        id: volume.id.as_str().to_owned(),
                        reasons,
                        details: readable.map(details).unwrap_or_default(),
                    });
                }
            }
            after = page.next;
            if after.is_none() {
                self.append_healthy(&mut shown)?;
                return Ok((known, shown));
            }
        }
    }

    /// Appends healthy volumes, so that up to [`SHOWN_MAX`] volumes are shown.
    fn append_healthy(&self, shown: &mut Vec<Shown>) -> Result<(), Failure> {
        for volume in self.list(None, SHOWN_MAX)?.volumes {
            if shown.iter().all(|it| it.id != volume.id.as_str()) {
                shown.push(Shown {
                    id: volume.id.as_str().to_owned(),
                    reasons: Vec::new(),
                    details: details(volume),
                });
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
            // If no slot is free, many read-only calls are already waiting. The next request for
            // the status page measures again.
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
                // The readiness check or the next CSI call reports the failure. The last results
                // are kept.
                Ok(Err(failure)) => tracing::debug!("cannot measure storage and health: {failure}"),
                Err(error) => tracing::error!("measuring storage and health: {error}"),
            }
        })
    }
}

/// Returns the name, if it is known, and the size.
fn details(volume: Volume) -> Vec<String> {
    let size = Rounded(volume.bytes).to_string();
    volume.name.into_iter().chain([size]).collect()
}
