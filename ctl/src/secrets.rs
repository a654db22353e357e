//! The flags for secrets from files, the environment or standard input. A secret is never part of
//! the command line, which every user of the machine can read.

use std::collections::HashMap;
use std::path::Path;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::flags::{self, Pair, pair};

/// The secrets of a call.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Secrets")]
pub(crate) struct Secrets {
    /// File with secrets, as one JSON object or as lines of KEY=VALUE; `-` is standard input
    #[arg(long, value_name = "FILE")]
    secrets_from: Option<String>,
    /// One secret, from an environment variable; may be repeated
    #[arg(long, value_name = "KEY=VARIABLE", value_parser = pair)]
    secret_env: Vec<Pair>,
    /// One secret, from a file, without the newline at its end; may be repeated
    #[arg(long, value_name = "KEY=FILE", value_parser = pair)]
    secret_file: Vec<Pair>,
}

impl Secrets {
    /// Reads the secrets. A secret from a separate flag replaces a secret from `--secrets-from`
    /// with the same key.
    ///
    /// # Errors
    /// Fails if a file cannot be read or parsed, or if a variable is not set. No error message
    /// contains the value of a secret.
    pub(crate) fn load(&self) -> Result<HashMap<String, String>, Failure> {
        let mut secrets = match &self.secrets_from {
            None => HashMap::new(),
            Some(file) => {
                let text = flags::read(Path::new(file));
                let text = text.map_err(|failure| flags::unread("--secrets-from", &failure))?;
                parse(&text)
                    .map_err(|why| Failure::Usage(format!("--secrets-from {file}: {why}")))?
            }
        };
        for (key, variable) in &self.secret_env {
            let value = std::env::var(variable).map_err(|_| {
                Failure::Usage(format!(
                    "--secret-env {key}: {variable} is not set, or not UTF-8"
                ))
            })?;
            secrets.insert(key.clone(), value);
        }
        for (key, file) in &self.secret_file {
            let value = flags::read(Path::new(file));
            let value = value.map_err(|failure| flags::unread("--secret-file", &failure))?;
            let value = value.strip_suffix('\n').unwrap_or(&value);
            secrets.insert(key.clone(), value.to_owned());
        }
        Ok(secrets)
    }
}

/// Parses a JSON object of strings, or lines of KEY=VALUE.
fn parse(text: &str) -> Result<HashMap<String, String>, String> {
    if text.trim_start().starts_with('{') {
        let object: HashMap<String, Value> = serde_json::from_str(text).map_err(|error| {
            format!("not JSON, line {} column {}", error.line(), error.column())
        })?;
        let string = |(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            _other => Err(format!("the value of {key:?} must be a string")),
        };
        return object.into_iter().map(string).collect();
    }
    let lines = text.lines().enumerate();
    let wanted = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    wanted
        .map(|(at, line)| pair(line).map_err(|why| format!("line {}: {why}", at + 1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_lines_are_read() {
        let expected = HashMap::from([("user".to_owned(), "a=b".to_owned())]);
        assert_eq!(parse("{\"user\": \"a=b\"}"), Ok(expected.clone()));
        assert_eq!(parse("# comment\n\nuser=a=b\n"), Ok(expected));
    }

    #[test]
    fn an_error_names_the_line_or_the_key_and_never_the_value() {
        for (text, part) in [
            ("a=b\nhunter2", "line 2"),
            ("{\"key\": {\"n\": \"hunter2\"}}", "\"key\""),
            ("{\"key\": \"hunter2\"", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let secrets = Secrets {
            secret_env: vec![("key".to_owned(), "BELAY_NOT_SET".to_owned())],
            ..Secrets::default()
        };
        let error = secrets.load().unwrap_err().to_string();
        assert!(error.contains("BELAY_NOT_SET"), "{error}");
    }
}
