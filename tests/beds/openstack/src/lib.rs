//! The OpenStack bed for tests in Rust: its cloud as another client sees it, the fault proxy, and
//! the drivers' control files. For tests: it panics. Knows nothing of Belay.

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

/// A running bed, by the file that `bed.py up` wrote.
#[derive(Clone, Debug)]
pub struct Bed {
    root: PathBuf,
    about: Value,
}

impl Bed {
    /// The bed in the directory that `BELAY_OPENSTACK` names.
    ///
    /// # Panics
    /// There is none, or it is not up.
    #[must_use]
    pub fn open() -> Self {
        let root = std::env::var_os("BELAY_OPENSTACK")
            .expect("BELAY_OPENSTACK is the directory of a bed; please run: make openstack");
        Self::at(Path::new(&root))
    }

    /// The bed in that directory.
    ///
    /// # Panics
    /// There is none, or it is not up.
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

    /// A text of bed.json, such as `/auth_url` or `/application_credential/id`.
    ///
    /// # Panics
    /// There is none of that name.
    #[must_use]
    pub fn text(&self, pointer: &str) -> &str {
        let value = self.about.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("bed.json has no text {pointer}"))
    }

    /// The directory of the bed.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The links to the disks of a server, by name: `virtio-` and the first 20 characters of the
    /// volume's id.
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

    /// A command of `bed.py`, such as `freeze cinder-volume`, which must succeed.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) {
        let done = self.try_command(arguments);
        done.unwrap_or_else(|errors| panic!("{arguments:?}: {errors}"));
    }

    /// Like [`Self::command`].
    ///
    /// # Errors
    /// What it has printed.
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

    /// Whether a process of the bed runs.
    ///
    /// # Panics
    /// The record cannot be read.
    #[must_use]
    pub fn has_started(&self, name: &str) -> bool {
        let record = fs::read(self.root.join("processes.json")).expect("a record");
        let record: Value = serde_json::from_slice(&record).expect("the record is JSON");
        record.get(name).is_some()
    }

    /// The rules and counts of the proxy.
    #[must_use]
    pub fn fronts(&self) -> Fronts {
        Fronts::new(self.text("/proxy"))
    }

    /// The control files of the drivers inside Cinder and Nova.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(Path::new(self.text("/faults")))
    }
}
