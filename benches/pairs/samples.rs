//! Times of one thing, and what may be said of them. A shared machine only ever adds time, so the
//! 25th percentile tells more of the code than the median does.

use std::time::Duration;

/// Fewer say nothing.
pub(crate) const MIN: usize = 8;

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

    /// What the same thing differs from itself: every other sample against the rest, as a share.
    /// A ratio that is nearer to 1 than this is no difference.
    pub(crate) fn spread(&self) -> f64 {
        let every_other = |from: usize| self.0.iter().skip(from).step_by(2).copied().collect();
        let (even, odd) = (quartile(every_other(0)), quartile(every_other(1)));
        ratio(even.max(odd), even.min(odd)) - 1.0
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Self(times.into_iter().collect())
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
