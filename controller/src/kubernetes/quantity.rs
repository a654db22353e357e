//! Parses quantities of Kubernetes, such as `1536Mi`. Makes no calls.

/// Returns the number of bytes, rounded up; `None` for a text that is not a quantity, a negative
/// quantity, or one of 16 EiB or more.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let is_number = |char: char| char.is_ascii_digit() || char == '.';
    let end = text.find(|char| !is_number(char)).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (shift, exponent) = unit(suffix)?;
    // A second dot, or no digit at all, is not a number.
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let value = digits.checked_mul(1 << shift)?;
    let exponent = exponent.checked_sub(fraction.len().try_into().ok()?)?;
    scaled(value, exponent)?.try_into().ok()
}

/// Returns the value times the power of 10, rounded up.
fn scaled(value: u128, exponent: i32) -> Option<u128> {
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    match exponent < 0 {
        true => Some(value.div_ceil(power)),
        false => value.checked_mul(power),
    }
}

/// Returns the powers of 2 and of 10 of a suffix.
fn unit(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        exponent => (0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_parsed_exactly_and_rounded_up_to_a_byte() {
        for (text, expected) in [
            ("0", 0),
            ("1073741824", 1 << 30),
            ("+1Ki", 1 << 10),
            ("1536Mi", 3 << 29),
            ("1.5Gi", 3 << 29),
            ("8Ti", 8 << 40),
            ("3Pi", 3 << 50),
            ("15Ei", 15 << 60),
            ("9007199254740993", 9_007_199_254_740_993),
            ("0.1Gi", 107_374_183),
            (".5k", 500),
            ("5.k", 5000),
            ("5M", 5_000_000),
            ("2G", 2_000_000_000),
            ("1T", 1_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1e3", 1000),
            ("12E+2", 1200),
            ("1500e-3", 2),
            ("1500m", 2),
            ("1u", 1),
            ("2000000000n", 2),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_quantity() {
        for text in [
            "",
            ".",
            "Gi",
            "-1",
            "-1Gi",
            "1 Gi",
            "1gi",
            "1KiB",
            "1K",
            "1..2",
            "1.2.3",
            "1e",
            "e3",
            "1e3Gi",
            "0x10",
            "ä",
            "1ä",
            "16Ei",
            "1e99",
            "1e-99",
            "1e9999999999",
        ] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
