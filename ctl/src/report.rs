//! The findings of `belayctl doctor`: each has the check, the result and the remedy.

use serde_json::{Value, json};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The check passed.
    Ok,
    /// The check passed with a restriction.
    Warn,
    /// The check failed.
    No,
    /// The check is impossible on this machine, or does not apply.
    Skip,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    /// The name of the check.
    pub(crate) name: String,
    /// The details of the result.
    pub(crate) detail: String,
    /// The remedy; empty if none is needed.
    pub(crate) cure: String,
}

/// Findings in the order of the checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report(Vec<Finding>);

/// The maximum width of the output, in columns. Every terminal has at least 80.
const WIDTH: usize = 80;
const NAME: usize = 26;

impl Report {
    /// Adds a finding without a remedy.
    pub(crate) fn add(&mut self, verdict: Verdict, name: &str, detail: impl Into<String>) {
        self.cure(verdict, name, detail, "");
    }

    /// Adds a finding with a remedy.
    pub(crate) fn cure(
        &mut self,
        verdict: Verdict,
        name: &str,
        detail: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.0.push(Finding {
            verdict,
            name: name.to_owned(),
            detail: detail.into(),
            cure: cure.into(),
        });
    }

    /// Whether no check failed.
    pub(crate) fn is_good(&self) -> bool {
        self.0.iter().all(|finding| finding.verdict != Verdict::No)
    }

    /// Returns the findings as lines of at most 80 columns, and a summary.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for finding in &self.0 {
            let head = format!("{:<4}  {:<NAME$}  ", finding.verdict.word(), finding.name);
            wrap(&mut text, &head, &finding.detail);
            if !finding.cure.is_empty() {
                let head = format!("{:<4}  {:>NAME$}  ", "", "to do:");
                wrap(&mut text, &head, &finding.cure);
            }
        }
        let count = |verdict| self.0.iter().filter(|it| it.verdict == verdict).count();
        let (ok, warn, no) = (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::No));
        let skip = count(Verdict::Skip);
        text + &format!("{ok} ok, {warn} warnings, {no} wrong, {skip} not checked\n")
    }

    /// Returns the names of the failed checks.
    pub(crate) fn names(&self) -> String {
        let wrong = self
            .0
            .iter()
            .filter(|finding| finding.verdict == Verdict::No);
        wrong.map(|finding| format!("{}\n", finding.name)).collect()
    }

    /// Returns all findings as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let findings = self.0.iter().map(|finding| {
            json!({
                "verdict": finding.verdict.word(),
                "name": finding.name,
                "detail": finding.detail,
                "cure": finding.cure,
            })
        });
        json!({ "good": self.is_good(), "findings": findings.collect::<Vec<_>>() })
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::No => "NO",
            Self::Skip => "skip",
        }
    }
}

/// Appends a head and words, wrapped at [`WIDTH`] columns and indented by the width of the head.
fn wrap(text: &mut String, head: &str, words: &str) {
    let indent = " ".repeat(head.chars().count());
    let mut line = head.to_owned();
    let mut is_empty = true;
    // Text from a driver must neither break the lines nor control the terminal.
    let words = words.replace(|c: char| c.is_control(), " ");
    let room = WIDTH.saturating_sub(indent.len()).max(1);
    // Split a word that is longer than a line, such as a path.
    let words = words.split_whitespace().flat_map(|word| pieces(word, room));
    for word in words {
        let width = line.chars().count() + word.chars().count() + 1;
        if !is_empty && width > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line.clone_from(&indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Splits a word into parts of at most `width` characters.
fn pieces(word: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters
        .chunks(width)
        .map(|part| part.iter().collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_at_most_80_columns_and_end_with_a_summary() {
        let mut report = Report::default();
        report.add(Verdict::Ok, "kernel", "word ".repeat(40));
        report.add(Verdict::Ok, "socket", "/directory".repeat(20));
        report.cure(
            Verdict::No,
            "loop devices",
            "/dev/loop-control: missing",
            "modprobe loop",
        );
        let text = report.table();
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert!(text.contains("to do:  modprobe loop\n"), "{text}");
        assert!(
            text.ends_with("2 ok, 0 warnings, 1 wrong, 0 not checked\n"),
            "{text}"
        );
        assert!(!report.is_good());
        assert_eq!(report.names(), "loop devices\n");
    }

    #[test]
    fn a_warning_is_good_enough() {
        let mut report = Report::default();
        report.add(Verdict::Warn, "statmount", "the kernel has none");
        report.add(Verdict::Skip, "disk", "not readable");
        assert!(report.is_good());
        assert_eq!(report.to_json()["findings"][0]["verdict"], "warn");
    }
}
