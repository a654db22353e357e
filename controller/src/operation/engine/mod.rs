//! Handles storage that responds before a change is complete, accepts duplicate names, or loses
//! responses. The engine finds the volume or snapshot with a name, waits for changes, and queues
//! calls. This module does not depend on a particular cloud.

mod by_name;
mod contest;
mod dropped;
mod item;
mod poller;
mod queue;
mod view;

use crate::backend::{Answer, Attempt, Backend, Mark, Progress, Snapshot, Volume};
use belay_server::call::{Failure, Kind};
use belay_server::request::{NodeId, Secrets, SnapshotId, VolumeId};
pub(super) use item::Item;
use item::{NameRequest, SnapshotStore, Store, VolumeStore};
use poller::{LastSeen, Poller, is_at_work};
use queue::{Queue, Turn};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Maximum time that a job waits for one change of a volume. The time is shorter than the caller's
/// timeout, so that the volume is free for a call that reverts the change. If the storage accepts
/// duplicate names, a creation may wait several times for up to this time.
const PATIENCE: Duration = Duration::from_secs(90);

/// The pause before a failed request is repeated while an item is being deleted.
const DELETE_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of a job: how long it waits for its change of a volume, and how often it begins the
/// change.
pub(super) struct Patience {
    until: Instant,
    begins_left: u32,
}

impl Patience {
    /// Whether the maximum number of attempts to make the change has been reached.
    pub(super) fn is_spent(&self) -> bool {
        self.begins_left == 0
    }
}

/// Finds the volumes and snapshots of one backend, and waits for their changes.
pub(super) struct Engine {
    backend: Arc<dyn Backend>,
    volumes: Poller<VolumeStore>,
    snapshots: Poller<SnapshotStore>,
    nodes: Queue<NodeId>,
    /// A random number that distinguishes this process from other controllers.
    process: u64,
    attempts: AtomicU64,
}

