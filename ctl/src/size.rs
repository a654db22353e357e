//! Parses and formats sizes.

/// The unit suffixes and their number of bytes: binary units as in Kubernetes and CSI, and decimal
/// ones.
const UNITS: [(&str, u64); 15] = [
    ("", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Parses a size such as `1073741824`, `1.5GiB`, `500Mi` or `10GB`, and returns it in bytes,
/// rounded up.
///
/// # Errors
/// Returns a message for the command line if the text is not a size, or exceeds 2^63 - 1 bytes.
pub fn parse(text: &str) -> Result<i64, String> {
    let begins = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    if text.strip_prefix('-').is_some_and(begins) {
        return Err("is negative".to_owned());
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let unit = UNITS
        .iter()
        .find(|(name, _)| *name == suffix.trim_start())
        .map(|(_, bytes)| *bytes)
        .ok_or_else(|| format!("unknown unit {suffix:?}: use GiB, Gi, GB, ... or plain bytes"))?;
    let wrong = "must begin with a number below 2^64, such as 10 or 1.5";
    let digits = |text: &str| text.parse::<u64>().map_err(|_| wrong.to_owned());
    let scale = match u32::try_from(part.len()) {
        Ok(length @ 1..=18) => 10_u128.pow(length),
        _ => return Err("has more than 18 digits, or none, after the point".to_owned()),
    };
    let (whole, part, unit) = (digits(whole)?, digits(part)?, u128::from(unit));
    let bytes = u128::from(whole) * unit + (u128::from(part) * unit).div_ceil(scale);
    match i64::try_from(bytes) {
        Ok(0) => Err("must be at least 1 byte; omit the flag for the driver's default".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err("more than 2^63 - 1 bytes".to_owned()),
    }
}

/// Formats a size, given in bytes. Uses the largest unit that fits, and one decimal digit, rounded
/// down, unless the size is a multiple of the unit: `1GiB`, `1.4GiB`.
pub fn show(bytes: u64) -> String {
    let (unit, size) = UNITS[1..6]
        .iter()
        .rev()
        .find(|(_, size)| bytes >= *size)
        .map_or(("B", 1), |(name, size)| (*name, *size));
    let tenths = u128::from(bytes) * 10 / u128::from(size);
    match (tenths / 10, tenths % 10) {
        (whole, _) if bytes.is_multiple_of(size) => format!("{whole}{unit}"),
        (whole, tenth) => format!("{whole}.{tenth}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_every_usual_spelling() {
        for (text, bytes) in [
            ("1", 1),
            ("1073741824", 1 << 30),
            ("1GiB", 1 << 30),
            ("1Gi", 1 << 30),
            ("1 GiB", 1 << 30),
            ("500Mi", 500 << 20),
            ("10GB", 10_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.1Ki", 103),
            ("4096B", 4096),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "begin with a number"),
            ("GiB", "begin with a number"),
            ("-1", "negative"),
            ("0", "at least 1 byte"),
            ("-1.5GiB", "negative"),
            ("--limit", "unknown unit"),
            ("1.GiB", "after the point"),
            (".5GiB", "begin with a number"),
            ("1.2.3GiB", "begin with a number"),
            ("1gib", "unknown unit"),
            ("8192PiB", "more than"),
            ("9223372036854775808", "more than"),
            ("99999999999999999999", "number below"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (1 << 30, "1GiB"),
            ((1 << 30) - 1, "1023.9MiB"),
            (3 << 40, "3TiB"),
            (u64::MAX, "16383.9PiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
