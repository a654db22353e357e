//! The errors for changes that the storage has accepted, but has not made or completed.

use super::Engine;
use super::item::{Item, Store};
use super::poller::Poller;
use crate::backend::DroppedChange;
use belay_server::call::Failure;
use belay_server::request::{Secrets, VolumeId};
use std::time::Duration;
use tokio::time::timeout;

/// Maximum time that a failed call waits for the storage to report the cause.
const CAUSE_WITHIN: Duration = Duration::from_secs(5);

impl Engine {
    /// Returns the error for a change that the storage has accepted, but that has had no effect
    /// although the volume is ready. If the storage reports the cause in time, the cause is the
    /// error. Otherwise the error has an unknown state, since the change may take effect late.
    pub(in crate::operation) async fn dropped(
        &self,
        id: &VolumeId,
        dropped: DroppedChange,
        secrets: &Secrets,
    ) -> Failure {
        let without = format!(
            "volume {id}: {dropped}, although the storage has accepted the change and shows the \
             volume as ready; repeat the call"
        );
        let why = self
            .backend
            .why_dropped(id.clone(), dropped, secrets.clone());
        match timeout(CAUSE_WITHIN, why).await {
            Ok(Ok(Some(cause))) => cause,
            Ok(Ok(None) | Err(_)) | Err(_) => Failure::busy(without).may_be_running(),
        }
    }
}

impl<S: Store> Poller<S> {
    /// Returns the error for a change that the storage had not completed when a job stopped
    /// waiting. `word` is the storage's name for the last known state.
    pub(super) fn unfinished(&self, id: &<S::Item as Item>::Id, word: Option<String>) -> Failure {
        let what = S::Item::WHAT;
        let state = match word {
            Some(word) => format!("the operation is still in progress in the storage ({word})"),
            None => "the storage has not shown the end of the operation in time".to_owned(),
        };
        let advice = match self.store().backend().traits().where_to_look {
            Some(advice) => format!("; if this persists, {advice}"),
            None => String::new(),
        };
        let message = format!("{what} {id}: {state}; repeat the call{advice}");
        Failure::busy(message).may_be_running()
    }
}

/// Returns the error for an item that still exists although the storage has accepted its deletion.
pub(super) fn kept<I: Item>(id: &I::Id) -> Failure {
    let what = I::WHAT;
    let message = format!(
        "{what} {id}: the storage has accepted its deletion, and still has it; repeat the call"
    );
    Failure::busy(message).may_be_running()
}
