//! The errors for changes that the storage accepts, and does not make or does not end.

use super::Engine;
use super::item::{Item, Store};
use super::poller::Poller;
use crate::backend::DroppedChange;
use belay_server::call::Failure;
use belay_server::request::{Secrets, VolumeId};
use std::time::Duration;
use tokio::time::timeout;

/// How long a call that has failed waits for the cause.
const CAUSE_WITHIN: Duration = Duration::from_secs(5);

impl Engine {
    /// For a change that the storage has accepted and that the volume, which is ready, does not
    /// show: with the cause, if the storage says it soon. The state is unknown, unless the storage
    /// knows it: it may show a change late.
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
    /// For a change that the storage had not ended when a job stopped waiting; with its word for
    /// what it was doing, if it was seen at it.
    pub(super) fn unfinished(&self, id: &<S::Item as Item>::Id, word: Option<String>) -> Failure {
        let what = S::Item::WHAT;
        let state = match word {
            Some(word) => format!("the operation is still in progress in the storage ({word})"),
            None => "the storage has not shown the end of the operation in time".to_owned(),
        };
        let advice = match self.store().backend().traits().where_to_look {
            Some(advice) => format!("; if it stays so, {advice}"),
            None => String::new(),
        };
        let message = format!("{what} {id}: {state}; repeat the call{advice}");
        Failure::busy(message).may_be_running()
    }
}

/// For an item whose deletion the storage has accepted, and that it still has.
pub(super) fn kept<I: Item>(id: &I::Id) -> Failure {
    let what = I::WHAT;
    let message = format!(
        "{what} {id}: the storage has accepted its deletion, and still has it; repeat the call"
    );
    Failure::busy(message).may_be_running()
}
