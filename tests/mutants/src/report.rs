//! Selects the mutants to try, and combines the verdicts of all stages.

use crate::{STAGES, text};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns a pseudo-random sample of `count` lines. The seed and the text of a line, without the
/// mutant's number and position, decide whether the line is in the sample. Therefore the sample
/// does not change if code is moved.
pub(crate) fn sample(lines: &str, seed: &str, count: usize) -> String {
    let mut lines: Vec<(u64, &str)> = lines
        .lines()
        .map(|line| (hash(&format!("{seed}{}", without_position(line))), line))
        .collect();
    lines.sort_unstable();
    lines.truncate(count);
    lines.iter().map(|(_, line)| format!("{line}\n")).collect()
}

/// Hashes a text by multiplications modulo a prime, as in Park and Miller's random number
/// generator.
fn hash(text: &str) -> u64 {
    text.bytes().chain([b' ', b' ']).fold(1, |hash, byte| {
        (hash * 69621 + u64::from(byte)) % 2_147_483_647
    })
}

/// Returns a line of a list without the mutant's number, line and column.
fn without_position(line: &str) -> String {
    let name = line.rsplit('\t').next().unwrap_or_default();
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.nth(2)) {
        (Some(file), Some(change)) => format!("{file}:{change}"),
        _ => name.to_owned(),
    }
}

/// Returns a line for each judged mutant, sorted by name. The line has the verdict (`noticed`,
/// `missed`, or `late` if a stage had no time for the mutant), the stage that noticed the mutant,
/// and the mutant's name.
///
/// # Errors
/// Fails if a result cannot be read.
pub(crate) fn verdicts(out: &Path) -> Result<String, String> {
    let mut results = Vec::new();
    for stage in STAGES {
        results.push((stage, text(&out.join(stage))?));
    }
    let results = results
        .iter()
        .map(|(stage, lines)| (*stage, lines.as_str()));
    Ok(combined(results))
}

fn combined<'a>(results: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut mutants: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for (stage, lines) in results {
        // A resumed run judges late mutants again, and writes the new verdict on a later line.
        let last: BTreeMap<&str, Vec<&str>> = lines
            .lines()
            .map(|line| line.split('\t').collect::<Vec<_>>())
            .filter_map(|words| Some((*words.get(4)?, words)))
            .collect();
        for (name, words) in last {
            let known = mutants.get(name).map(|(verdict, _)| *verdict);
            let verdict = match (words[1], known) {
                ("rejected", _) | (_, Some("noticed")) => continue,
                ("noticed" | "endless", _) => ("noticed", stage),
                ("late", _) | (_, Some("late")) => ("late", ""),
                _ => ("missed", ""),
            };
            mutants.insert(name, verdict);
        }
    }
    let lines = mutants.iter();
    lines
        .map(|(name, (verdict, stage))| format!("{verdict}\t{stage}\t{name}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stays_the_same_when_lines_move() {
        let list = |line: usize| -> String {
            let names = (0..50).map(|n| format!("{}\ta.rs:{}:3: delete {n}\n", n + line, n + line));
            names.collect()
        };
        let samples = [1, 100].map(|line| {
            let sample = sample(&list(line), "202611", 10);
            sample.lines().map(without_position).collect::<Vec<_>>()
        });
        assert_eq!(samples[0].len(), 10);
        assert_eq!(samples[0], samples[1]);
        assert_ne!(
            sample(&list(1), "202612", 10),
            sample(&list(1), "202611", 10)
        );
    }

    #[test]
    fn one_test_of_any_stage_is_enough_and_what_had_no_time_is_not_missed() {
        let line =
            |id: u32, verdict: &str| format!("{id}\t{verdict}\ttest\t7\ta.rs:{id}: change\n");
        let unit = [
            (1, "noticed"),
            (2, "missed"),
            (3, "missed"),
            (4, "unreached"),
            (5, "missed"),
        ];
        let unit: String = unit.map(|(id, verdict)| line(id, verdict)).concat();
        let slow = [
            (2, "endless"),
            (3, "late"),
            (4, "missed"),
            (5, "late"),
            (5, "missed"),
        ];
        let slow: String = slow.map(|(id, verdict)| line(id, verdict)).concat();
        let alone = line(6, "rejected");
        let stages = [("unit", &unit), ("slow", &slow), ("alone", &alone)];
        let combined = combined(
            stages
                .into_iter()
                .map(|(stage, lines)| (stage, lines.as_str())),
        );
        let expected = [
            "noticed\tunit\ta.rs:1: change",
            "noticed\tslow\ta.rs:2: change",
            "late\t\ta.rs:3: change",
            "missed\t\ta.rs:4: change",
            "missed\t\ta.rs:5: change",
        ];
        assert_eq!(combined.lines().collect::<Vec<_>>(), expected);
    }
}
