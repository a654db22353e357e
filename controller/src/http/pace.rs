//! Limits the rate of calls. The rate is unlimited until the service refuses a call because of the
//! service's own rate limit. Callers proceed in order of arrival.

use belay_server::lock::Lock;
use std::time::Duration;
use tokio::sync::Mutex as Fair;
use tokio::time::{Instant, sleep_until};

/// The interval between two calls after the first refusal.
const INTERVAL_FIRST: Duration = Duration::from_millis(50);
/// The maximum interval between two calls.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// The minimum interval between two calls. A shorter interval is rounded down to zero.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
/// Each call that the service does not refuse shortens the interval by 1/`RECOVERY`.
const RECOVERY: u32 = 32;

/// The rate of calls with one account.
#[derive(Debug)]
pub(super) struct Pace {
    /// The queue of new callers. Only the first new caller also waits in the queue `gate`.
    line: Fair<()>,
    /// The queue of the first new caller and of callers whose calls were refused. Both queues are
    /// fair, and a caller may stop waiting at any time.
    gate: Fair<()>,
    state: Lock<State>,
}

#[derive(Debug)]
struct State {
    /// The minimum time between two calls; zero if the rate is unlimited.
    interval: Duration,
    /// The earliest time for the next call.
    next: Instant,
    /// The end of the pause that the service has requested.
    pause: Instant,
    /// The time at which the interval was last lengthened.
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

    /// Waits until a call may be sent, after the calls of all earlier callers. A caller whose call
    /// the rate limit has refused skips the queue of new callers.
    pub(super) async fn turn(&self, was_refused: bool) {
        let _line = match was_refused {
            true => None,
            false => Some(self.line.lock().await),
        };
        let _gate = self.gate.lock().await;
        loop {
            let at = self.state.lock().begin(Instant::now());
            let Some(at) = at else { return };
            // A call that was sent earlier may be refused meanwhile, which extends the pause.
            sleep_until(at).await;
        }
    }

    /// Records that the service refused a call that was sent at `sent`, because of its rate limit
    /// (429). `after` is the pause that the service requests. If the service refuses several calls
    /// that were sent before the first refusal, the interval grows only once.
    pub(super) fn refused(&self, sent: Instant, after: Duration) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        if sent >= state.slowed {
            state.interval = (state.interval * 2).clamp(INTERVAL_FIRST, INTERVAL_MAX);
            state.slowed = now;
        }
        state.pause = state.pause.max(now + after);
    }

    /// Records that the rate limit did not refuse a call, and shortens the interval.
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
    /// Starts a call. If the next call must not be sent yet, returns the time at which to try
    /// again.
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

    /// Returns the time that this number of calls takes if no call is refused.
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

    /// Returns a pace with the longest interval between calls.
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
                // Every tenth call is refused while the next calls are already waiting.
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
        // At most one new caller precedes a caller whose call was refused.
        pace.turn(true).await;
        let mut before = 0;
        while callers.try_join_next().is_some() {
            before += 1;
        }
        assert_eq!(before, 1);
    }
}
