//! Paces a burst of connections, each of which takes 26 KiB while it is open: the next ones stay in
//! the listener's queue until a few of those before them have been answered. One thread serves
//! them all, so the burst does not take longer. A connection counts for a moment only, whatever it
//! does, so that calls that hang and clients that say nothing hardly delay others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Connections that count, at a time. Enough to keep the thread busy while clients work, too.
const YOUNG_MAX: usize = 16;

/// How long a connection counts. An answer takes a tenth of it, on an idle machine.
const YOUNG: Duration = Duration::from_millis(10);

/// The pace of a listener.
#[derive(Debug, Default)]
pub(super) struct Pace {
    young: Mutex<Young>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Young {
    /// Of the last connection; never used again.
    number: u64,
    /// When each was accepted, by number.
    accepted: Vec<(u64, Instant)>,
}

/// A connection that counts, until this is dropped or it is no longer young.
#[derive(Debug)]
pub(super) struct Turn {
    number: u64,
    pace: Arc<Pace>,
}

impl Pace {
    /// Returns when another connection may be accepted.
    pub(super) async fn turn(&self) {
        loop {
            // Before the check, so that no change after it is missed.
            let changed = self.changed.notified();
            let Some(oldest) = self.oldest_of_full() else {
                return;
            };
            // Either way there is room.
            drop(tokio::time::timeout_at(oldest + YOUNG, changed).await);
        }
    }

    /// Counts a connection that was just accepted.
    pub(super) fn enter(self: &Arc<Self>) -> Turn {
        let mut young = self.young();
        young.number += 1;
        let number = young.number;
        young.accepted.push((number, Instant::now()));
        Turn {
            number,
            pace: Arc::clone(self),
        }
    }

    /// When the oldest connection was accepted, if as many as may count are young.
    fn oldest_of_full(&self) -> Option<Instant> {
        let mut young = self.young();
        let accepted = &mut young.accepted;
        accepted.retain(|(_, at)| at.elapsed() < YOUNG);
        let (_, oldest) = accepted.first()?;
        (accepted.len() >= YOUNG_MAX).then_some(*oldest)
    }

    fn young(&self) -> MutexGuard<'_, Young> {
        self.young.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let is_other = |(number, _): &(u64, Instant)| *number != self.number;
        self.pace.young().accepted.retain(is_other);
        self.pace.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn may_enter(pace: &Pace) -> bool {
        pace.turn().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_until_one_before_it_is_answered() {
        let pace = Arc::new(Pace::default());
        let mut turns = Vec::new();
        while may_enter(&pace) {
            turns.push(pace.enter());
        }
        assert_eq!(turns.len(), YOUNG_MAX);
        let began = Instant::now();
        let mut waiting = Box::pin(pace.turn());
        assert!(waiting.as_mut().now_or_never().is_none());
        turns.swap_remove(3);
        waiting.await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        turns.push(pace.enter());
        assert!(!may_enter(&pace));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_are_not_answered_delay_others_once() {
        let pace = Arc::new(Pace::default());
        let hung: Vec<_> = (0..YOUNG_MAX).map(|_| pace.enter()).collect();
        let began = Instant::now();
        pace.turn().await;
        assert!(began.elapsed() >= YOUNG);
        let next: Vec<_> = (0..YOUNG_MAX).map(|_| pace.enter()).collect();
        assert!(!may_enter(&pace));
        // The old ones count no longer, and neither does their end.
        drop(hung);
        assert!(!may_enter(&pace));
        drop(next);
        assert!(may_enter(&pace));
        assert!(pace.young().accepted.is_empty());
    }
}
