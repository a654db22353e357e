//! Prints responses as aligned tables or as JSON. Does not know the calls.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::size;
use crate::table::align;

/// How an answer is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Output {
    /// Aligned columns
    Table,
    /// One JSON document, sizes in bytes
    Json,
}

/// One value of a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Any text; an empty one is shown as `-`.
    Text(String),
    /// A size in bytes.
    Bytes(i64),
    /// A number without a unit.
    Number(i64),
    /// Yes or no.
    Flag(bool),
    /// Several texts.
    List(Vec<String>),
    /// Keys and values, sorted.
    Pairs(BTreeMap<String, String>),
    /// A condition.
    Condition {
        /// Whether there is a problem.
        abnormal: bool,
        /// For users.
        message: String,
    },
}

/// The output of a command.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The call succeeded without any data.
    Done,
    /// One object, with named values.
    Record(Vec<(&'static str, Cell)>),
    /// Several objects of one kind.
    Rows {
        /// The kind; the key of the list in JSON.
        name: &'static str,
        /// The names of the values.
        columns: &'static [&'static str],
        /// One value per column.
        rows: Vec<Vec<Cell>>,
        /// Where the next page starts; empty at the end.
        next_token: String,
    },
    /// The health conditions; no rows = healthy.
    Complaints {
        /// As of [`Answer::Rows`].
        name: &'static str,
        /// As of [`Answer::Rows`].
        columns: &'static [&'static str],
        /// As of [`Answer::Rows`].
        rows: Vec<Vec<Cell>>,
    },
    /// A response and one more value below it.
    With(Box<Self>, &'static str, Cell),
}

/// Exit code of a response with health conditions.
const UNHEALTHY: u8 = 2;

impl Answer {
    /// The same with one more value, if there is one.
    pub(crate) fn with(mut self, name: &'static str, cell: Option<Cell>) -> Self {
        let Some(cell) = cell else { return self };
        if let Self::Record(fields) = &mut self {
            fields.push((name, cell));
            return self;
        }
        Self::With(Box::new(self), name, cell)
    }

    /// 2 for health conditions, else 0.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Complaints { rows, .. } if !rows.is_empty() => ExitCode::from(UNHEALTHY),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Writes a response to stdout.
///
/// # Errors
/// If stdout cannot be written.
pub(crate) fn print(answer: &Answer, output: Output) -> io::Result<()> {
    let text = match output {
        Output::Table => table(answer),
        Output::Json => format!("{:#}\n", to_json(answer)),
    };
    io::stdout().lock().write_all(text.as_bytes())
}

fn table(answer: &Answer) -> String {
    match answer {
        Answer::Done => "OK\n".to_owned(),
        Answer::Record(fields) => {
            let rows = fields
                .iter()
                .map(|(name, cell)| vec![(*name).to_owned(), cell.shown()]);
            align(&rows.collect::<Vec<_>>())
        }
        Answer::Rows {
            columns,
            rows,
            next_token,
            ..
        } => {
            let mut text = with_head(columns, rows);
            if !next_token.is_empty() {
                text.push_str(&format!("more: --starting-token {next_token}\n"));
            }
            text
        }
        Answer::Complaints { rows, .. } if rows.is_empty() => "healthy\n".to_owned(),
        Answer::Complaints { columns, rows, .. } => with_head(columns, rows),
        Answer::With(first, name, cell) => format!("{}{name}: {}\n", table(first), cell.shown()),
    }
}

fn with_head(columns: &[&str], rows: &[Vec<Cell>]) -> String {
    let mut lines = vec![columns.iter().map(|name| name.to_uppercase()).collect()];
    lines.extend(
        rows.iter()
            .map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>()),
    );
    align(&lines)
}

fn to_json(answer: &Answer) -> Value {
    match answer {
        Answer::Done => json!({}),
        Answer::Record(fields) => object(fields.iter().map(|(name, cell)| (*name, cell))),
        Answer::Rows {
            name,
            columns,
            rows,
            next_token,
        } => json!({ *name: objects(columns, rows), "next_token": next_token }),
        Answer::Complaints {
            name,
            columns,
            rows,
        } => json!({ "healthy": rows.is_empty(), *name: objects(columns, rows) }),
        Answer::With(first, name, cell) => {
            let mut whole = to_json(first);
            whole[*name] = cell.to_json();
            whole
        }
    }
}

fn objects(columns: &[&str], rows: &[Vec<Cell>]) -> Vec<Value> {
    rows.iter()
        .map(|row| object(columns.iter().copied().zip(row)))
        .collect()
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a Cell)>) -> Value {
    Value::Object(
        fields
            .map(|(name, cell)| (name.to_owned(), cell.to_json()))
            .collect::<Map<_, _>>(),
    )
}

