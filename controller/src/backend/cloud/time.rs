//! The format of times in responses of clouds.

/// The number of days from the start of the calendar in [`seconds`] to 1970-01-01.
const DAYS_TO_1970: u64 = 719_469;

/// Converts a time in UTC, such as `2026-11-22T23:10:05.000000Z`, to seconds since 1970. The final
/// letter may be missing. Returns `None` if the text is not a time.
pub(in crate::backend) fn seconds(time: &str) -> Option<u64> {
    let (date, clock) = time.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = clock
        .get(..8)?
        .splitn(3, ':')
        .map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // Count days of the Gregorian calendar, with years that begin in March.
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

    #[test]
    fn each_day_until_2401_counts_from_1970() {
        let is_leap = |year: u64| {
            let is = |of: u64| year.is_multiple_of(of);
            is(4) && (!is(100) || is(400))
        };
        let mut days = 0;
        for year in 1970..=2400 {
            for month in 1..=12 {
                let last = match month {
                    2 => 28 + u64::from(is_leap(year)),
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
                for day in 1..=last {
                    let time = format!("{year:04}-{month:02}-{day:02}T01:02:03");
                    assert_eq!(seconds(&time), Some(days * 86_400 + 3723), "{time}");
                    days += 1;
                }
            }
        }
    }

    #[test]
    fn a_time_with_one_part_that_no_clock_shows_is_none() {
        for time in [
            "9999-12-31T23:59:60",
            "2024-01-31T00:00:00",
            "2024-12-01T00:00:00",
        ] {
            assert!(seconds(time).is_some(), "{time}");
        }
        for time in [
            "10000-12-31T23:59:59",
            "2024-13-01T00:00:00",
            "2024-01-32T00:00:00",
            "2024-01-01T24:00:00",
            "2024-01-01T00:60:00",
            "2024-01-01T00:00:61",
            "2024-01-01T00:00",
        ] {
            assert_eq!(seconds(time), None, "{time}");
        }
    }
}
