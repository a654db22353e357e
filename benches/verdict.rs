//! Judges whether a ratio is within its limit. This is impossible on a loaded machine, where the
//! times of one side differ from each other as much as from the times of the other side.

use std::fmt;
use std::io;

/// Maximum noise, as a fraction, with which a ratio can be judged.
const NOISE_MAX: f64 = 0.15;

/// A ratio, with its limit in BUDGET.md.
#[derive(Clone, Debug)]
pub struct Limited {
    /// The name of the measured call.
    pub name: String,
    /// The measured ratio.
    pub ratio: f64,
    /// The maximum ratio.
    pub limit: f64,
    /// The largest difference of a side from itself (A/A), as a fraction.
    pub noise: f64,
}

/// The judgement of one ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ratio is within its limit.
    Kept,
    /// The ratio is above its limit, by more than the noise.
    Exceeded,
    /// The noise is too large.
    Unclear,
}

impl Verdict {
    /// Returns the verdict as one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Kept => "kept",
            Verdict::Exceeded => "EXCEEDED",
            Verdict::Unclear => "cannot be judged",
        }
    }
}

impl Limited {
    /// Returns the verdict for this ratio.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        // Also covers values that are not numbers, such as the ratio to a side without samples.
        if self.noise.is_nan() || self.noise > NOISE_MAX {
            Verdict::Unclear
        } else if self.ratio <= self.limit {
            Verdict::Kept
        } else if self.ratio > self.limit * (1.0 + self.noise) {
            Verdict::Exceeded
        } else {
            Verdict::Unclear
        }
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            ratio,
            limit,
            noise,
        } = self;
        let (word, noise) = (self.verdict().word(), noise * 100.0);
        write!(
            f,
            "{name:<28}{ratio:>6.2} of {limit:>4.2}   A/A {noise:>5.1} %   {word}"
        )
    }
}

/// Prints a line for each ratio, and fails if one exceeds its limit.
///
/// # Errors
/// Returns the names of the ratios that exceed their limits.
pub fn judge(all: &[Limited]) -> io::Result<()> {
    let of = |verdict| all.iter().filter(move |it| it.verdict() == verdict);
    for limited in all {
        eprintln!("{limited}");
    }
    let unclear = of(Verdict::Unclear).count();
    if unclear > 0 {
        let count = all.len();
        eprintln!("{unclear} of {count} limits cannot be judged: the machine is not quiet");
    }
    let exceeded: Vec<_> = of(Verdict::Exceeded).map(|it| it.name.as_str()).collect();
    match exceeded.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "over their limits in benches/BUDGET.md: {}",
            exceeded.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(ratio: f64, noise: f64) -> Limited {
        Limited {
            name: format!("{ratio} at {noise}"),
            ratio,
            limit: 2.0,
            noise,
        }
    }

    #[track_caller]
    fn expect(ratio: f64, noise: f64, verdict: Verdict) {
        assert_eq!(limited(ratio, noise).verdict(), verdict);
    }

    #[test]
    fn a_ratio_is_exceeded_by_more_than_the_noise_only() {
        expect(1.9, 0.1, Verdict::Kept);
        expect(2.1, 0.1, Verdict::Unclear);
        expect(2.3, 0.1, Verdict::Exceeded);
        expect(2.1, 0.01, Verdict::Exceeded);
    }

    #[test]
    fn nothing_is_judged_where_a_side_differs_from_itself() {
        for ratio in [0.1, 2.0, 100.0] {
            expect(ratio, 0.5, Verdict::Unclear);
            expect(ratio, f64::NAN, Verdict::Unclear);
        }
        expect(f64::NAN, 0.0, Verdict::Unclear);
    }

    #[test]
    fn a_run_fails_by_the_names_of_what_is_exceeded() {
        let calm = [limited(1.0, 0.0), limited(9.0, 9.0)];
        judge(&calm).unwrap();
        let error = judge(&[limited(1.0, 0.0), limited(5.0, 0.0)]).unwrap_err();
        assert!(error.to_string().ends_with(": 5 at 0"), "{error}");
    }
}
