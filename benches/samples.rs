//! The times of one call, and their statistics. Other load on a machine only adds time, so the 25th
//! percentile describes the code better than the median.

use std::time::Duration;

/// The number of consecutive samples in a run, the unit in which a side is compared with itself.
const RUN: usize = 4;
/// The number of blocks of a measurement for [`Samples::noise`].
const BLOCKS: usize = 4;
const QUARTER: usize = 25;
/// Minimum number of samples; fewer are not significant.
pub const SAMPLES_MIN: usize = 16;

/// Times, in the order of measurement.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Returns the 25th percentile; zero without samples.
    #[must_use]
    pub fn p25(&self) -> Duration {
        self.percentile(QUARTER)
    }

    /// Returns a percentile; zero without samples.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        percentile(self.0.clone(), percent)
    }

    /// Returns the difference of a side from itself, as a fraction: compares every other run of
    /// four samples with the other runs. If a ratio of two sides is closer to 1 than this, the
    /// difference is not significant. In each run of four samples, each side was measured first
    /// equally often.
    #[must_use]
    pub fn spread(&self) -> f64 {
        self.spread_of(RUN, QUARTER)
    }

    /// Returns [`Samples::spread`] for samples that were taken in this many blocks: compares every
    /// other block with the other blocks.
    #[must_use]
    pub fn spread_of_blocks(&self, blocks: usize) -> f64 {
        self.spread_of(self.0.len().div_ceil(blocks), QUARTER)
    }

    /// Returns the larger of the differences between runs and between quarters of the measurement.
    /// Load that lasts seconds shows in the first, load that lasts minutes in the second.
    #[must_use]
    pub fn noise(&self) -> f64 {
        self.spread().max(self.spread_of_blocks(BLOCKS))
    }

    /// Returns [`Samples::spread`] of a percentile, between runs of `run` samples.
    #[must_use]
    pub fn spread_of(&self, run: usize, percent: usize) -> f64 {
        let runs = || self.0.chunks(run.max(1));
        let even = percentile(runs().step_by(2).flatten().copied().collect(), percent);
        let odd = percentile(
            runs().skip(1).step_by(2).flatten().copied().collect(),
            percent,
        );
        ratio(even.max(odd), even.min(odd)) - 1.0
    }
}

impl Extend<Duration> for Samples {
    fn extend<I: IntoIterator<Item = Duration>>(&mut self, times: I) {
        self.0.extend(times);
    }
}

/// Returns the ratio of the two times.
#[must_use]
pub fn ratio(this: Duration, other: Duration) -> f64 {
    this.as_secs_f64() / other.as_secs_f64()
}

/// Returns a time in microseconds, with fractions.
#[must_use]
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    let below = times.len() * percent / 100;
    times.get(below).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(micros: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        samples.extend(micros.into_iter().map(Duration::from_micros));
        samples
    }

    #[test]
    fn a_quarter_of_the_samples_is_below_the_25th_percentile() {
        assert_eq!(samples((1..=100).rev()).p25(), Duration::from_micros(26));
        assert_eq!(samples([7]).p25(), Duration::from_micros(7));
        assert_eq!(samples([]).p25(), Duration::ZERO);
        assert_eq!(samples(1..=100).percentile(99), Duration::from_micros(100));
    }

    #[test]
    fn an_outlier_changes_nothing_and_a_second_mode_shows_in_the_spread() {
        let calm = samples((0..32).map(|n| if n == 5 { 9000 } else { 100 }));
        assert!(calm.spread() < 0.01, "{}", calm.spread());
        let torn = samples((0..32).map(|n| if n / 4 % 2 == 0 { 100 } else { 150 }));
        assert!((torn.spread() - 0.5).abs() < 0.01, "{}", torn.spread());
    }

    #[test]
    fn a_drift_from_block_to_block_shows_between_blocks_only() {
        let drifting = samples((0..32).map(|n| if n / 8 % 2 == 0 { 100 } else { 150 }));
        assert!((drifting.spread_of_blocks(4) - 0.5).abs() < 0.01);
        assert!((drifting.noise() - 0.5).abs() < 0.01);
        assert!(drifting.spread() < 0.01, "{}", drifting.spread());
    }

    #[test]
    fn alternation_from_sample_to_sample_is_no_spread() {
        let alternating = samples((0..32).map(|n| if n % 2 == 0 { 100 } else { 150 }));
        assert!(alternating.spread() < 0.01, "{}", alternating.spread());
    }
}
