//! The mutants that `cargo mutants --list --json` prints. Independent of Rust's grammar.

use serde_json::Value;
use std::ops::Range;

/// A mutant.
#[derive(Debug, Clone)]
pub(crate) struct Mutant {
    /// The number of the mutant, from 1, in the order of the list. As a switch, 0 selects no
    /// mutant.
    pub(crate) id: u32,
    /// The name, as cargo-mutants prints it: `file:line:column: change in function`.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) genre: String,
    /// The text that replaces the original.
    pub(crate) replacement: String,
    /// The return type of the function as `-> Type`; empty if there is none.
    pub(crate) returns: String,
    /// The line and column of the first character, both from 1; columns count characters.
    pub(crate) start: (usize, usize),
    /// The first position after the changed text.
    pub(crate) end: (usize, usize),
}

impl Mutant {
    /// Returns the byte range of the source that the mutant replaces.
    pub(crate) fn range(&self, source: &str) -> Option<Range<usize>> {
        Some(offset(source, self.start)?..offset(source, self.end)?)
    }

    /// Returns the source with only this mutant applied.
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

/// Returns the byte offset of a line and column.
fn offset(source: &str, (line, column): (usize, usize)) -> Option<usize> {
    let mut breaks = source.match_indices('\n').map(|(at, _)| at + 1);
    let start = match line.checked_sub(2) {
        Some(before) => breaks.nth(before)?,
        None => 0,
    };
    let mut characters = source[start..].char_indices().map(|(at, _)| start + at);
    characters.nth(column.checked_sub(1)?)
}

/// Parses all mutants of the list.
///
/// # Errors
/// Fails if the text is not a list of cargo-mutants.
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
