//! The context of an operation, in addition to its request.

use std::ops::Deref;

use super::Node;
use crate::kernel::Kernel;
use crate::work::{Clock, Operation, Phase, Progress};

/// The node as seen by one running operation: knows its phase, shows it, and measures it.
pub(crate) struct Context<'a, K: Kernel> {
    node: &'a Node<K>,
    clock: Clock<'a>,
}

impl<K: Kernel> Context<'_, K> {
    /// Runs a part of the operation as this phase; afterwards the outer phase continues.
    pub(super) fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        self.clock.phase(phase, work)
    }

    /// What others see of the operation.
    pub(super) fn progress(&self) -> &Progress {
        self.clock.progress()
    }
}

impl<K: Kernel> Deref for Context<'_, K> {
    type Target = Node<K>;

    fn deref(&self) -> &Node<K> {
        self.node
    }
}

/// Runs a whole operation, which `progress` shows. Work outside the other phases counts as
/// [`Phase::Inspect`].
pub(crate) fn run<K: Kernel, T>(
    node: &Node<K>,
    progress: &Progress,
    operation: Operation,
    work: impl FnOnce(&Context<'_, K>) -> T,
) -> T {
    let clock = Clock::start(operation, progress);
    let cx = Context { node, clock };
    cx.phase(Phase::Inspect, || work(&cx))
}
