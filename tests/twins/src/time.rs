//! Times in the responses of clouds.

use std::time::{SystemTime, UNIX_EPOCH};

/// Formats a time in UTC as clouds do, without a letter for the zone. The date follows Howard
/// Hinnant's `civil_from_days`.
#[must_use]
pub fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day = day_of_era - (365 * year + year / 4 - year / 100);
    // This algorithm counts months from March.
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = year + era * 400 + u64::from(month <= 2);
    let [hour, minute, second] = [rest / 3600, rest / 60 % 60, rest % 60];
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000"),
            (951_782_399, "2000-02-28T23:59:59.000000"),
            (951_782_400, "2000-02-29T00:00:00.000000"),
            (1_798_761_599, "2026-12-31T23:59:59.000000"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(time), text);
        }
    }
}
