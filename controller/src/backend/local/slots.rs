//! Limits the number of methods that run concurrently, each on its own thread. If a disk does not
//! respond, the threads that use it are blocked, and each thread uses memory. Further methods wait
//! in a bounded queue. This module also tracks the names of volumes and snapshots on which threads
//! are working. The module does not depend on the methods that it runs.

use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent read-only methods.
pub(super) const QUESTIONS_MAX: usize = 16;
/// Maximum number of concurrent changes. Concurrent changes can share one commit of the ledger.
const CHANGES_MAX: usize = 16;
/// Maximum number of concurrent snapshots, restores and clones. Each of these may copy data for a
/// long time, and must not block other changes.
const COPIES_MAX: usize = 8;
/// The number of threads for all methods.
pub(crate) const THREADS_MAX: usize = QUESTIONS_MAX + CHANGES_MAX + COPIES_MAX;
/// Maximum number of waiting methods of one kind. A CSI sidecar makes about ten calls at a time, so
/// this suffices for many sidecars.
const WAITING_MAX: usize = 512;

/// The slots for methods of one kind, and their queue.
#[derive(Debug)]
pub(super) struct Slots {
    /// The permits of running and waiting methods.
    pub(super) admitted: Arc<Semaphore>,
    /// The permits of running methods.
    pub(super) at_work: Arc<Semaphore>,
}

/// The slots for all kinds of methods.
#[derive(Debug)]
pub(super) struct AllSlots {
    pub(super) questions: Slots,
    pub(super) changes: Slots,
    pub(super) copies: Slots,
}

/// The permission for one method to run, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _admitted: OwnedSemaphorePermit,
    _at_work: OwnedSemaphorePermit,
}

impl AllSlots {
    pub(super) fn new() -> Self {
        Self {
            questions: Slots::new(QUESTIONS_MAX),
            changes: Slots::new(CHANGES_MAX),
            copies: Slots::new(COPIES_MAX),
        }
    }
}

impl Slots {
    fn new(at_work: usize) -> Self {
        Self {
            admitted: Arc::new(Semaphore::new(at_work + WAITING_MAX)),
            at_work: Arc::new(Semaphore::new(at_work)),
        }
    }

    /// Waits for a slot. A caller that stops waiting leaves the queue.
    ///
    /// # Errors
    /// Returns `Busy` if too many callers are waiting. In this case, the method has not started.
    pub(super) async fn take(&self) -> Result<Slot, Failure> {
        let refused = || {
            Failure::busy(format!(
                "{WAITING_MAX} calls of this kind are waiting already; repeat the call later; if \
                 this persists, check the kernel log for a disk that does not answer"
            ))
        };
        let admitted = Arc::clone(&self.admitted).try_acquire_owned();
        let admitted = admitted.map_err(|_| refused())?;
        // Acquiring the permit cannot fail, since the semaphore is never closed.
        let at_work = Arc::clone(&self.at_work).acquire_owned().await;
        Ok(Slot {
            _admitted: admitted,
            _at_work: at_work.map_err(|_| refused())?,
        })
    }
}

/// The names of volumes, or of snapshots, on which threads of this process are working. If the
/// ledger contains an incomplete creation or deletion of any other name, the call that began it has
/// failed, and the cleanup of that call has failed, too.
#[derive(Debug, Default)]
pub(super) struct InProgress {
    names: Lock<HashSet<String>>,
}

/// The exclusive right to work on a name, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct InProgressGuard<'m> {
    in_progress: &'m InProgress,
    name: String,
}

impl InProgress {
    /// Reserves a name; returns `None` if another thread is working on it.
    pub(super) fn begin(&self, name: &str) -> Option<InProgressGuard<'_>> {
        let name = name.to_owned();
        let free = self.names.lock().insert(name.clone());
        free.then(|| InProgressGuard {
            in_progress: self,
            name,
        })
    }
}

impl Drop for InProgressGuard<'_> {
    fn drop(&mut self) {
        self.in_progress.names.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;
    use std::future::Future as _;
    use std::task::{Context, Poll, Waker};

    #[tokio::test]
    async fn what_finds_the_queue_full_is_refused_and_what_leaves_it_makes_room() {
        let slots = Slots::new(1);
        let working = slots.take().await.unwrap();
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(slots.take())).collect();
        let mut context = Context::from_waker(Waker::noop());
        for one in &mut waiting {
            assert!(one.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(slots.take().await.unwrap_err().kind, Kind::Busy);
        drop(waiting.pop());
        let mut last = Box::pin(slots.take());
        assert!(last.as_mut().poll(&mut context).is_pending());
        drop(working);
        let first = waiting[0].as_mut().poll(&mut context);
        assert!(matches!(first, Poll::Ready(Ok(_))));
    }
}
