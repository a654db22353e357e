//! What the operations need wherever the storage answers before it is done, accepts a name twice or
//! loses an answer: which volume a name means, waiting, queues. Knows no cloud.

mod by_name;
mod contest;
mod outage;
mod poller;
mod queue;
mod view;

use crate::backend::{Attempt, Backend, Volume};
use belay_server::call::Failure;
use belay_server::request::{NodeId, VolumeId};
use poller::Poller;
use queue::{Queue, Turn};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// How long the job of a volume waits: less than a caller does, so that the volume is free then for
/// the call that undoes this one.
const PATIENCE: Duration = Duration::from_secs(90);

/// The engine of one backend.
pub(super) struct Engine {
    backend: Arc<dyn Backend>,
    poller: Poller,
    nodes: Queue<NodeId>,
    /// A number that no other process has.
    process: u64,
    attempts: AtomicU64,
}

impl Engine {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            poller: Poller::new(Arc::clone(&backend)),
            backend,
            nodes: Queue::default(),
            process: RandomState::new().hash_one(()),
            attempts: AtomicU64::new(0),
        }
    }

    /// A new attempt to create a volume.
    pub(super) fn attempt(&self) -> Attempt {
        Attempt::new(self.process, self.attempts.fetch_add(1, Ordering::Relaxed))
    }

    /// The volume once the storage is done with it, ready or failed; none if it is gone then.
    ///
    /// # Errors
    /// `Busy` if the storage takes longer than a job waits, and those of a look that failed for too
    /// long; all with an unknown state left behind.
    pub(super) async fn settled_soon(&self, id: &VolumeId) -> Result<Option<Volume>, Failure> {
        let seen = timeout(PATIENCE, self.poller.settled(id)).await;
        seen.unwrap_or_else(|_| Err(still_busy(id)))
    }

    /// Waits until it is this call's turn to change what is attached to a node, where a node takes
    /// one change at a time. The turn ends with what is returned.
    pub(super) async fn turn(&self, node: &NodeId) -> Option<Turn<NodeId>> {
        match self.backend.attachments()?.one_per_node() {
            true => Some(self.nodes.turn(node).await),
            false => None,
        }
    }
}

/// For a call that the storage has accepted, and not done.
pub(super) fn still_busy(id: &VolumeId) -> Failure {
    let message = format!("volume {id}: the storage has not done it yet; repeat the call");
    Failure::busy(message).may_be_running()
}
