//! Prints responses as aligned tables, as JSON, or as names.

mod cell;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

pub(crate) use cell::Cell;

use crate::failure::NO;
use crate::report::Report;

/// The output format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Aligned columns, sizes for people
    Table,
    /// All columns, sizes in bytes as well
    Wide,
    /// One JSON document, sizes in bytes
    Json,
    /// Names only, one per line, for scripts
    Name,
}

/// The output of a command.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The call succeeded, and there is no data to print.
    Done,
    /// The output is already printed, part by part.
    Printed,
    /// One object with named values; the first value is its name.
    Record(Vec<(&'static str, Cell)>),
    /// Several objects of one kind.
    Rows(Rows),
    /// Health conditions; healthy if there are no rows.
    Conditions(Rows),
    /// A response, and a value that is printed below it.
    With(Box<Self>, &'static str, Cell),
    /// A negative response; the exit code is 2.
    No(Box<Self>),
    /// Findings about a driver or this node; the exit code is 2 if something is wrong.
    Report(Report),
    /// A response in JSON, for calls that are known only by their descriptors.
    Json(Value),
}

/// Several objects of one kind; the first column has their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    /// The kind of the objects; the key of the list in JSON.
    pub(crate) name: &'static str,
    /// The names of the values.
    pub(crate) columns: Vec<&'static str>,
    /// The number of columns in a narrow table; the others are only in wide tables and JSON.
    pub(crate) narrow: usize,
    /// One value per column.
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Lines below a narrow table. Wide tables and JSON show the same text in a column.
    pub(crate) notes: Vec<String>,
    /// The token of the next page; empty for the last page.
    pub(crate) next_token: String,
}

impl Rows {
    /// Creates rows of which a narrow table also has all columns. The list has no further page.
    pub(crate) fn new(
        name: &'static str,
        columns: &[&'static str],
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        Self {
            name,
            columns: columns.to_vec(),
            narrow: columns.len(),
            rows: rows.into_iter().collect(),
            notes: Vec::new(),
            next_token: String::new(),
        }
    }

    fn table(&self, wide: bool) -> String {
        let shown = if wide {
            self.columns.len()
        } else {
            self.narrow
        };
        let head = self.columns[..shown].iter();
        let mut lines = vec![head.map(|name| title(name).to_uppercase()).collect()];
        for row in &self.rows {
            let cells = row.iter().take(shown).map(|cell| cell.shown(wide));
            lines.push(cells.collect::<Vec<_>>());
        }
        let notes = if wide { &[] } else { self.notes.as_slice() };
        let notes = notes
            .iter()
            .map(|note| format!("{}\n", note.replace(char::is_control, "\u{fffd}")));
        let table = match self.rows.is_empty() {
            true => format!("no {}\n", self.name.replace('_', " ")),
            false => align(&lines),
        };
        table + &notes.collect::<String>()
    }

    fn objects(&self) -> Vec<Value> {
        let columns = self.columns.iter().copied();
        let object = |row| object(columns.clone().zip(row));
        self.rows.iter().map(object).collect()
    }
}

impl Answer {
    /// Adds a named value to the output, unless `cell` is `None`.
    pub(crate) fn with(mut self, name: &'static str, cell: Option<Cell>) -> Self {
        let Some(cell) = cell else { return self };
        if let Self::Record(fields) = &mut self {
            fields.push((name, cell));
            return self;
        }
        Self::With(Box::new(self), name, cell)
    }

    /// Marks the result as negative if `yes` is false.
    pub(crate) fn verdict(self, yes: bool) -> Self {
        if yes { self } else { Self::No(Box::new(self)) }
    }

    /// Returns the exit code: 2 if there are health conditions, if the result is negative, or if a
    /// check failed; else 0.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Conditions(rows) if !rows.rows.is_empty() => ExitCode::from(NO),
            Self::No(_) => ExitCode::from(NO),
            Self::Report(report) if !report.is_good() => ExitCode::from(NO),
            Self::With(first, ..) => first.exit_code(),
            _ => ExitCode::SUCCESS,
        }
    }

    /// Returns the text for standard output.
    pub(crate) fn text(&self, output: Output) -> String {
        match output {
            _ if *self == Self::Printed => String::new(),
            Output::Table => self.table(false),
            Output::Wide => self.table(true),
            Output::Json => format!("{:#}\n", self.to_json()),
            Output::Name => self.names(),
        }
    }

    fn table(&self, wide: bool) -> String {
        match self {
            Self::Done => "OK\n".to_owned(),
            Self::Printed => String::new(),
            Self::Record(fields) => {
                let rows = fields
                    .iter()
                    .map(|(name, cell)| vec![title(name).to_owned(), cell.shown(wide)]);
                align(&rows.collect::<Vec<_>>())
            }
            Self::Rows(rows) => {
                let mut text = rows.table(wide);
                if !rows.next_token.is_empty() {
                    text.push_str(&format!("more: --starting-token {}\n", rows.next_token));
                }
                text
            }
            Self::Conditions(rows) if rows.rows.is_empty() => "healthy\n".to_owned(),
            Self::Conditions(rows) => rows.table(wide),
            Self::With(first, name, cell) => {
                format!("{}{name}: {}\n", first.table(wide), cell.shown(wide))
            }
            Self::No(answer) => answer.table(wide),
            Self::Report(report) => report.table(),
            Self::Json(value) => format!("{value:#}\n"),
        }
    }

    fn names(&self) -> String {
        let line = |cell: &Cell| cell.shown(false) + "\n";
        match self {
            Self::Record(fields) => fields
                .first()
                .map(|(_, cell)| line(cell))
                .into_iter()
                .collect(),
            Self::Rows(rows) | Self::Conditions(rows) => rows
                .rows
                .iter()
                .filter_map(|row| row.first())
                .map(line)
                .collect(),
            Self::With(answer, ..) | Self::No(answer) => answer.names(),
            Self::Report(report) => report.names(),
            Self::Done | Self::Printed | Self::Json(_) => String::new(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Done | Self::Printed => json!({}),
            Self::Record(fields) => object(fields.iter().map(|(name, cell)| (*name, cell))),
            Self::Rows(rows) => {
                json!({ rows.name: rows.objects(), "next_token": rows.next_token })
            }
            Self::Conditions(rows) => {
                json!({ "healthy": rows.rows.is_empty(), rows.name: rows.objects() })
            }
            Self::With(first, name, cell) => {
                let mut whole = first.to_json();
                whole[*name] = cell.to_json();
                whole
            }
            Self::No(answer) => answer.to_json(),
            Self::Report(report) => report.to_json(),
            Self::Json(value) => value.clone(),
        }
    }
}

/// Writes text to stdout.
///
/// # Errors
/// Fails if stdout cannot be written.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns the title of a column in a table: the name without the unit, which the values show.
fn title(name: &str) -> &str {
    let units = ["_bytes", "_us", "_seconds"];
    let mut short = units.iter().filter_map(|unit| name.strip_suffix(unit));
    short.next().unwrap_or(name)
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a Cell)>) -> Value {
    Value::Object(
        fields
            .map(|(name, cell)| (name.to_owned(), cell.to_json()))
            .collect::<Map<_, _>>(),
    )
}

/// Aligns lines of cells: each column is as wide as its widest cell, with two spaces between
/// columns, and none at the end.
fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| {
            lines
                .iter()
                .filter_map(|line| line.get(at))
                .map(|c| width(c))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, wide) in line.iter().zip(&widths) {
            row.push_str(cell);
            row.extend(std::iter::repeat_n(' ', wide - width(cell) + 2));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the width of a string on a terminal, on the assumption that each character takes one
/// column.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests;
