//! Starts a release binary of Belay as on a node, and measures its memory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belay_bed::scrape::status;

use crate::bench_dir::BenchDir;
use crate::rpc::Client;

/// Maximum time from the start of a program to its first response.
const START_MAX: Duration = Duration::from_secs(10);

/// A running program.
pub struct Program<'a> {
    bench_dir: &'a BenchDir,
    process: u32,
    /// A client for the program's socket.
    pub client: Client,
    /// The time from the spawn to the first response to a Probe.
    pub first_answer: Duration,
}

/// The memory of a process in KiB, from /proc/PID/status.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// `VmRSS`: all resident pages, including code.
    pub resident_kib: u64,
    /// `RssAnon`: the private pages: heap and stacks.
    pub anonymous_kib: u64,
    /// `VmHWM`: the highest `VmRSS` so far.
    pub peak_kib: u64,
}

/// Returns the path of the program: in `BELAY_BIN_DIR`, or else where `make build` writes it.
///
/// # Errors
/// Fails if the program was not built.
pub fn binary(name: &str) -> io::Result<PathBuf> {
    let dir = match std::env::var_os("BELAY_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target).join("bin"),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bin"),
        },
    };
    let path = dir.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(io::Error::other(format!(
        "{} does not exist: run `make build` first",
        path.display()
    )))
}

impl<'a> Program<'a> {
    /// Starts a belay-node for volumes that are files on a socket called `name`, and waits for its
    /// first response.
    ///
    /// # Errors
    /// Fails if the program does not start; the message contains the end of its log.
    pub fn agent(bench_dir: &'a BenchDir, name: &str) -> io::Result<Self> {
        let mut command = Command::new(binary("belay-node")?);
        let volumes = bench_dir.directory("volumes")?;
        command.arg("--loop-dir").arg(volumes);
        Self::start(bench_dir, name, command)
    }

    /// Starts a belay-node like [`Program::agent`], with a driver of another kind.
    ///
    /// # Errors
    /// Returns the errors of [`Program::agent`].
    pub fn agent_of(bench_dir: &'a BenchDir, name: &str, kind: &str) -> io::Result<Self> {
        let mut command = Command::new(binary("belay-node")?);
        command.args(["--driver-kind", kind]);
        Self::start(bench_dir, name, command)
    }

    /// Starts a belay-controller like [`Program::agent`], with an empty state directory, and with
    /// overcommit.
    ///
    /// # Errors
    /// Returns the errors of [`Program::agent`].
    pub fn controller(bench_dir: &'a BenchDir, name: &str) -> io::Result<Self> {
        let mut command = Command::new(binary("belay-controller")?);
        let state = bench_dir.directory(&format!("{name}.state"))?;
        command.arg("--state-dir").arg(state);
        command.args(["--overcommit", "1000000"]);
        Self::start(bench_dir, name, command)
    }

    fn start(bench_dir: &'a BenchDir, name: &str, mut command: Command) -> io::Result<Self> {
        let socket = bench_dir.path(&format!("{name}.sock"));
        let log = bench_dir.path(&format!("{name}.log"));
        command
            .arg("--endpoint")
            .arg(&socket)
            .args(["--node-id", "bench"])
            .stdin(Stdio::null())
            .stderr(File::create(&log)?);
        for key in ["CSI_ENDPOINT", "BELAY_LOG_LEVEL", "BELAY_HTTP_ENDPOINT"] {
            command.env_remove(key);
        }
        let client = Client::new(&socket)?;
        let start = Instant::now();
        let process = bench_dir.spawn(&mut command)?;
        let first_answer = await_answer(&client, start, &log)?;
        Ok(Self {
            bench_dir,
            process,
            client,
            first_answer,
        })
    }

    /// Returns the current memory of the program.
    ///
    /// # Errors
    /// Fails if the program has exited.
    pub fn memory(&self) -> io::Result<Memory> {
        let of = |name| status(self.process, name);
        Ok(Memory {
            resident_kib: of("VmRSS")?,
            anonymous_kib: of("RssAnon")?,
            peak_kib: of("VmHWM")?,
        })
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.bench_dir.end(self.process) {
            eprintln!("belay-benches: process {}: {error}", self.process);
        }
    }
}

/// Retries until the program responds. Retrying without a pause keeps a CPU busy, but any pause
/// would be part of the result.
fn await_answer(client: &Client, start: Instant, log: &Path) -> io::Result<Duration> {
    loop {
        match client.probe() {
            Ok(_) => return Ok(start.elapsed()),
            Err(error) if start.elapsed() > START_MAX => {
                let said = fs::read_to_string(log).unwrap_or_default();
                let last: Vec<_> = said.lines().rev().take(3).collect();
                let why = format!("it does not answer ({error}); its last log lines: {last:?}");
                return Err(io::Error::other(why));
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}
