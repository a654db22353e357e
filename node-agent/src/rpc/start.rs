//! Events that are no calls of a kubelet: a driver comes up, or a killed agent left a device bound.

use std::sync::Arc;

use belay_server::call::{Failure, Rpc};
use belay_server::request::VolumeId;
use belay_server::work::fingerprint;

use super::NodeService;
use super::jobs::{Done, change};
use crate::kernel::Kernel;
use crate::operation::Node;

impl<K: Kernel> NodeService<K> {
    /// The driver is ready from now on.
    pub(crate) fn come_up(&self, node: Node<K>) {
        self.node.set(node);
    }

    /// The driver is not ready yet; its callers get this reason.
    pub(crate) fn fails(&self, why: &str) {
        self.node.fails(why);
    }

    /// The node, once the driver has come up.
    ///
    /// # Errors
    /// `UNAVAILABLE` before that.
    pub(crate) fn node(&self) -> Result<Arc<Node<K>>, Failure> {
        self.node.get()
    }

    /// Frees a device that a killed agent may have left bound, see [`Node::free_remnant`]. Returns
    /// whether it did: not while another operation on the volume is in progress, which finds the
    /// device.
    ///
    /// # Errors
    /// Those of [`Node::free_remnant`].
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
