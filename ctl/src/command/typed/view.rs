//! Shows the responses of typed commands: selects the values for a table, and formats them.

use serde_json::Value;

use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};

/// The display of a response.
pub(super) enum View {
    /// The response has no data to display.
    Done,
    /// The response is one object, of which these values are displayed. Also contains the JSON
    /// pointer to a required message, and the error if the response lacks that message.
    Record(&'static [Column], &'static str, &'static str),
    /// The entries of a list in the response. Contains the values to show of each entry, and a
    /// plural noun for the entries, such as "volumes".
    Rows(&'static [Column], &'static str),
    /// A function that displays the response.
    Other(fn(&Value) -> Result<Answer, Failure>),
}

/// One value of a message.
pub(super) struct Column {
    name: &'static str,
    /// The JSON pointer of the value in the response, or in the entry of a list.
    at: &'static str,
    form: Form,
    presence: Presence,
}

/// The format of a value. A missing value is displayed as empty or zero.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Text,
    Bytes,
    Number,
    /// A maximum; 0 means no limit.
    Limit,
    Flag,
    /// A list of texts.
    List,
    /// A map of texts.
    Pairs,
    /// A list of topologies, each joined to one text.
    Topologies,
    /// The condition of a volume (`VolumeCondition`, since CSI 1.3).
    Condition,
    /// The snapshot or volume from which a volume was created.
    Source,
}

/// The condition under which a column is displayed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Always,
    /// The value is shown only in wide tables and JSON, after the other values.
    Wide,
    /// The value is shown only if the driver has returned it.
    IfSent,
}

impl Column {
    pub(super) const fn new(name: &'static str, at: &'static str, form: Form) -> Self {
        Self {
            name,
            at,
            form,
            presence: Presence::Always,
        }
    }

    /// Shows the value only in wide tables and JSON.
    pub(super) const fn wide(mut self) -> Self {
        self.presence = Presence::Wide;
        self
    }

    /// Omits the value if the driver has not returned it.
    pub(super) const fn if_sent(mut self) -> Self {
        self.presence = Presence::IfSent;
        self
    }

    fn is_shown(&self, message: &Value) -> bool {
        self.presence != Presence::IfSent || message.pointer(self.at).is_some()
    }

    fn cell(&self, message: &Value) -> Cell {
        let value = message.pointer(self.at);
        match self.form {
            Form::Condition if value.is_none() => Cell::Text(String::new()),
            form => cell(form, value.unwrap_or(&Value::Null)),
        }
    }
}

/// Converts a JSON value to a cell; `null` represents a missing value.
pub(super) fn cell(form: Form, value: &Value) -> Cell {
    let texts = |value: &Value| {
        let list = value.as_array().into_iter().flatten();
        list.map(text).collect()
    };
    match form {
        Form::Text => Cell::Text(text(value)),
        Form::Bytes => Cell::Bytes(value.as_i64().unwrap_or_default()),
        Form::Number => Cell::Number(value.as_i64().unwrap_or_default()),
        Form::Limit => Cell::Limit(value.as_i64().unwrap_or_default()),
        Form::Flag => Cell::Flag(value.as_bool().unwrap_or_default()),
        Form::List => Cell::List(texts(value)),
        Form::Pairs => Cell::Pairs(pairs(value).collect()),
        Form::Topologies => {
            let topologies = value.as_array().into_iter().flatten();
            let entries = topologies.map(|topology| {
                let segments = pairs(&topology["segments"]);
                let segments: Vec<_> = segments.map(|(key, it)| format!("{key}={it}")).collect();
                segments.join("+")
            });
            Cell::List(entries.collect())
        }
        Form::Condition => Cell::Condition {
            abnormal: value["abnormal"].as_bool().unwrap_or_default(),
            message: text(&value["message"]),
        },
        Form::Source => {
            let ids = ["/snapshot/snapshot_id", "/volume/volume_id"];
            let id = ids.iter().find_map(|id| value.pointer(id));
            Cell::Text(id.map(text).unwrap_or_default())
        }
    }
}

/// Returns the text of a value; empty for `null`. An enumeration value from a newer specification
/// is shown as a number.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the keys and values of a map of texts, sorted by key.
fn pairs(value: &Value) -> impl Iterator<Item = (String, String)> {
    let map = value.as_object().into_iter().flatten();
    let pairs = map.map(|(key, value)| (key.clone(), text(value)));
    let sorted: std::collections::BTreeMap<_, _> = pairs.collect();
    sorted.into_iter()
}

