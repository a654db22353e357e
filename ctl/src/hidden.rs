//! Secrets in the contexts of volumes. The publish context contains the secret of the format mark,
//! by which the node agent recognizes a disk that it has begun to format. belayctl prints this
//! secret only with `--show-secrets`, and does not accept it on the command line.

use std::collections::HashMap;

use clap::Args;
use prost_reflect::{DynamicMessage, Value as Field};
use serde_json::Value;

use crate::failure::Failure;

/// The text printed instead of a secret.
const HIDDEN: &str = "<secret>";
/// The keys of contexts whose values are secrets: the key of the format mark, which Belay's drivers
/// for disks use.
const KEYS: [&str; 1] = ["mark"];
/// Names of the fields that contain contexts, in the specification and in the JSON mapping of
/// protobuf.
const FIELDS: [&str; 4] = [
    "publish_context",
    "publishContext",
    "volume_context",
    "volumeContext",
];

/// Whether secrets are printed.
#[derive(Args, Clone, Copy)]
pub(crate) struct Visibility {
    /// Print the secrets in contexts, which are hidden otherwise; `node stage --context-from` needs
    /// them
    #[arg(long, global = true)]
    show_secrets: bool,
}

impl Visibility {
    /// Hides the secrets in all contexts of a message, unless `--show-secrets` is set.
    pub(crate) fn message(self, message: &mut Value) {
        match message {
            _ if self.show_secrets => {}
            Value::Array(values) => values.iter_mut().for_each(|value| self.message(value)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_object_mut() {
                        Some(context) if FIELDS.contains(&name.as_str()) => {
                            let secrets = context.iter_mut().filter(|(key, _)| is_secret(key));
                            secrets.for_each(|(_, value)| *value = Value::from(HIDDEN));
                        }
                        _ => self.message(value),
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether the value of this key of a context is a secret.
pub(crate) fn is_secret(key: &str) -> bool {
    KEYS.contains(&key)
}

/// Whether a context of the message has a secret.
pub(crate) fn has_secret(message: &DynamicMessage) -> bool {
    let mut contexts = message
        .fields()
        .filter(|(field, _)| FIELDS.contains(&field.name()));
    contexts.any(|(_, value)| match value {
        Field::Map(pairs) => pairs.keys().any(|key| key.as_str().is_some_and(is_secret)),
        _ => false,
    })
}

/// Refuses secrets in command-line arguments, which every user of the machine can read.
///
/// # Errors
/// Fails with the names of the flag and the key.
pub(crate) fn refuse_in_flags(flag: &str, pairs: &[(String, String)]) -> Result<(), Failure> {
    let Some((key, _)) = pairs.iter().find(|(key, _)| is_secret(key)) else {
        return Ok(());
    };
    let cure = "is a secret, and every user of this machine can read arguments; use --context-from";
    Err(Failure::Usage(format!("{flag} {key}: {cure}")))
}

/// Refuses a context that was printed without its secrets.
///
/// # Errors
/// Fails with instructions for printing it with secrets.
pub(crate) fn refuse_hidden(context: &HashMap<String, String>) -> Result<(), String> {
    let hidden = context
        .iter()
        .find(|(key, value)| is_secret(key) && *value == HIDDEN);
    match hidden {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "the secret {key} was not saved; repeat `volume attach` with --show-secrets"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{Answer, Cell, Output};
    use belay_contract::disk::DiskIdentity;
    use belay_contract::mark::MarkSecret;
    use belay_contract::publish_context::{Content, PublishContext, Transport};
    use clap::ValueEnum as _;
    use serde_json::json;

    const CANARY: [u8; 32] = [0xca; 32];

    /// Returns a publish context with format marks, as returned by a controller that has keys for
    /// format marks.
    fn context() -> HashMap<String, String> {
        let attached = PublishContext {
            transport: Transport::Disk(DiskIdentity::Serial("s-1".to_owned())),
            bytes: 1 << 30,
            content: Content::New,
            read_only: false,
            attached_at: Some(7),
            marks: vec![MarkSecret::from(CANARY), MarkSecret::from([0xfe; 32])],
        };
        attached.entries().collect()
    }

    fn has_canary(text: &str) -> bool {
        text.contains("cacaca") || text.contains("fefefe")
    }

    #[test]
    fn no_format_prints_the_secret_of_a_context_unless_the_user_wants_it() {
        for show_secrets in [false, true] {
            let visibility = Visibility { show_secrets };
            let mut message = json!({ "publish_context": context() });
            message["list"] = json!([{ "volume": { "volumeContext": context() } }]);
            visibility.message(&mut message);
            let pairs = serde_json::from_value(message["publish_context"].clone());
            let cell = Cell::Pairs(pairs.unwrap());
            let record = Answer::Record(vec![("publish_context", cell.clone())]);
            let with = Answer::With(Box::new(Answer::Done), "publish_context", cell);
            for answer in [record, with, Answer::Json(message)] {
                for output in Output::value_variants() {
                    let is_name = *output == Output::Name && !matches!(answer, Answer::Record(_));
                    let text = answer.text(*output);
                    assert_eq!(has_canary(&text), show_secrets && !is_name, "{text}");
                    assert_eq!(text.contains(HIDDEN), !show_secrets && !is_name, "{text}");
                    // All other entries are shown, since they help in troubleshooting.
                    assert_eq!(text.contains("1073741824"), !is_name, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_secret_is_neither_taken_from_the_arguments_nor_from_an_answer_without_it() {
        let pairs: Vec<_> = context().into_iter().collect();
        let error = refuse_in_flags("--context", &pairs)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--context mark: is a secret"), "{error}");
        assert!(!has_canary(&error), "{error}");
        assert!(refuse_in_flags("--context", &[("a".to_owned(), "mark".to_owned())]).is_ok());

        assert_eq!(refuse_hidden(&context()), Ok(()));
        let saved = HashMap::from([("mark".to_owned(), HIDDEN.to_owned())]);
        assert!(
            refuse_hidden(&saved)
                .unwrap_err()
                .contains("--show-secrets")
        );
    }
}
