//! The mutants of `cargo mutants --list --json`. It knows nothing about Rust.

use serde_json::Value;
use std::ops::Range;

/// One mutant.
#[derive(Debug, Clone)]
pub(crate) struct Mutant {
    /// From 1, in the order of the list. 0 selects no mutant.
    pub(crate) id: u32,
    /// As cargo-mutants prints it: `file:line:column: change in function`.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) genre: String,
    /// The text that is there instead.
    pub(crate) replacement: String,
    /// `-> Type` of the function, or nothing.
    pub(crate) returns: String,
    /// Line and column, both from 1, the column in characters.
    pub(crate) start: (usize, usize),
    /// The first position after the changed text.
    pub(crate) end: (usize, usize),
}

impl Mutant {
    /// The changed bytes of the source.
    pub(crate) fn range(&self, source: &str) -> Option<Range<usize>> {
        Some(offset(source, self.start)?..offset(source, self.end)?)
    }

    /// The source with this mutant alone.
    pub(crate) fn apply(&self, source: &str) -> Option<String> {
        let range = self.range(source)?;
        Some(format!(
            "{}{}{}",
            &source[..range.start],
            self.replacement,
            &source[range.end..]
        ))
    }
}

/// The byte at a line and column.
fn offset(source: &str, (line, column): (usize, usize)) -> Option<usize> {
    let mut breaks = source.match_indices('\n').map(|(at, _)| at + 1);
    let start = match line.checked_sub(2) {
        Some(before) => breaks.nth(before)?,
        None => 0,
    };
    let mut characters = source[start..].char_indices().map(|(at, _)| start + at);
    characters.nth(column.checked_sub(1)?)
}

/// All mutants of the list.
///
/// # Errors
/// If it is not what cargo-mutants writes.
pub(crate) fn read(json: &str) -> Result<Vec<Mutant>, String> {
    let list: Vec<Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let mut mutants = Vec::new();
    for (id, entry) in (1..).zip(&list) {
        mutants.push(mutant(id, entry).ok_or_else(|| format!("unexpected entry: {entry}"))?);
    }
    Ok(mutants)
}

fn mutant(id: u32, entry: &Value) -> Option<Mutant> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let position = |at: &Value| {
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        Some((number(&at["line"])?, number(&at["column"])?))
    };
    Some(Mutant {
        id,
        name: text(&entry["name"])?,
        file: text(&entry["file"])?,
        genre: text(&entry["genre"])?,
        replacement: text(&entry["replacement"])?,
        returns: text(&entry["function"]["return_type"]).unwrap_or_default(),
        start: position(&entry["span"]["start"])?,
        end: position(&entry["span"]["end"])?,
    })
}
