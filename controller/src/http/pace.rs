//! How fast calls are sent: as they come, until the service says that it is too fast. Callers are
//! served in their order.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Between two calls after the first refusal, and at most.
const INTERVAL_FIRST: Duration = Duration::from_millis(50);
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// A shorter interval is none.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
/// By so many parts is the interval shortened with each call that is answered.
const RECOVERY: u32 = 32;

/// The pace of one account.
#[derive(Debug)]
pub(super) struct Pace(Mutex<State>);

#[derive(Debug)]
struct State {
    interval: Duration,
    /// When the next call may be sent.
    next: Instant,
    /// Until when none may, as the service has said.
    pause: Instant,
    /// When the interval was last lengthened.
    slowed: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self(Mutex::new(State {
            interval: Duration::ZERO,
            next: now,
            pause: now,
            slowed: now,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call may be sent.
    pub(super) async fn turn(&self) {
        loop {
            let at = self.state().slot(Instant::now());
            sleep_until(at).await;
            // A call that was sent meanwhile may have been refused.
            if self.state().pause <= Instant::now() {
                return;
            }
        }
    }

    /// A call that was sent then was refused for its pace (429); `after` is how long the service
    /// wants to be left alone. Calls that were sent together are one reason to slow down.
    pub(super) fn refused(&self, sent: Instant, after: Duration) {
        let (mut state, now) = (self.state(), Instant::now());
        if sent >= state.slowed {
            state.interval = (state.interval * 2).clamp(INTERVAL_FIRST, INTERVAL_MAX);
            state.slowed = now;
        }
        state.pause = state.pause.max(now + after);
    }

    /// A call was answered.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        let shorter = state.interval - state.interval / RECOVERY;
        state.interval = match shorter < INTERVAL_MIN {
            true => Duration::ZERO,
            false => shorter,
        };
    }
}

impl State {
    fn slot(&mut self, now: Instant) -> Instant {
        let at = now.max(self.next).max(self.pause);
        self.next = at + self.interval;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    /// How long so many calls take, which all are answered.
    async fn sent(pace: &Pace, calls: u32) -> Duration {
        let begun = Instant::now();
        for _ in 0..calls {
            pace.turn().await;
            pace.answered();
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_slows_all_calls_and_answers_restore_the_pace() {
        let pace = Pace::new();
        assert_eq!(sent(&pace, 1000).await, Duration::ZERO);
        pace.refused(Instant::now(), Duration::from_secs(7));
        assert!(
            sent(&pace, 1).await >= Duration::from_secs(7),
            "Retry-After"
        );
        let slow = sent(&pace, 10).await;
        assert!(slow >= INTERVAL_FIRST * 5, "{slow:?}");
        sent(&pace, 200).await;
        assert_eq!(sent(&pace, 1000).await, Duration::ZERO);

        for _ in 0..100 {
            pace.refused(Instant::now(), Duration::ZERO);
        }
        pace.turn().await;
        let slowest = sent(&pace, 1).await;
        assert!(slowest <= INTERVAL_MAX, "{slowest:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_calls_that_were_sent_together_slow_down_once() {
        let pace = Pace::new();
        let begun = Instant::now();
        advance(Duration::from_millis(10)).await;
        for _ in 0..50 {
            pace.refused(begun, Duration::ZERO);
        }
        pace.turn().await;
        let slow = sent(&pace, 1).await;
        assert!(slow <= INTERVAL_FIRST, "{slow:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_holds_calls_that_wait_already() {
        let pace = Pace::new();
        pace.refused(Instant::now(), Duration::from_secs(1));
        let begun = Instant::now();
        let waiting = pace.turn();
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            () = &mut waiting => panic!("too early"),
            () = advance(Duration::from_millis(500)) => {
                pace.refused(Instant::now(), Duration::from_secs(5));
            }
        }
        waiting.await;
        assert!(begun.elapsed() >= Duration::from_millis(5500));
    }
}
