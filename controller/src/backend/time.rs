//! The times that the services report.

/// From the day before which [`seconds`] counts years, to 1970-01-01.
const DAYS_TO_1970: u64 = 719_469;

/// Seconds since 1970, of a time in UTC such as `2026-11-22T23:10:05.000000Z`, where the last
/// letter may be missing.
pub(super) fn seconds(time: &str) -> Option<u64> {
    let (date, clock) = time.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = clock
        .get(..8)?
        .splitn(3, ':')
        .map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // Days of the Gregorian calendar, with years that begin in March.
    let (year, month) = match month {
        1..=2 => (year.checked_sub(1)?, month + 9),
        3..=12 => (year, month - 3),
        _ => return None,
    };
    if year > 9999 || day > 31 || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let days = days.checked_sub(DAYS_TO_1970)?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_from_1970() {
        for (time, expected) in [
            ("1970-01-01T00:00:00", Some(0)),
            ("2001-09-09T01:46:40.000000", Some(1_000_000_000)),
            ("2024-02-29T12:00:00Z", Some(1_709_208_000)),
            ("1969-12-31T23:59:59", None),
            ("2024-02-29", None),
            ("18446744073709551615-02-29T12:00:00", None),
            ("2024-02-29T24:00:00", None),
            ("2024-00-01T00:00:00", None),
        ] {
            assert_eq!(seconds(time), expected, "{time}");
        }
    }
}
