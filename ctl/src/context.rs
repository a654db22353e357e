//! `--context-from`: reads the contexts of a volume from saved responses of `volume create` and
//! `volume attach`, as `-o json` or the JSON mapping of protobuf prints them.

use std::collections::HashMap;
use std::path::Path;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::flags::{self, Pair, pair};
use crate::hidden;

/// The volume context, for calls that take no other.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Contexts")]
pub(crate) struct VolumeContext {
    /// Saved answer of `volume create` or `volume attach` (-o json), with the context in it; `-` is
    /// standard input; may be repeated
    #[arg(long, value_name = "FILE")]
    context_from: Vec<String>,
    /// Volume context, as printed by `volume create`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    volume_context: Vec<Pair>,
}

/// Both contexts of a volume.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Contexts")]
pub(crate) struct Contexts {
    #[command(flatten)]
    volume: VolumeContext,
    /// Publish context, as printed by `volume attach`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    context: Vec<Pair>,
}

/// The contexts of a volume, merged from the flags and the files that they name.
#[derive(Default, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct ContextValues {
    /// The publish context, from ControllerPublishVolume.
    pub(crate) publish: HashMap<String, String>,
    /// The volume context, from CreateVolume.
    pub(crate) volume: HashMap<String, String>,
}

impl VolumeContext {
    /// Reads the files and returns the volume context. A pair from a flag replaces a pair from a
    /// file with the same key.
    ///
    /// # Errors
    /// Fails if a file cannot be read, is not JSON, or has no context.
    pub(crate) fn load(self) -> Result<HashMap<String, String>, Failure> {
        self.load_all().map(|loaded| loaded.volume)
    }

    fn load_all(self) -> Result<ContextValues, Failure> {
        let mut loaded = ContextValues::default();
        for file in self.context_from {
            let text = flags::read(Path::new(&file))?;
            loaded
                .take(&text)
                .map_err(|why| Failure::Usage(format!("--context-from {file}: {why}")))?;
        }
        loaded.volume.extend(self.volume_context);
        Ok(loaded)
    }
}

impl Contexts {
    /// Reads the files and returns both contexts. A pair from a flag replaces a pair from a file
    /// with the same key.
    ///
    /// # Errors
    /// Fails if a file cannot be read, is not JSON, or has no context, or if a flag contains a
    /// secret.
    pub(crate) fn load(self) -> Result<ContextValues, Failure> {
        hidden::refuse_in_flags("--context", &self.context)?;
        let mut loaded = self.volume.load_all()?;
        loaded.publish.extend(self.context);
        Ok(loaded)
    }
}

impl ContextValues {
    fn take(&mut self, text: &str) -> Result<(), String> {
        let answer: Value =
            serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        // The response of CreateVolume has the volume in a separate message.
        let volume = answer.get("volume").unwrap_or(&answer);
        let field = |names: [&str; 2]| names.iter().find_map(|name| volume.get(name));
        let publish = field(["publish_context", "publishContext"]);
        let context = field(["volume_context", "volumeContext"]);
        // Accept a response with only an ID: the JSON mapping omits an empty context.
        let id = field(["volume_id", "volumeId"]);
        if publish.or(context).or(id).is_none() {
            return Err("has neither publish_context nor volume_context".to_owned());
        }
        for (found, into) in [(publish, &mut self.publish), (context, &mut self.volume)] {
            let Some(found) = found else { continue };
            let pairs: HashMap<String, String> = serde_json::from_value(found.clone())
                .map_err(|error| format!("a context must be an object of strings: {error}"))?;
            hidden::refuse_hidden(&pairs)?;
            into.extend(pairs);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Result<ContextValues, String> {
        let mut loaded = ContextValues::default();
        loaded.take(text).map(|()| loaded)
    }

    #[test]
    fn contexts_are_found_in_each_form_of_an_answer() {
        let of = |key: &str| HashMap::from([(key.to_owned(), "1".to_owned())]);
        for text in [
            r#"{"volume_id": "v", "volume_context": {"a": "1"}, "publish_context": {"b": "1"}}"#,
            r#"{"volume": {"volumeContext": {"a": "1"}, "publishContext": {"b": "1"}}}"#,
        ] {
            let expected = ContextValues {
                publish: of("b"),
                volume: of("a"),
            };
            assert_eq!(taken(text), Ok(expected), "{text}");
        }
        assert_eq!(taken(r#"{"volume_id": "v"}"#), Ok(ContextValues::default()));
    }

    #[test]
    fn a_file_without_a_context_is_refused() {
        for (text, part) in [
            ("{}", "neither"),
            ("a=b", "not JSON"),
            (r#"{"volume_context": {"a": 1}}"#, "object of strings"),
            (
                r#"{"publish_context": {"mark": "<secret>"}}"#,
                "--show-secrets",
            ),
        ] {
            let error = taken(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_flag_replaces_a_value_of_a_file() {
        let contexts = Contexts {
            context: vec![("a".to_owned(), "2".to_owned())],
            ..Contexts::default()
        };
        assert_eq!(contexts.load().unwrap().publish["a"], "2");
    }

    #[test]
    fn a_secret_in_a_flag_is_refused() {
        let contexts = Contexts {
            context: vec![("mark".to_owned(), "canary".to_owned())],
            ..Contexts::default()
        };
        let error = contexts.load().err().unwrap().to_string();
        assert!(
            error.contains("mark: is a secret") && !error.contains("canary"),
            "{error}"
        );
    }
}