impl View {
    /// Shows a response.
    ///
    /// # Errors
    /// Fails if the response lacks a message that the specification requires.
    pub(super) fn show(&self, answer: &Value) -> Result<Answer, Failure> {
        match self {
            Self::Done => Ok(Answer::Done),
            Self::Record(columns, required, absent) => {
                answer.pointer(required).ok_or(Failure::Answer(absent))?;
                let shown = columns.iter().filter(|column| column.is_shown(answer));
                let fields = shown.map(|column| (column.name, column.cell(answer)));
                Ok(Answer::Record(fields.collect()))
            }
            Self::Rows(columns, name) => {
                let entries = list(answer, "/entries");
                let is_shown = |column: &&Column| {
                    column.presence != Presence::IfSent
                        || entries.iter().any(|entry| column.is_shown(entry))
                };
                let columns: Vec<_> = columns.iter().filter(is_shown).collect();
                let names: Vec<_> = columns.iter().map(|column| column.name).collect();
                let row = |entry: &Value| columns.iter().map(|column| column.cell(entry)).collect();
                let is_narrow = |column: &&&Column| column.presence != Presence::Wide;
                Ok(Answer::Rows(Rows {
                    narrow: columns.iter().filter(is_narrow).count(),
                    next_token: text(&answer["next_token"]),
                    ..Rows::new(name, &names, entries.iter().map(row))
                }))
            }
            Self::Other(show) => show(answer),
        }
    }
}

/// Returns the list at a JSON pointer; empty if there is none, since the JSON mapping omits an
/// empty list.
pub(super) fn list<'a>(answer: &'a Value, at: &str) -> &'a [Value] {
    let list = answer.pointer(at).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::verb::Verb;
    use super::super::{NODE, VOLUME};
    use super::*;

    fn show(verbs: &[Verb], name: &str, answer: &Value) -> Answer {
        let verb = verbs.iter().find(|verb| verb.name == name).unwrap();
        verb.view.show(answer).unwrap()
    }

    fn record(answer: Answer) -> Vec<(&'static str, Cell)> {
        match answer {
            Answer::Record(fields) => fields,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_limit_that_is_not_reported_is_not_shown() {
        let answer = json!({"available_capacity": 7, "maximum_volume_size": 3});
        assert_eq!(
            record(show(VOLUME, "capacity", &answer)),
            [
                ("available_capacity", Cell::Bytes(7)),
                ("maximum_volume_size", Cell::Bytes(3))
            ]
        );
    }

    #[test]
    fn conditions_have_a_column_if_the_driver_reports_any() {
        let shape = |entries: Value| match show(VOLUME, "list", &json!({ "entries": entries })) {
            Answer::Rows(rows) => (rows.narrow, rows.rows),
            other => panic!("{other:?}"),
        };
        assert_eq!(shape(json!([{}])).0, 3);
        let gone = json!({"status": {"volume_condition": {"abnormal": true, "message": "gone"}}});
        let (narrow, rows) = shape(json!([{}, gone]));
        assert_eq!((narrow, rows[0].len()), (4, 7));
        let condition = Cell::Condition {
            abnormal: true,
            message: "gone".to_owned(),
        };
        assert_eq!(rows[1][3], condition);
        assert_eq!(rows[0][3], Cell::Text(String::new()));
    }

    #[test]
    fn a_topology_of_several_segments_is_one_entry() {
        let topology = json!([{"segments": {"zone": "a", "rack": "7"}}]);
        let answer = json!({"volume": {"accessible_topology": topology}});
        let fields = record(show(VOLUME, "create", &answer));
        assert_eq!(fields[3].1, Cell::List(vec!["rack=7+zone=a".to_owned()]));
        let fields = record(show(NODE, "info", &json!({"node_id": "n"})));
        assert_eq!(fields[1].1, Cell::Limit(0));
        assert_eq!(fields[2].1, Cell::Pairs(Default::default()));
    }

    #[test]
    fn an_answer_without_its_message_is_an_error() {
        let create = VOLUME.iter().find(|verb| verb.name == "create").unwrap();
        let error = create.view.show(&json!({})).unwrap_err().to_string();
        assert_eq!(error, "the driver's answer has no volume");
    }
}
