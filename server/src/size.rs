//! Formats sizes in binary units, for messages and pages.

use std::fmt;

/// The units, with the smallest unit first. Each unit is 1024 times the previous unit.
const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A size in bytes, displayed in its largest unit and rounded down to a tenth, e.g. `7.6 GiB`.
#[derive(Clone, Copy, Debug)]
pub struct Rounded(pub u64);

/// The smallest number for which [`Exact`] also displays the rounded size, since a long number is
/// hard to read.
const LONG: u64 = 100_000;

/// A size in bytes, displayed in the largest unit of which it is a multiple, e.g. `1536 MiB`. This
/// form is for sizes that a caller compares or repeats. A long number is followed by the rounded
/// size: `10737417940 MiB (9.9 PiB)`.
#[derive(Clone, Copy, Debug)]
pub struct Exact(pub u64);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = largest(|bytes| self.0 >= bytes);
        let whole = self.0 >> shift;
        match self.0 == whole << shift {
            true => write!(f, "{whole} {unit}"),
            false => {
                let tenths = (u128::from(self.0) * 10) >> shift;
                write!(f, "{whole}.{} {unit}", tenths % 10)
            }
        }
    }
}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = largest(|bytes| self.0 > 0 && self.0.is_multiple_of(bytes));
        let number = self.0 >> shift;
        match number < LONG {
            true => write!(f, "{number} {unit}"),
            false => write!(f, "{number} {unit} ({})", Rounded(self.0)),
        }
    }
}

/// Returns the largest unit that `suits` accepts, as a power of two and a name. Returns bytes if
/// `suits` accepts no unit. The argument of `suits` is the size of a unit in bytes.
fn largest(suits: impl Fn(u64) -> bool) -> (u32, &'static str) {
    let units = (0..).step_by(10).zip(UNITS);
    let suitable = units.filter(|(shift, _)| suits(1 << shift));
    suitable.last().unwrap_or((0, UNITS[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_shown_in_its_largest_unit_and_never_as_more_than_it_is() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (3 << 29, "1.5 GiB"),
            ((2 << 30) - 1, "1.9 GiB"),
            ((2 << 30) + 1, "2.0 GiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Rounded(bytes).to_string(), shown);
        }
    }

    #[test]
    fn an_exact_size_is_a_whole_number_of_a_unit() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1, "1 bytes"),
            (1025, "1025 bytes"),
            (3 << 29, "1536 MiB"),
            (1 << 30, "1 GiB"),
            (99_999 << 20, "99999 MiB"),
            ((1 << 17) + 1, "131073 bytes (128.0 KiB)"),
            (10_737_417_940 << 20, "10737417940 MiB (9.9 PiB)"),
            (u64::MAX, "18446744073709551615 bytes (15.9 EiB)"),
        ] {
            assert_eq!(Exact(bytes).to_string(), shown);
        }
    }
}
