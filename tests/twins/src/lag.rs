//! A state that readers may see late, as in a cloud with replicas.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The state of a twin, with its recent history.
#[derive(Debug, Default)]
pub struct Lag<T> {
    now: T,
    lag: Duration,
    /// Earlier states, each with the time at which a later state replaced it.
    earlier: VecDeque<(Instant, T)>,
}

impl<T: Clone> Lag<T> {
    /// Creates a state that readers see without a lag.
    #[must_use]
    pub fn new(state: T) -> Self {
        Self {
            now: state,
            lag: Duration::ZERO,
            earlier: VecDeque::new(),
        }
    }

    /// Sets the lag: from now on, readers see each change only after this delay.
    pub fn set(&mut self, lag: Duration) {
        self.lag = lag;
        self.forget();
    }

    /// Returns the state that readers see.
    #[must_use]
    pub fn seen(&self) -> &T {
        let now = Instant::now();
        let mut earlier = self.earlier.iter();
        let hidden = earlier.find(|(until, _)| now.duration_since(*until) < self.lag);
        hidden.map_or(&self.now, |(_, state)| state)
    }

    /// Returns the actual state, on which the cloud bases its decisions.
    #[must_use]
    pub fn latest(&self) -> &T {
        &self.now
    }

    /// Returns the actual state for a change, and keeps the previous state for readers.
    pub fn change(&mut self) -> &mut T {
        self.forget();
        if !self.lag.is_zero() {
            self.earlier.push_back((Instant::now(), self.now.clone()));
        }
        &mut self.now
    }

    fn forget(&mut self) {
        let now = Instant::now();
        self.earlier
            .retain(|(until, _)| now.duration_since(*until) < self.lag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_a_change_late_and_decisions_do_not() {
        let mut state = Lag::new(1);
        *state.change() = 2;
        assert_eq!((*state.seen(), *state.latest()), (2, 2));
        state.set(Duration::from_secs(3600));
        *state.change() = 3;
        *state.change() = 4;
        assert_eq!((*state.seen(), *state.latest()), (2, 4));
        state.set(Duration::ZERO);
        assert_eq!(*state.seen(), 4);
    }
}
