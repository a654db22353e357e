//! The node of a driver, which may become ready only after the driver's socket has been created.
//! Also frees devices that a killed agent left bound.

use std::sync::{Arc, OnceLock};

use belay_server::call::{Failure, Kind, Rpc};
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use belay_server::work::fingerprint;

use super::NodeService;
use super::jobs::{Done, change};
use crate::kernel::Kernel;
use crate::operation::Node;

/// The node of a driver, or the reason why the driver is not ready.
pub(super) struct PendingNode<K: Kernel> {
    node: OnceLock<Arc<Node<K>>>,
    why: Lock<String>,
}

impl<K: Kernel> PendingNode<K> {
    /// Creates a node that is not ready; `why` is the reason.
    pub(super) fn new(why: &str) -> Self {
        PendingNode {
            node: OnceLock::new(),
            why: Lock::new(why.to_owned()),
        }
    }

    /// Returns the node.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` with the reason while the node is not ready, so that the caller
    /// retries.
    pub(super) fn get(&self) -> Result<Arc<Node<K>>, Failure> {
        self.node.get().cloned().ok_or_else(|| self.missing())
    }

    /// Returns the error `UNAVAILABLE` with the reason why the node is not ready.
    pub(super) fn missing(&self) -> Failure {
        let why = self.why.lock();
        Failure::new(Kind::Unreachable, why.clone())
    }

    /// Makes the node ready.
    pub(super) fn set(&self, node: Node<K>) {
        // The node is set only once. If it were set again, the second node would be dropped.
        drop(self.node.set(Arc::new(node)));
    }

    /// Stores the reason why the node is not ready.
    pub(super) fn fails(&self, why: &str) {
        let mut last = self.why.lock();
        why.clone_into(&mut last);
    }
}

impl<K: Kernel> NodeService<K> {
    /// Makes the driver ready: from now on, calls use `node`.
    pub(crate) fn come_up(&self, node: Node<K>) {
        self.node.set(node);
    }

    /// Stores the reason why the driver is not ready, which calls return as their error.
    pub(crate) fn fails(&self, why: &str) {
        self.node.fails(why);
    }

    /// Returns the driver's node.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` until the driver is ready.
    pub(crate) fn node(&self) -> Result<Arc<Node<K>>, Failure> {
        self.node.get()
    }

    /// Frees a device that a killed agent may have left bound, by calling [`Node::free_remnant`] in
    /// a job. Returns whether the device was freed. Does nothing while an operation that changes
    /// the volume is in progress, because that operation finds the device itself.
    ///
    /// # Errors
    /// Returns the errors of [`Node::free_remnant`].
    pub(crate) async fn free_remnant(
        &self,
        disk: usize,
        number: u32,
        id: VolumeId,
    ) -> Result<bool, Failure> {
        if self.jobs.view(&change(&id)).is_some() {
            return Ok(false);
        }
        let call = (Rpc::NodeUnstageVolume, fingerprint(&(&id, "remnant")));
        let key = change(&id);
        let work = move |node: &Node<K>| node.free_remnant(disk, number, &id).map(Done::Freed);
        let done = self.query(key, call, work).await?;
        Ok(matches!(done, Done::Freed(true)))
    }
}
