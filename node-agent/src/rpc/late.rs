//! The node that a driver's calls work with, which may come later than its socket.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use belay_server::call::{Failure, Kind};

use crate::kernel::Kernel;
use crate::operation::Node;

/// A node, or why there is none yet.
pub(super) struct Late<K: Kernel> {
    node: OnceLock<Arc<Node<K>>>,
    why: Mutex<String>,
}

impl<K: Kernel> Late<K> {
    /// None yet, and why.
    pub(super) fn new(why: &str) -> Self {
        Late {
            node: OnceLock::new(),
            why: Mutex::new(why.to_owned()),
        }
    }

    /// The node.
    ///
    /// # Errors
    /// `UNAVAILABLE` with the reason while there is none: whoever called comes again.
    pub(super) fn get(&self) -> Result<Arc<Node<K>>, Failure> {
        let why = || self.why.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || Failure::new(Kind::Unreachable, why().clone());
        self.node.get().cloned().ok_or_else(missing)
    }

    /// Here it is.
    pub(super) fn set(&self, node: Node<K>) {
        // Only the one task that opens the driver's folder sets it, once.
        drop(self.node.set(Arc::new(node)));
    }

    /// It is not here yet, and this is why.
    pub(super) fn fails(&self, why: &str) {
        let mut last = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone_into(&mut last);
    }
}