impl Engine {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            volumes: Poller::new(VolumeStore(Arc::clone(&backend))),
            snapshots: Poller::new(SnapshotStore(Arc::clone(&backend))),
            backend,
            nodes: Queue::default(),
            process: RandomState::new().hash_one(()),
            attempts: AtomicU64::new(0),
        }
    }

    /// Returns the identifier of a new attempt to create a volume or a snapshot.
    pub(super) fn attempt(&self) -> Attempt {
        Attempt::new(self.process, self.attempts.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until the volume is ready or failed, and returns it; `None` if it was deleted.
    ///
    /// # Errors
    /// Returns `Busy` if the storage takes longer than a job waits, or the error if the volume
    /// still cannot be read. All of these errors have an unknown state.
    pub(super) async fn settled_soon(
        &self,
        id: &VolumeId,
        secrets: &Secrets,
    ) -> Result<Option<Volume>, Failure> {
        settled_by(&self.volumes, end_of_patience(), id, secrets).await
    }

    /// Waits like [`Self::settled_soon`] for a change that was just begun, within the limits of
    /// `patience`. Until a limit is reached, the caller may begin the change again if the storage
    /// has dropped it.
    ///
    /// # Errors
    /// Returns the errors of [`Self::settled_soon`], and `Busy` if the change was begun more often
    /// than `patience` allows.
    pub(super) async fn settled_within(
        &self,
        patience: &mut Patience,
        id: &VolumeId,
        secrets: &Secrets,
    ) -> Result<Option<Volume>, Failure> {
        let left = patience.begins_left.checked_sub(1);
        patience.begins_left = left.ok_or_else(|| self.volumes.unfinished(id, None))?;
        settled_by(&self.volumes, patience.until, id, secrets).await
    }

    /// Waits like [`Self::settled_soon`], for a snapshot.
    pub(super) async fn snapshot_settled_soon(
        &self,
        id: &SnapshotId,
        secrets: &Secrets,
    ) -> Result<Option<Snapshot>, Failure> {
        settled_by(&self.snapshots, end_of_patience(), id, secrets).await
    }

    /// Returns the snapshot, which was just created or found, once it is ready or failed.
    ///
    /// # Errors
    /// Returns the errors of [`at_rest`].
    pub(super) async fn snapshot_at_rest(
        &self,
        snapshot: Snapshot,
        secrets: &Secrets,
    ) -> Result<Snapshot, Failure> {
        at_rest(&self.snapshots, snapshot, secrets).await
    }

    /// Returns the limits of a job that begins now.
    pub(super) fn patience(&self) -> Patience {
        Patience {
            until: end_of_patience(),
            begins_left: self.backend.traits().begins_max,
        }
    }

    /// If a node accepts only one change at a time, waits for this call's turn to attach a volume
    /// to the node, or detach it. The turn ends when the result is dropped. Returns `None` at once
    /// if a node accepts several changes at a time.
    ///
    /// # Errors
    /// Returns `Busy` if the turn does not come in time, since a change must not begin after its
    /// caller has stopped waiting.
    pub(super) async fn turn(
        &self,
        node: &NodeId,
        patience: &Patience,
    ) -> Result<Option<Turn<NodeId>>, Failure> {
        if !self.backend.traits().attaches_one_by_one {
            return Ok(None);
        }
        let turn = timeout_at(patience.until, self.nodes.turn(node)).await;
        turn.map(Some).map_err(|_| {
            Failure::busy(format!(
                "node {node}: other volumes are being attached or detached; repeat the call"
            ))
        })
    }
}

/// Returns the time until which a job that begins now waits for the storage.
fn end_of_patience() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits until the item is ready or failed, and returns it; returns `None` if it was deleted.
/// Returns `Busy` at the time `until`.
async fn settled_by<S: Store>(
    poller: &Poller<S>,
    until: Instant,
    id: &<S::Item as Item>::Id,
    secrets: &Secrets,
) -> Result<Option<S::Item>, Failure> {
    let last = LastSeen::default();
    let seen = timeout_at(until, poller.settled(id, secrets, &last)).await;
    seen.unwrap_or_else(|_| Err(poller.unfinished(id, last.word())))
}

/// Waits until the item is ready or failed, and returns it. If a later read omits properties that
/// were in the response to the creation, keeps these properties.
///
/// # Errors
/// Returns the errors of reading the item, and `Busy` if it was deleted meanwhile or if the storage
/// takes longer than a job waits.
async fn at_rest<S: Store>(
    poller: &Poller<S>,
    item: S::Item,
    secrets: &Secrets,
) -> Result<S::Item, Failure> {
    if !is_at_work(&item) {
        return Ok(item);
    }
    let settled = settled_by(poller, end_of_patience(), item.id(), secrets).await?;
    let mut settled = settled.ok_or_else(|| {
        let (what, id) = (S::Item::WHAT, item.id());
        Failure::busy(format!("{what} {id}: deleted meanwhile; repeat the call"))
    })?;
    settled.complete(&item);
    Ok(settled)
}

/// Deletes an item that this process created for the name, and waits until it is deleted. First
/// reads the item by its ID and checks that this process created it, since the storage may have
/// returned the ID of another item.
///
/// # Errors
/// Returns `System` if this process did not create the item with this ID. Returns persistent errors
/// of reading and deleting the item, and the errors of [`settled_by`].
async fn delete<S: Store>(
    poller: &Poller<S>,
    id: &<S::Item as Item>::Id,
    bid: NameRequest<'_>,
) -> Result<(), Failure> {
    let store = poller.store();
    let read = until_answered(|| store.get(id.clone(), bid.secrets.clone())).await?;
    match read {
        None => return Ok(()),
        Some(item) if is_own(store.backend(), &item, bid) => {}
        Some(item) => {
            let (what, name) = (S::Item::WHAT, item.name().unwrap_or_default());
            return Err(Failure::new(
                Kind::System,
                format!(
                    "{what} {id}: is not deleted: the storage has shown its ID for name {:?}, but \
                     it has the name {name:?}, or another process created it",
                    bid.name.as_str()
                ),
            ));
        }
    }
    let progress = until_answered(|| store.delete(id.clone(), bid.secrets.clone())).await?;
    deleted(poller, id, progress, bid.secrets).await
}

/// Whether this process created the item for the name, and no caller can be using it.
fn is_own(backend: &dyn Backend, item: &impl Item, bid: NameRequest<'_>) -> bool {
    let name = item.name();
    let is_named = name.is_some_and(|shown| backend.is_name(shown, bid.name));
    match item.mark() {
        Mark::Open(by) => is_named && by.is_of_the_process_of(bid.attempt),
        // Another call has claimed the item, but will not return it to its caller.
        Mark::Claimed => is_named,
        Mark::None | Mark::Copied => false,
    }
}

/// Sends a request, and repeats it after a failure for as long as the [`Outage`] is tolerated.
async fn until_answered<'a, T: 'a>(ask: impl Fn() -> Answer<'a, T>) -> Result<T, Failure> {
    let mut outage = Outage::default();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(failure) => outage.bear(failure)?,
        }
        sleep(DELETE_INTERVAL).await;
    }
}

