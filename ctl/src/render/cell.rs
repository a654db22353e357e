//! A value of a response, formatted as text for a table or as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::size;

/// A value of a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// A text; empty text is shown as `-`.
    Text(String),
    /// A size in bytes.
    Bytes(i64),
    /// A number without a unit.
    Number(i64),
    /// A duration in microseconds; `i64::MAX` if it exceeds the largest bound of a histogram.
    Micros(i64),
    /// An age in seconds.
    Seconds(i64),
    /// A maximum; 0 means no limit.
    Limit(i64),
    /// A number that is unknown.
    Unknown,
    /// Yes or no.
    Flag(bool),
    /// Several texts.
    List(Vec<String>),
    /// Keys and values, sorted.
    Pairs(BTreeMap<String, String>),
    /// The condition of a volume.
    Condition {
        /// Whether the volume has a problem.
        abnormal: bool,
        /// A description for users.
        message: String,
    },
}

impl Cell {
    /// Returns the cell of a number; [`Self::Unknown`] if there is none.
    pub(crate) fn number(number: Option<impl Into<i64>>) -> Self {
        number.map_or(Self::Unknown, |number| Self::Number(number.into()))
    }

    /// Returns the value as text. If `exact` is set, a size is shown in bytes, too.
    pub(crate) fn shown(&self, exact: bool) -> String {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => match u64::try_from(*bytes) {
                Ok(positive) if exact => format!("{bytes} ({})", size::show(positive)),
                Ok(positive) => size::show(positive),
                Err(_negative) => bytes.to_string(),
            },
            Self::Number(number) | Self::Limit(number @ 1..) => number.to_string(),
            Self::Limit(_) => "unlimited".to_owned(),
            Self::Micros(time) => duration(*time),
            Self::Seconds(age) => elapsed(*age),
            Self::Unknown => String::new(),
            Self::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Self::List(texts) => texts.join(","),
            Self::Pairs(pairs) => pairs
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(","),
            Self::Condition { abnormal, message } => {
                let word = if *abnormal { "abnormal" } else { "normal" };
                format!("{word}: {message}")
            }
        };
        if text.is_empty() {
            return "-".to_owned();
        }
        // Text from a driver must neither break the table nor control the terminal.
        text.replace(char::is_control, "\u{fffd}")
    }

    /// Returns the value as JSON: numbers have no units, and lists are arrays.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Bytes(number) | Self::Number(number) | Self::Seconds(number) => json!(number),
            Self::Micros(i64::MAX) | Self::Unknown => Value::Null,
            Self::Micros(number) | Self::Limit(number) => json!(number),
            Self::Flag(flag) => json!(flag),
            Self::List(texts) => json!(texts),
            Self::Pairs(pairs) => json!(pairs),
            Self::Condition { abnormal, message } => {
                json!({ "abnormal": abnormal, "message": message })
            }
        }
    }
}

/// Formats a duration with its unit, and with one decimal digit below 10: `7us`, `2.5ms`, `30s`.
fn duration(micros: i64) -> String {
    let (unit, size) = match micros {
        // The bucket +Inf of a histogram: the duration exceeds the largest bound of Belay's
        // histograms.
        i64::MAX => return ">600s".to_owned(),
        ..1_000 => return format!("{micros}us"),
        1_000..1_000_000 => ("ms", 1_000),
        _ => ("s", 1_000_000),
    };
    let tenths = micros / (size / 10);
    match tenths % 10 {
        tenth @ 1.. if tenths < 100 => format!("{}.{tenth}{unit}", tenths / 10),
        _ => format!("{}{unit}", tenths / 10),
    }
}

/// Formats an age in the largest unit of which it has at least two, as kubectl does: `90s`, `3h`.
fn elapsed(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people_and_exact_where_there_is_room() {
        let size = Cell::Bytes(3 << 29);
        assert_eq!(size.shown(false), "1.5GiB");
        assert_eq!(size.shown(true), "1610612736 (1.5GiB)");
        assert_eq!(Cell::Bytes(-1).shown(false), "-1");
    }

    #[test]
    fn times_have_the_unit_that_shows_something() {
        for (micros, text) in [
            (0, "0us"),
            (999, "999us"),
            (1_000, "1ms"),
            (2_560, "2.5ms"),
            (25_600, "25ms"),
            (1_500_000, "1.5s"),
            (600_000_000, "600s"),
        ] {
            assert_eq!(Cell::Micros(micros).shown(false), text);
        }
        for (seconds, text) in [(119, "119s"), (120, "2m"), (7_200, "2h"), (200_000, "2d")] {
            assert_eq!(Cell::Seconds(seconds).shown(false), text);
        }
        assert_eq!(Cell::Seconds(7_200).to_json(), json!(7_200));
        assert_eq!(Cell::Micros(20).to_json(), json!(20));
        assert_eq!(Cell::Micros(i64::MAX).to_json(), Value::Null);
        assert_eq!(Cell::Limit(0).shown(false), "unlimited");
        assert_eq!(Cell::Limit(8).shown(false), "8");
        assert_eq!(
            (Cell::Unknown.shown(false), Cell::Unknown.to_json()),
            ("-".to_owned(), json!(null))
        );
    }

    #[test]
    fn a_driver_cannot_command_the_terminal() {
        let hostile = Cell::Text("a\u{1b}[2J\nb".to_owned());
        assert_eq!(hostile.shown(false), "a\u{fffd}[2J\u{fffd}b");
    }
}
