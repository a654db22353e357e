//! Deletes the objects of orders that no call waits for: orders that no store has accepted, since a
//! store that returns later would carry them out, and refused orders. Leaves removals alone: a
//! store refuses the attempts that it finds when it starts.

use super::Front;
use super::cache::Seen;
use super::follow::Followed;
use super::item::{disk_of, id, wanted};
use super::meaning::{Meaning, meaning};
use crate::kubernetes::{LocalSnapshot, LocalVolume, Written};
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// The number of sweeps in the time after which an object is deleted.
const SWEEPS: u32 = 6;

impl Front {
    /// Deletes abandoned objects until the task is aborted.
    pub(super) async fn sweep(self: Arc<Self>) {
        loop {
            sleep(self.limits.idle / SWEEPS).await;
            self.sweep_kind::<LocalVolume>().await;
            self.sweep_kind::<LocalSnapshot>().await;
            self.waits.forget(self.limits.idle * 2);
        }
    }

    async fn sweep_kind<R: Followed>(&self) {
        if R::cache(self).current().is_err() {
            return;
        }
        for seen in R::cache(self).all() {
            let state = meaning(&seen.object);
            if matches!(state, Meaning::Ordered | Meaning::Refused(_)) && self.is_abandoned(&seen) {
                self.abandon(&seen, state == Meaning::Ordered).await;
            }
        }
    }

    /// Whether no call has waited for the object for some time.
    fn is_abandoned<R: Followed>(&self, seen: &Seen<R>) -> bool {
        let waited = self.waits.last(&seen.object.metadata.uid);
        let last = waited.map_or(seen.since, |waited| waited.max(seen.since));
        Instant::now().saturating_duration_since(last) >= self.limits.idle
    }

    async fn abandon<R: Followed>(&self, seen: &Seen<R>, is_order: bool) {
        let object = &seen.object;
        let (what, id) = (R::WHAT, id(object));
        match self.client.delete::<R>(&object.metadata).await {
            Ok(Written::Done(())) => {
                tracing::info!("{what} {id}: no call waits for its order, which is deleted");
                if let Some(wanted) = wanted(object).filter(|_| is_order) {
                    self.withdrawn(disk_of(&wanted));
                }
            }
            // The object has changed: its order was accepted, or another controller deleted it.
            Ok(Written::Conflict | Written::Missing) => {}
            Err(failure) => tracing::warn!("{what} {id}: its order cannot be deleted: {failure}"),
        }
    }
}