impl Cell {
    fn shown(&self) -> String {
        let text = match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => match u64::try_from(*bytes) {
                Ok(positive) => format!("{bytes} ({})", size::show(positive)),
                Err(_negative) => bytes.to_string(),
            },
            Self::Number(number) => number.to_string(),
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
            "-".to_owned()
        } else {
            text
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Bytes(number) | Self::Number(number) => json!(number),
            Self::Flag(flag) => json!(flag),
            Self::List(texts) => json!(texts),
            Self::Pairs(pairs) => json!(pairs),
            Self::Condition { abnormal, message } => {
                json!({ "abnormal": abnormal, "message": message })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(next_token: &str) -> Answer {
        Answer::Rows {
            name: "volumes",
            columns: &["volume_id", "capacity_bytes", "nodes"],
            rows: vec![
                vec![
                    Cell::Text("vol-1".to_owned()),
                    Cell::Bytes(1 << 30),
                    Cell::List(vec!["n1".to_owned(), "n2".to_owned()]),
                ],
                vec![
                    Cell::Text("v".to_owned()),
                    Cell::Bytes(5),
                    Cell::List(Vec::new()),
                ],
            ],
            next_token: next_token.to_owned(),
        }
    }

    #[test]
    fn a_table_lines_up_and_has_no_trailing_spaces() {
        assert_eq!(
            table(&volumes("")),
            "VOLUME_ID  CAPACITY_BYTES     NODES\n\
             vol-1      1073741824 (1GiB)  n1,n2\n\
             v          5 (5B)             -\n"
        );
    }

    #[test]
    fn a_further_page_is_announced_with_its_token() {
        assert!(table(&volumes("t-9")).ends_with("more: --starting-token t-9\n"));
    }

    #[test]
    fn json_has_bare_numbers_and_real_lists() {
        assert_eq!(
            to_json(&volumes("t-9")),
            json!({
                "volumes": [
                    { "volume_id": "vol-1", "capacity_bytes": 1 << 30, "nodes": ["n1", "n2"] },
                    { "volume_id": "v", "capacity_bytes": 5, "nodes": [] },
                ],
                "next_token": "t-9",
            })
        );
    }

    #[test]
    fn a_record_is_shown_field_by_field() {
        let record = Answer::Record(vec![
            ("node_id", Cell::Text("n1".to_owned())),
            ("ready", Cell::Flag(true)),
            (
                "topology",
                Cell::Pairs(BTreeMap::from([("zone".to_owned(), "a".to_owned())])),
            ),
        ]);
        assert_eq!(
            table(&record),
            "node_id   n1\nready     yes\ntopology  zone=a\n"
        );
        assert_eq!(
            to_json(&record),
            json!({ "node_id": "n1", "ready": true, "topology": { "zone": "a" } })
        );
    }

    #[test]
    fn a_condition_is_a_table_and_exits_with_2_and_none_is_healthy() {
        let complaints = |rows| Answer::Complaints {
            name: "health_statuses",
            columns: &["status", "reason"],
            rows,
        };
        let cells = ["DEGRADED", "Slow"].map(|text| Cell::Text(text.to_owned()));
        let (well, unwell) = (complaints(Vec::new()), complaints(vec![cells.to_vec()]));
        assert_eq!(table(&well), "healthy\n");
        assert_eq!(table(&unwell), "STATUS    REASON\nDEGRADED  Slow\n");
        assert_eq!(well.exit_code(), ExitCode::SUCCESS);
        assert_eq!(unwell.exit_code(), ExitCode::from(2));
        assert_eq!(
            to_json(&well),
            json!({ "healthy": true, "health_statuses": [] })
        );
        let one = json!([{ "status": "DEGRADED", "reason": "Slow" }]);
        assert_eq!(
            to_json(&unwell),
            json!({ "healthy": false, "health_statuses": one })
        );
    }

    #[test]
    fn one_more_value_is_below_the_rows_or_in_the_record() {
        let condition = || {
            Some(Cell::Condition {
                abnormal: true,
                message: "read-only".to_owned(),
            })
        };
        let rows = volumes("").with("volume_condition", condition());
        assert!(table(&rows).ends_with("\nvolume_condition: abnormal: read-only\n"));
        let told = to_json(&rows);
        assert_eq!(told["volumes"][1]["volume_id"], "v");
        assert_eq!(
            told["volume_condition"],
            json!({ "abnormal": true, "message": "read-only" })
        );
        let record = Answer::Record(vec![("id", Cell::Number(1))]);
        assert_eq!(
            table(&record.with("volume_condition", condition())),
            "id                1\nvolume_condition  abnormal: read-only\n"
        );
        assert_eq!(volumes("").with("volume_condition", None), volumes(""));
    }

    #[test]
    fn an_empty_answer_is_ok_or_an_empty_object() {
        assert_eq!(table(&Answer::Done), "OK\n");
        assert_eq!(to_json(&Answer::Done), json!({}));
    }
}
