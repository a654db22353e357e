//! Renders two columns of times as an aligned table and as JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::samples::{Samples, micros, ratio};
use crate::verdict::{Limited, Verdict};

/// The width of a bar in characters.
const BAR: u32 = 24;
/// The marks of a bar's parts: the bare calls, a Probe made in the same way, and the rest.
const MARKS: [char; 3] = ['█', '▒', '░'];

/// A call, measured on both sides alternately.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name in the table.
    pub name: String,
    /// The times through belay-node.
    pub ours: Samples,
    /// The times of the bare system calls.
    pub bare: Samples,
    /// The time of an RPC that does nothing; zero if the row itself is about that RPC.
    pub empty_call: Duration,
    /// The noise of the time of that RPC, as a fraction.
    pub empty_noise: f64,
    /// The maximum ratio to the floor; `None` if there is no limit.
    pub limit: Option<f64>,
}

impl Row {
    /// Creates a row without samples.
    pub fn new(name: impl Into<String>) -> Self {
        let (ours, bare) = (Samples::default(), Samples::default());
        Self {
            name: name.into(),
            ours,
            bare,
            empty_call: Duration::ZERO,
            empty_noise: 0.0,
            limit: None,
        }
    }

    /// Returns the larger difference of the two sides from themselves, as a fraction.
    fn spread(&self) -> f64 {
        self.ours.spread().max(self.bare.spread())
    }

    /// Returns the ratio to the floor: the bare calls plus an RPC that does nothing, the minimum
    /// for any driver.
    fn of_floor(&self) -> f64 {
        ratio(self.ours.p25(), self.bare.p25() + self.empty_call)
    }

    /// Returns the ratio to the floor with its limit; `None` without a limit.
    #[must_use]
    pub fn limited(&self) -> Option<Limited> {
        let sides = self.ours.noise().max(self.bare.noise());
        self.limit.map(|limit| Limited {
            name: self.name.clone(),
            ratio: self.of_floor(),
            limit,
            noise: sides.max(self.empty_noise),
        })
    }

    fn verdict(&self) -> Option<Verdict> {
        self.limited().map(|limited| limited.verdict())
    }

    /// Returns the row as JSON, with times in microseconds.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "call": self.name,
            "ours_p25_us": micros(self.ours.p25()),
            "bare_p25_us": micros(self.bare.p25()),
            "ratio": ratio(self.ours.p25(), self.bare.p25()),
            "of_floor": self.of_floor(),
            "spread": self.spread(),
            "limit": self.limit,
            "verdict": self.verdict().map(Verdict::word),
        })
    }
}

/// Returns the head of a table of rows.
#[must_use]
pub fn head() -> String {
    format!(
        "{:<22}{:>10}{:>10}{:>8}{:>10}{:>8}  {}",
        "call", "ours us", "bare us", "ratio", "of floor", "A/A", "where the time of ours goes"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, bare) = (self.ours.p25(), self.bare.p25());
        write!(
            f,
            "{:<22}{:>10.1}{:>10.1}{:>8.2}{:>10.2}{:>6.1} %  {}",
            self.name,
            micros(ours),
            micros(bare),
            ratio(ours, bare),
            self.of_floor(),
            self.spread() * 100.0,
            bar(ours, &[bare, self.empty_call])
        )
    }
}

/// Renders `whole` as a bar: each part with its mark, and the rest with the last mark.
fn bar(whole: Duration, parts: &[Duration; 2]) -> String {
    let mut text = String::new();
    let (mut sum, mut drawn) = (Duration::ZERO, 0);
    for (part, mark) in parts.iter().zip(MARKS) {
        sum += *part;
        let end = cells(sum.min(whole), whole);
        text.extend((drawn..end).map(|_| mark));
        drawn = end;
    }
    text.extend((drawn..BAR).map(|_| MARKS[2]));
    text
}

fn cells(part: Duration, whole: Duration) -> u32 {
    let whole = whole.as_nanos().max(1);
    u32::try_from((part.as_nanos() * u128::from(BAR) + whole / 2) / whole).unwrap_or(BAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(whole: u64, parts: [u64; 2], lengths: [usize; 3]) {
        let text = bar(
            Duration::from_nanos(whole),
            &parts.map(Duration::from_nanos),
        );
        let found = MARKS.map(|mark| text.chars().filter(|c| *c == mark).count());
        assert_eq!(found, lengths, "{text}");
    }

    #[test]
    fn a_bar_shows_the_shares_and_is_always_full() {
        expect(240, [60, 60], [6, 6, 12]);
        expect(240, [0, 0], [0, 0, 24]);
        expect(240, [240, 0], [24, 0, 0]);
    }

    #[test]
    fn parts_that_exceed_the_whole_are_cut_off() {
        expect(240, [120, 240], [12, 12, 0]);
        expect(240, [500, 100], [24, 0, 0]);
        expect(0, [1, 1], [0, 0, 24]);
    }

    #[test]
    fn rows_line_up_with_their_head() {
        let mut row = Row::new("ext4 unpublish");
        row.ours.extend([Duration::from_micros(9_876); 8]);
        row.bare.extend([Duration::from_nanos(900); 8]);
        let end_of = |text: &str, word: &str| text.find(word).map(|at| at + word.len());
        assert_eq!(end_of(&row.to_string(), "%"), end_of(&head(), "A/A"));
        assert_eq!(
            end_of(&row.to_string(), "9876.0"),
            end_of(&head(), "ours us")
        );
        assert_eq!(end_of(&row.to_string(), " 0.9"), end_of(&head(), "bare us"));
    }
}
