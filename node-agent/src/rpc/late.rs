//! The node that serves a driver's calls; it may be ready later than the driver's socket.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use belay_server::call::{Failure, Kind};

use crate::kernel::Kernel;
use crate::operation::Node;

/// A node, or the reason why it is not ready.
pub(super) struct Late<K: Kernel> {
    node: OnceLock<Arc<Node<K>>>,
    why: Mutex<String>,
}

impl<K: Kernel> Late<K> {
    /// Not ready yet, and why.
    pub(super) fn new(why: &str) -> Self {
        Late {
            node: OnceLock::new(),
            why: Mutex::new(why.to_owned()),
        }
    }

    /// The node.
    ///
    /// # Errors
    /// `UNAVAILABLE` with the reason while it is not ready; the caller retries.
    pub(super) fn get(&self) -> Result<Arc<Node<K>>, Failure> {
        self.node.get().cloned().ok_or_else(|| self.missing())
    }

    /// `UNAVAILABLE` with the reason.
    pub(super) fn missing(&self) -> Failure {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        Failure::new(Kind::Unreachable, why.clone())
    }

    /// Makes the node available.
    pub(super) fn set(&self, node: Node<K>) {
        // Only the one task that opens the driver's directory sets it, once.
        drop(self.node.set(Arc::new(node)));
    }

    /// Sets the reason why the node is not ready.
    pub(super) fn fails(&self, why: &str) {
        let mut last = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone_into(&mut last);
    }
}
