//! The machine of the measurement, which is part of every report, since the figures depend on it.

use std::fmt;
use std::fs;
use std::io;
use std::num::NonZero;

use serde_json::{Value, json};

/// The machine and its load.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel: String,
    cores: usize,
    load_before: String,
    /// The load average when the measurement ended; empty before.
    pub load_after: String,
}

impl Machine {
    /// Reads the current state of the machine.
    ///
    /// # Errors
    /// Fails if /proc cannot be read.
    pub fn look() -> io::Result<Self> {
        Ok(Self {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
            cores: std::thread::available_parallelism().map_or(0, NonZero::get),
            load_before: load()?,
            load_after: String::new(),
        })
    }

    /// Returns the machine as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "kernel": self.kernel,
            "cores": self.cores,
            "load_before": self.load_before,
            "load_after": self.load_after,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            cores,
            load_before,
            load_after,
        } = self;
        write!(
            f,
            "Linux {kernel}, {cores} cores, load {load_before} before, {load_after} after"
        )
    }
}

/// Returns the load average of the last minute.
///
/// # Errors
/// Fails if /proc cannot be read.
pub fn load() -> io::Result<String> {
    let averages = fs::read_to_string("/proc/loadavg")?;
    Ok(averages.split(' ').next().unwrap_or_default().to_owned())
}
