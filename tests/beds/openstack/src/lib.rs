//! The OpenStack bed (test environment) for tests in Rust: a client of its cloud, the fault proxy,
//! and the drivers' control files. The functions of this crate panic on errors, since only tests
//! call them. Independent of Belay.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends when its bed is not there, or refuses what it must accept"
)]

mod cloud;
mod faults;
mod http;

pub use cloud::{Cloud, Server, Volume};
pub use faults::{Faults, Fronts};
pub use http::{Answer, Cut, send};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A running bed, described by the file that `bed.py up` wrote.
#[derive(Clone, Debug)]
pub struct Bed {
    root: PathBuf,
    about: Value,
}

impl Bed {
    /// Opens the bed in the directory that `BELAY_OPENSTACK` names.
    ///
    /// # Panics
    /// Panics if there is no bed, or if the bed is not running.
    #[must_use]
    pub fn open() -> Self {
        let root = std::env::var_os("BELAY_OPENSTACK")
            .expect("BELAY_OPENSTACK is the directory of a bed; please run: make openstack");
        Self::at(Path::new(&root))
    }

    /// Opens the bed in this directory.
    ///
    /// # Panics
    /// Panics if there is no bed, or if the bed is not running.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let root = root.to_owned();
        let file = root.join("bed.json");
        let text = fs::read(&file).unwrap_or_else(|error| {
            panic!("{}: {error}; is the bed up?", file.display());
        });
        let about = serde_json::from_slice(&text).expect("bed.json is JSON");
        Self { root, about }
    }

    /// Returns the text at a JSON pointer in bed.json, such as `/auth_url` or
    /// `/application_credential/id`.
    ///
    /// # Panics
    /// Panics if there is no such text.
    #[must_use]
    pub fn text(&self, pointer: &str) -> &str {
        let value = self.about.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("bed.json has no text {pointer}"))
    }

    /// Returns the directory of the bed.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the links to the disks of a server. The name of a link is `virtio-` and the first 20
    /// characters of the volume's ID.
    #[must_use]
    pub fn disks(&self, server: &str) -> Vec<PathBuf> {
        let directory = Path::new(self.text("/guests")).join(server);
        let Ok(entries) = fs::read_dir(directory) else {
            return Vec::new();
        };
        let mut links: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        links.sort();
        links
    }

    /// Runs a command of `bed.py`, such as `freeze cinder-volume`, which must succeed.
    ///
    /// # Panics
    /// Panics if the command fails.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) {
        let done = self.try_command(arguments);
        done.unwrap_or_else(|errors| panic!("{arguments:?}: {errors}"));
    }

    /// Runs a command like [`Self::command`], and returns an error if it fails.
    ///
    /// # Errors
    /// Returns the output of the command.
    pub fn try_command(&self, arguments: &[&str]) -> Result<(), String> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("bed.py");
        let mut command = Command::new(program);
        command.arg("--state").arg(&self.root).args(arguments);
        let output = command.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Whether `bed.py` has recorded a process with this name in processes.json.
    ///
    /// # Panics
    /// Panics if the record cannot be read.
    #[must_use]
    pub fn has_started(&self, name: &str) -> bool {
        let record = fs::read(self.root.join("processes.json")).expect("a record");
        let record: Value = serde_json::from_slice(&record).expect("the record is JSON");
        record.get(name).is_some()
    }

    /// Returns a handle for the rules and counts of the proxy.
    #[must_use]
    pub fn fronts(&self) -> Fronts {
        Fronts::new(self.text("/proxy"))
    }

    /// Returns a handle for the control files of the drivers inside Cinder and Nova.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(Path::new(self.text("/faults")))
    }
}
