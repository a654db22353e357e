//! The release binary, started as a node would start it, and what it weighs.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belay_bed::scrape::status;

use crate::place::Place;
use crate::rpc::Client;

/// How long a start may take before it counts as failed.
const START_MAX: Duration = Duration::from_secs(10);

/// A running belay-node.
pub struct Agent<'a> {
    place: &'a Place,
    process: u32,
    /// To its socket.
    pub client: Client,
    /// From the spawn to the first answered Probe.
    pub first_answer: Duration,
}

/// What a process holds, in KiB, as /proc/PID/status writes it.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// `VmRSS`: all resident pages, code included.
    pub resident_kib: u64,
    /// `RssAnon`: those that are nobody else's: heap and stacks.
    pub anonymous_kib: u64,
    /// `VmHWM`: the most that `VmRSS` ever was.
    pub peak_kib: u64,
}

/// Where the binary is: in `BELAY_BIN_DIR`, else where `make build` puts it.
///
/// # Errors
/// When it was not built.
pub fn binary() -> io::Result<PathBuf> {
    let dir = match std::env::var_os("BELAY_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target).join("bin"),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bin"),
        },
    };
    let path = dir.join("belay-node");
    if path.is_file() {
        return Ok(path);
    }
    Err(io::Error::other(format!(
        "{} is not there: run `make build` first",
        path.display()
    )))
}

impl<'a> Agent<'a> {
    /// Starts an agent on a socket called `name`, and waits for its first answer.
    ///
    /// # Errors
    /// When it does not come up; the end of its log is in the message.
    pub fn start(place: &'a Place, name: &str) -> io::Result<Self> {
        let socket = place.path(&format!("{name}.sock"));
        let log = place.path(&format!("{name}.log"));
        let mut command = Command::new(binary()?);
        command
            .arg("--endpoint")
            .arg(&socket)
            .arg("--loop-dir")
            .arg(place.folder("volumes")?)
            .args(["--node-id", "bench"])
            .stdin(Stdio::null())
            .stderr(File::create(&log)?);
        for key in ["CSI_ENDPOINT", "BELAY_LOG_LEVEL", "BELAY_HTTP_ENDPOINT"] {
            command.env_remove(key);
        }
        let client = Client::new(&socket)?;
        let start = Instant::now();
        let process = place.spawn(&mut command)?;
        let first_answer = await_answer(&client, start, &log)?;
        Ok(Self {
            place,
            process,
            client,
            first_answer,
        })
    }

    /// What it holds now.
    ///
    /// # Errors
    /// When it is gone.
    pub fn memory(&self) -> io::Result<Memory> {
        let of = |name| status(self.process, name);
        Ok(Memory {
            resident_kib: of("VmRSS")?,
            anonymous_kib: of("RssAnon")?,
            peak_kib: of("VmHWM")?,
        })
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.place.end(self.process) {
            eprintln!("belay-benches: process {}: {error}", self.process);
        }
    }
}

/// Asks until it answers. Asking again at once keeps a processor busy, but any pause would be in
/// the figure.
fn await_answer(client: &Client, start: Instant, log: &Path) -> io::Result<Duration> {
    loop {
        match client.probe() {
            Ok(_) => return Ok(start.elapsed()),
            Err(error) if start.elapsed() > START_MAX => {
                let said = fs::read_to_string(log).unwrap_or_default();
                let last: Vec<_> = said.lines().rev().take(3).collect();
                let why = format!("belay-node does not answer ({error}); it said: {last:?}");
                return Err(io::Error::other(why));
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}
