//! Starts the two real programs as child processes with the documented flags, and watches them.
//! Handles no volumes.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use belay_bed::programs::{Running, server};
use belay_bed::scrape;

use crate::demo_dir::{BINARIES, CONTROLLER, CONTROLLER_STATE, NODE, VOLUMES, log, socket};

/// The ID by which the controller knows the node.
pub(crate) const NODE_ID: &str = "demo-node";

/// Maximum number of log lines in a failure report.
const LOG_LINES_MAX: usize = 12;

/// The running controller and node agent.
pub(crate) struct Agents {
    pub(crate) controller: Agent,
    pub(crate) node: Agent,
}

/// A program, running unless it was killed.
pub(crate) struct Agent {
    pub(crate) name: &'static str,
    command: Command,
    socket: PathBuf,
    pub(crate) process: Running,
    /// The address of the program's `/metrics`.
    pub(crate) http: SocketAddr,
}

impl Agents {
    /// Starts both programs, and returns once they listen on their sockets.
    ///
    /// # Errors
    /// Fails if a program cannot be started, or exits.
    pub(crate) fn start(bin_dir: &Path, demo_dir: &Path) -> Result<Self> {
        let state = demo_dir.join(CONTROLLER_STATE);
        std::fs::create_dir_all(&state)?;
        let start = |name, flag, directory: &Path| {
            Agent::start(name, bin_dir, demo_dir, [Path::new(flag), directory])
        };
        Ok(Self {
            controller: start(CONTROLLER, "--state-dir", &state)?,
            node: start(NODE, "--loop-dir", &demo_dir.join(VOLUMES))?,
        })
    }

    /// Checks that both programs are still running.
    ///
    /// # Errors
    /// Fails if a program has exited; the error contains its exit status.
    pub(crate) fn both_run(&mut self) -> Result<()> {
        for agent in [&mut self.controller, &mut self.node] {
            if let Some(status) = agent.process.try_wait()? {
                bail!("{} exited: {status}", agent.name);
            }
        }
        Ok(())
    }
}

impl Agent {
    fn start(
        name: &'static str,
        bin_dir: &Path,
        demo_dir: &Path,
        directory: [&Path; 2],
    ) -> Result<Self> {
        let log = File::create(log(demo_dir, name))?;
        let http = scrape::free_port()?;
        let socket = socket(demo_dir, name);
        let mut command = server(&[], &bin_dir.join(name), &socket);
        command
            .args(["--node-id", NODE_ID, "--http-endpoint", &http.to_string()])
            .args(directory)
            // Set only what the flags need: the caller's BELAY_* and CSI_ENDPOINT must have no
            // effect.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = Running::serving(&mut command, &socket).context(name)?;
        Ok(Self {
            name,
            command,
            socket,
            process,
            http,
        })
    }

    /// Kills the program by SIGKILL, which prevents any cleanup.
    ///
    /// # Errors
    /// Fails if a system call fails.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    /// Starts the program again, as its DaemonSet would.
    ///
    /// # Errors
    /// Fails if the program cannot be started, or exits.
    pub(crate) fn start_again(&mut self) -> io::Result<()> {
        self.process = Running::serving(&mut self.command, &self.socket)?;
        Ok(())
    }
}

/// Returns the last lines of both logs, for a failure report.
pub(crate) fn log_tails(demo_dir: &Path) -> String {
    let tail = |name| {
        let log = std::fs::read_to_string(log(demo_dir, name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n  ");
        format!("last lines of {name}'s log:\n  {last}\n")
    };
    BINARIES.map(tail).concat()
}
