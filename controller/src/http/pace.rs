//! How fast calls are sent: as they come, until the service says that it is too fast. Callers are
//! served in their order.

use belay_server::lock::Lock;
use std::time::Duration;
use tokio::sync::Mutex as Fair;
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
pub(super) struct Pace {
    /// Where new callers wait; the first of them goes on to the gate.
    line: Fair<()>,
    /// Where that one and the refused ones wait. Both are fair, and a caller that stops waiting
    /// leaves nothing behind.
    gate: Fair<()>,
    state: Lock<State>,
}

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
        let state = State {
            interval: Duration::ZERO,
            next: now,
            pause: now,
            slowed: now,
        };
        Self {
            line: Fair::default(),
            gate: Fair::default(),
            state: Lock::new(state),
        }
    }

    /// Waits until a call may be sent: after the calls that came before it, unless it has had its
    /// turn, and the service refused it.
    pub(super) async fn turn(&self, was_refused: bool) {
        let _line = match was_refused {
            true => None,
            false => Some(self.line.lock().await),
        };
        let _gate = self.gate.lock().await;
        loop {
            let at = self.state.lock().begin(Instant::now());
            let Some(at) = at else { return };
            // A call that is sent meanwhile may be refused.
            sleep_until(at).await;
        }
    }

    /// A call that was sent then was refused for its pace (429); `after` is how long the service
    /// wants to be left alone. Calls that were sent together are one reason to slow down.
    pub(super) fn refused(&self, sent: Instant, after: Duration) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        if sent >= state.slowed {
            state.interval = (state.interval * 2).clamp(INTERVAL_FIRST, INTERVAL_MAX);
            state.slowed = now;
        }
        state.pause = state.pause.max(now + after);
    }

    /// A call was answered.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        let shorter = state.interval - state.interval / RECOVERY;
        state.interval = match shorter < INTERVAL_MIN {
            true => Duration::ZERO,
            false => shorter,
        };
    }
}

impl State {
    /// A call begins; or, if it is too early, when to try again.
    fn begin(&mut self, now: Instant) -> Option<Instant> {
        let at = self.next.max(self.pause);
        if now < at {
            return Some(at);
        }
        self.next = now + self.interval;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::task::JoinSet;
    use tokio::time::{advance, timeout};

    /// How long so many calls take, which all are answered.
    async fn sent(pace: &Pace, calls: u32) -> Duration {
        let begun = Instant::now();
        for _ in 0..calls {
            pace.turn(false).await;
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
        pace.turn(false).await;
        let slowest = sent(&pace, 1).await;
        assert!(slowest <= INTERVAL_MAX, "{slowest:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_shortens_the_interval_by_a_part_and_one_below_the_least_is_none() {
        let shortened = |interval: Duration| {
            let pace = Pace::new();
            pace.state.lock().interval = interval;
            pace.answered();
            pace.state.lock().interval
        };
        let second = Duration::from_secs(1);
        assert_eq!(shortened(32 * second), 31 * second);
        assert_eq!(shortened(INTERVAL_MIN * 32 / 31), INTERVAL_MIN);
        assert_eq!(shortened(INTERVAL_MIN), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_calls_that_were_sent_together_slow_down_once() {
        let pace = Pace::new();
        let begun = Instant::now();
        advance(Duration::from_millis(10)).await;
        for _ in 0..50 {
            pace.refused(begun, Duration::ZERO);
        }
        pace.turn(false).await;
        let slow = sent(&pace, 1).await;
        assert!(slow <= INTERVAL_FIRST, "{slow:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_holds_calls_that_wait_already() {
        let pace = Pace::new();
        pace.refused(Instant::now(), Duration::from_secs(1));
        let begun = Instant::now();
        let waiting = pace.turn(false);
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

    /// A pace at which calls follow each other after the longest interval.
    fn slowest() -> Pace {
        let pace = Pace::new();
        for _ in 0..100 {
            pace.refused(Instant::now(), Duration::ZERO);
        }
        pace
    }

    #[tokio::test(start_paused = true)]
    async fn callers_keep_their_order_through_pauses() {
        let pace = Arc::new(slowest());
        let order = Arc::<Lock<Vec<usize>>>::default();
        let mut callers = JoinSet::new();
        for n in 0..50 {
            let (pace, order) = (Arc::clone(&pace), Arc::clone(&order));
            callers.spawn(async move {
                pace.turn(false).await;
                order.lock().push(n);
                // Each tenth is refused, while the next ones wait already.
                if n % 10 == 0 {
                    pace.refused(Instant::now(), Duration::from_secs(7));
                }
            });
            tokio::task::yield_now().await;
        }
        callers.join_all().await;
        let order = order.lock();
        assert!(order.is_sorted(), "{order:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_stops_waiting_delays_no_other() {
        let pace = Arc::new(slowest());
        pace.turn(false).await;
        let mut callers = JoinSet::new();
        for _ in 0..1000 {
            let pace = Arc::clone(&pace);
            callers.spawn(async move {
                timeout(Duration::from_secs(30), pace.turn(false))
                    .await
                    .is_ok()
            });
        }
        let served = callers.join_all().await;
        assert_eq!(
            served.into_iter().filter(|is_served| *is_served).count(),
            15
        );
        assert!(sent(&pace, 1).await <= INTERVAL_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_call_is_sent_again_before_calls_that_came_later() {
        let pace = Arc::new(slowest());
        pace.turn(false).await;
        let mut callers = JoinSet::new();
        for n in 0..10 {
            let pace = Arc::clone(&pace);
            callers.spawn(async move {
                pace.turn(false).await;
                n
            });
            tokio::task::yield_now().await;
        }
        // Only the caller that is next already comes before it.
        pace.turn(true).await;
        let mut before = 0;
        while callers.try_join_next().is_some() {
            before += 1;
        }
        assert_eq!(before, 1);
    }
}
