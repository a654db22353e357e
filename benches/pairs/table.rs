//! Two columns of times side by side, as text that lines up and as JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::samples::{Samples, micros, ratio};

/// Cells of a bar.
const BAR: u32 = 24;
/// The bare calls, a Probe made the same way, and what is left.
const MARKS: [char; 3] = ['█', '▒', '░'];

/// One call, measured on both sides in turn.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) ours: Samples,
    pub(crate) bare: Samples,
    /// What any RPC takes that does nothing; zero where the row itself is that RPC.
    pub(crate) empty_call: Duration,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        let (ours, bare) = (Samples::default(), Samples::default());
        Self {
            name: name.into(),
            ours,
            bare,
            empty_call: Duration::ZERO,
        }
    }

    /// The larger of both sides' differences from themselves, as a share.
    fn spread(&self) -> f64 {
        self.ours.spread().max(self.bare.spread())
    }

    /// Against the bare calls behind an RPC that does nothing: what any driver could reach.
    fn of_floor(&self) -> f64 {
        ratio(self.ours.p25(), self.bare.p25() + self.empty_call)
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "call": self.name,
            "ours_p25_us": micros(self.ours.p25()),
            "bare_p25_us": micros(self.bare.p25()),
            "ratio": ratio(self.ours.p25(), self.bare.p25()),
            "of_floor": self.of_floor(),
            "spread": self.spread(),
        })
    }
}

/// The head of a table of rows.
pub(crate) fn head() -> String {
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

/// `whole` as a bar: each part with its mark, and what is left with the last.
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
