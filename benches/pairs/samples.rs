//! Times of one thing, and what may be said of them. A shared machine only ever adds time, so the
//! 25th percentile tells more of the code than the median does.

use std::time::Duration;

/// Samples that stay together when a side is held against itself.
const RUN: usize = 4;
/// Fewer say nothing.
pub(crate) const MIN: usize = 16;

/// Times in the order in which they were taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The 25th percentile; zero of nothing.
    pub(crate) fn p25(&self) -> Duration {
        quartile(self.0.clone())
    }

    /// What the same thing differs from itself: every other run of four against the rest, as a
    /// share. A ratio that is nearer to 1 than this is no difference. In four samples both sides
    /// were first as often as second.
    pub(crate) fn spread(&self) -> f64 {
        let runs = || self.0.chunks(RUN);
        let even = quartile(runs().step_by(2).flatten().copied().collect());
        let odd = quartile(runs().skip(1).step_by(2).flatten().copied().collect());
        ratio(even.max(odd), even.min(odd)) - 1.0
    }
}

impl Extend<Duration> for Samples {
    fn extend<I: IntoIterator<Item = Duration>>(&mut self, times: I) {
        self.0.extend(times);
    }
}

/// How many times the other one is in this.
pub(crate) fn ratio(this: Duration, other: Duration) -> f64 {
    this.as_secs_f64() / other.as_secs_f64()
}

/// Microseconds, with fractions.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn quartile(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 4).copied().unwrap_or_default()
}