/// Waits until a deletion is complete. `progress` is the storage's response to the deletion.
async fn deleted<S: Store>(
    poller: &Poller<S>,
    id: &<S::Item as Item>::Id,
    progress: Progress<()>,
    secrets: &Secrets,
) -> Result<(), Failure> {
    match progress {
        Progress::Done(()) => Ok(()),
        Progress::Begun => match settled_by(poller, end_of_patience(), id, secrets).await? {
            None => Ok(()),
            Some(_) => Err(dropped::kept::<S::Item>(id)),
        },
    }
}

/// The maximum duration of an outage that a job tolerates. This time is longer than a restart of
/// the storage's services. If the caller repeats the call later, the new call starts with a new
/// search.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// An outage: a sequence of failed requests without a response between them. A waiting job
/// tolerates an outage for a limited time. The field is the time at which the outage began; `None`
/// if there is no outage.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Instant>);

impl Outage {
    /// Records a failure.
    ///
    /// # Errors
    /// Returns the failure, with an unknown state, if the failure is permanent or the outage has
    /// lasted too long.
    pub(super) fn bear(&mut self, failure: Failure) -> Result<(), Failure> {
        let since = *self.0.get_or_insert_with(Instant::now);
        match passes(failure.kind) && since.elapsed() < OUTAGE_MAX {
            true => Ok(()),
            false => Err(failure.may_be_running()),
        }
    }

    /// Ends the outage, since the storage has responded.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}

/// Whether a failure of this kind may pass without intervention, so that a repeated request
/// succeeds.
fn passes(kind: Kind) -> bool {
    match kind {
        Kind::Busy | Kind::Unreachable | Kind::Timeout | Kind::System => true,
        Kind::Invalid
        | Kind::NotFound
        | Kind::Incompatible
        | Kind::Precondition
        | Kind::Range
        | Kind::Quota
        | Kind::Unsupported
        | Kind::BadToken
        | Kind::Unauthenticated
        | Kind::Denied
        | Kind::Bug => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_borne_for_a_while_and_an_answer_ends_it() {
        let mut outage = Outage::default();
        let down = || Failure::new(Kind::Unreachable, "connection refused");
        for _ in 0..2 {
            outage.bear(down()).unwrap();
            advance(OUTAGE_MAX - Duration::from_millis(1)).await;
            outage.bear(down()).unwrap();
            outage.end();
        }
        outage.bear(down()).unwrap();
        advance(OUTAGE_MAX).await;
        let failure = outage.bear(down()).unwrap_err();
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_does_not_pass_is_not_borne() {
        let refused = Failure::precondition("401");
        let failure = Outage::default().bear(refused.clone()).unwrap_err();
        assert_eq!(failure, refused.may_be_running());
    }
}
