//! Faults on request: rules of the proxy in front of the APIs, and control files of the drivers.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::http::send;

/// The fault proxy of a bed. The rules of the proxy are removed when this value is dropped.
#[derive(Debug)]
pub struct Fronts {
    control: String,
}

impl Fronts {
    pub(crate) fn new(control: &str) -> Self {
        let control = control.to_owned();
        Self { control }
    }

    /// Replaces all rules with a list of rules, in the form that rules.py describes.
    ///
    /// # Panics
    /// Panics if the proxy refuses the rules.
    pub fn obey(&self, rules: &Value) {
        self.command("PUT", "/rules", Some(rules));
    }

    /// Returns the number of times that each rule was applied, in the order of the rules.
    ///
    /// # Panics
    /// Panics if the proxy does not respond.
    #[must_use]
    pub fn applied(&self) -> Vec<u64> {
        let rules = self.command("GET", "/rules", None);
        let rules = rules.as_array().expect("a list of rules");
        let applied = rules.iter().map(|rule| rule["applied"].as_u64());
        applied.map(|count| count.expect("a count")).collect()
    }

    /// Resets the counts of requests.
    ///
    /// # Panics
    /// Panics if the proxy does not respond.
    pub fn forget(&self) {
        self.command("DELETE", "/counts", None);
    }

    /// Returns the number of requests since [`Self::forget`] with this service and method (empty:
    /// any) whose path starts with `path`. IDs in paths are replaced with `{id}`.
    ///
    /// # Panics
    /// Panics if the proxy does not respond.
    #[must_use]
    pub fn count(&self, service: &str, method: &str, path: &str) -> u64 {
        let counts = self.command("GET", "/counts", None);
        let counts = counts.as_array().expect("a list of counts");
        let is = |entry: &Value, key: &str, text: &str| text.is_empty() || entry[key] == text;
        let begins = |entry: &Value| {
            entry["path"]
                .as_str()
                .is_some_and(|it| it.starts_with(path))
        };
        counts
            .iter()
            .filter(|entry| is(entry, "service", service) && is(entry, "method", method))
            .filter(|entry| begins(entry))
            .map(|entry| entry["count"].as_u64().expect("a count"))
            .sum()
    }

    fn command(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = send(method, &format!("{}{path}", self.control), &[], body);
        let answer = answer.expect("the proxy answers");
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        answer.body
    }
}

impl Drop for Fronts {
    fn drop(&mut self) {
        // Ignore errors: a proxy that has exited has no rules.
        drop(send(
            "PUT",
            &format!("{}/rules", self.control),
            &[],
            Some(&json!([])),
        ));
    }
}

/// The control files of a bed's drivers. All control files are removed when this value is dropped.
#[derive(Debug)]
pub struct Faults {
    directory: PathBuf,
}

impl Faults {
    pub(crate) fn new(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self { directory }
    }

    /// Sets the fault of an operation, in the form that drivers/faults.py describes.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn set(&self, operation: &str, fault: &Value) {
        let new = self.directory.join(format!(".{operation}"));
        fs::write(&new, fault.to_string()).expect("a control file");
        fs::rename(&new, self.directory.join(operation)).expect("a control file");
    }

    /// Whether the fault of an operation is still set. A one-time fault is cleared when the fault
    /// occurs.
    #[must_use]
    pub fn is_set(&self, operation: &str) -> bool {
        self.directory.join(operation).exists()
    }

    /// Ends the fault of an operation.
    pub fn clear(&self, operation: &str) {
        // Ignore the error if the file is missing: a one-time fault clears itself.
        drop(fs::remove_file(self.directory.join(operation)));
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            drop(fs::remove_file(entry.path()));
        }
    }
}
