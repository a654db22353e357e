//! Queues that serve one caller at a time for each key, in the order of arrival.

use belay_server::lock::Lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::{Mutex as Fair, OwnedMutexGuard};

/// The queues by key. A queue exists only while callers use it. The number of callers cannot exceed
/// the number of jobs.
pub(super) struct Queue<K>(Arc<Lock<HashMap<K, Arc<Fair<()>>>>>);

/// A caller's turn, which ends when this value is dropped.
pub(in crate::operation) struct Turn<K: Eq + Hash> {
    queue: Queue<K>,
    key: K,
    /// The lock of the queue; `None` only while this value is being dropped.
    held: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Queue<K> {
    /// Waits until all earlier callers have had their turn. A caller may stop waiting at any time.
    pub(super) async fn turn(&self, key: &K) -> Turn<K> {
        let line = Arc::clone(self.0.lock().entry(key.clone()).or_default());
        let mut turn = Turn {
            queue: Self(Arc::clone(&self.0)),
            key: key.clone(),
            held: None,
        };
        // The `Mutex` of tokio is fair. From here on, dropping `turn` removes the queue if no other
        // caller uses it.
        turn.held = Some(line.lock_owned().await);
        turn
    }
}

impl<K: Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        let mut lines = self.queue.0.lock();
        drop(self.held.take());
        if let Some(line) = lines.get(&self.key)
            && Arc::strong_count(line) == 1
        {
            lines.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::task::yield_now;
    use tokio::time::{sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_key_serves_one_caller_at_a_time_in_their_order() {
        let queue = Arc::new(Queue::<u32>::default());
        let (served, at_once) = (
            Arc::new(Lock::new(Vec::new())),
            Arc::new(AtomicUsize::new(0)),
        );
        let mut callers = Vec::new();
        for n in 0..20 {
            let (queue, served) = (Arc::clone(&queue), Arc::clone(&served));
            let at_once = Arc::clone(&at_once);
            callers.push(tokio::spawn(async move {
                let _turn = queue.turn(&(n % 2)).await;
                assert!(at_once.fetch_add(1, Ordering::SeqCst) < 2, "one a key");
                sleep(Duration::from_secs(1)).await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                served.lock().push(n);
            }));
            yield_now().await;
        }
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!(*served.lock(), (0..20).collect::<Vec<_>>());
        assert!(queue.0.lock().is_empty(), "nothing is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_stops_waiting_blocks_no_other() {
        let queue = Queue::<u32>::default();
        let first = queue.turn(&1).await;
        timeout(Duration::from_secs(1), queue.turn(&1))
            .await
            .map(drop)
            .unwrap_err();
        queue.turn(&2).await;
        assert_eq!(queue.0.lock().len(), 1);
        drop(first);
        drop(queue.turn(&1).await);
        assert!(queue.0.lock().is_empty());
    }
}
