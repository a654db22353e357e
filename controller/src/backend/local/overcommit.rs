//! The factor of overcommitment, `--overcommit`. Knows no files.

use std::str::FromStr;

/// How many times over the space may be provisioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    permille: u64,
}

/// Bounds of the factor: below, almost no volume fits; above, the limit is meaningless.
const FACTOR_MIN: f64 = 0.1;
const FACTOR_MAX: f64 = 1_000_000.0;

/// An invalid factor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("overcommit {0:?}: not a number from {FACTOR_MIN} to {FACTOR_MAX}, such as 1 or 2.5")]
pub struct OvercommitError(String);

impl Default for Overcommit {
    fn default() -> Self {
        Self { permille: 1000 }
    }
}

impl FromStr for Overcommit {
    type Err = OvercommitError;

    fn from_str(text: &str) -> Result<Self, OvercommitError> {
        let factor: f64 = text.parse().map_err(|_| OvercommitError(text.to_owned()))?;
        if !(FACTOR_MIN..=FACTOR_MAX).contains(&factor) {
            return Err(OvercommitError(text.to_owned()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the bounds above keep it positive and small"
        )]
        let permille = (factor * 1000.0).round() as u64;
        Ok(Self { permille })
    }
}

impl Overcommit {
    /// The bytes that may be provisioned, of a filesystem of which foreign files take so many.
    pub(super) fn of(self, total: u64, foreign: u64) -> u64 {
        let usable = u128::from(total.saturating_sub(foreign));
        let ceiling = usable * u128::from(self.permille) / 1000;
        u64::try_from(ceiling).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_that_is_no_sane_number_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "0.05",
            "0.0999",
            "1000000.5",
            "NaN",
            "inf",
            "1e9",
            "two",
        ] {
            assert!(text.parse::<Overcommit>().is_err(), "{text:?}");
        }
        assert_eq!("1".parse(), Ok(Overcommit::default()));
        for (text, permille) in [("0.1", 100), ("1000000", 1_000_000_000)] {
            assert_eq!(text.parse(), Ok(Overcommit { permille }), "{text}");
        }
    }
}
