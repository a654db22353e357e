//! The node that serves a driver's calls, which may be ready later than the driver's socket, and
//! the devices that a killed agent left bound.

use std::sync::{Arc, OnceLock};

use belay_server::call::{Failure, Kind, Rpc};
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use belay_server::work::fingerprint;

use super::NodeService;
use super::jobs::{Done, change};
use crate::kernel::Kernel;
use crate::operation::Node;

/// A node, or the reason why it is not ready.
pub(super) struct PendingNode<K: Kernel> {
    node: OnceLock<Arc<Node<K>>>,
    why: Lock<String>,
}

impl<K: Kernel> PendingNode<K> {
    /// Returns a node that is not ready yet, for that reason.
    pub(super) fn new(why: &str) -> Self {
        PendingNode {
            node: OnceLock::new(),
            why: Lock::new(why.to_owned()),
        }
    }

    /// The node.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` with the reason while the node is not ready; the caller retries.
    pub(super) fn get(&self) -> Result<Arc<Node<K>>, Failure> {
        self.node.get().cloned().ok_or_else(|| self.missing())
    }

    /// The error `UNAVAILABLE`, with the reason.
    pub(super) fn missing(&self) -> Failure {
        let why = self.why.lock();
        Failure::new(Kind::Unreachable, why.clone())
    }

    /// Makes the node available.
    pub(super) fn set(&self, node: Node<K>) {
        // Only the single task that opens the driver's directory sets the node, once.
        drop(self.node.set(Arc::new(node)));
    }

    /// Sets the reason why the node is not ready.
    pub(super) fn fails(&self, why: &str) {
        let mut last = self.why.lock();
        why.clone_into(&mut last);
    }
}

impl<K: Kernel> NodeService<K> {
    /// Makes the driver ready from now on.
    pub(crate) fn come_up(&self, node: Node<K>) {
        self.node.set(node);
    }

    /// Records the reason why the driver is not ready, which its callers get.
    pub(crate) fn fails(&self, why: &str) {
        self.node.fails(why);
    }

    /// The node, once the driver has come up.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` before the driver has come up.
    pub(crate) fn node(&self) -> Result<Arc<Node<K>>, Failure> {
        self.node.get()
    }

    /// Frees a device that a killed agent may have left bound, see [`Node::free_remnant`]. Returns
    /// whether it did. It does not while another operation on the volume is in progress, which
    /// finds the device.
    ///
    /// # Errors
    /// Returns the errors of [`Node::free_remnant`].
    pub(crate) async fn free_remnant(&self, number: u32, id: VolumeId) -> Result<bool, Failure> {
        if self.jobs.view(&change(&id)).is_some() {
            return Ok(false);
        }
        let call = (Rpc::NodeUnstageVolume, fingerprint(&(&id, "remnant")));
        let key = change(&id);
        let work = move |node: &Node<K>| node.free_remnant(number, &id).map(Done::Freed);
        let done = self.query(key, call, work).await?;
        Ok(matches!(done, Done::Freed(true)))
    }
}
