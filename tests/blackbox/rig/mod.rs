//! Code shared by the tests: a directory on a real disk, the agents in it, and volumes.
//!
//! A rig undoes everything when it is dropped. In a test that passes, it first checks that the
//! agents have done so themselves, and otherwise fails the test.

mod authority;
mod caller;
mod calls;
mod clock;
mod contents;
mod controller;
mod disk;
mod frozen;
mod fuse;
mod journal;
mod kubelet;
mod mounts;
pub(crate) mod orders;
mod pages;
mod pair;
mod process;
mod prometheus;
mod records;
mod refusal;
mod test_dir;
mod tools;
mod usage;
mod volume;
mod world;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

pub(crate) use authority::call_by_path;
pub(crate) use belay_bed::chance::Chance;
pub(crate) use belay_bed::patience::{PATIENCE, pause, until};
pub(crate) use belay_bed::tools::{run, text};
pub(crate) use caller::{Caller, Op, Origin, Outcome};
pub(crate) use calls::{Answer, ControllerCalls, Leaving, NodeCalls, call_at, has_left, probe};
pub(crate) use clock::Clock;
pub(crate) use controller::Controller;
pub(crate) use disk::Disk;
pub(crate) use frozen::Frozen;
pub(crate) use fuse::{Attributes, Fuse, FuseMount, Reply, Request, Server, op};
pub(crate) use journal::{Journal, shown};
pub(crate) use kubelet::{Change, Kubelet};
pub(crate) use mounts::{mounts_of, stacked};
pub(crate) use pages::Pages;
pub(crate) use pair::{Drive, Pair, Seen, Site};
pub(crate) use process::Process;
pub(crate) use prometheus::{Prometheus, free_port, get, lint};
pub(crate) use records::Records;
pub(crate) use refusal::{refused, refused_with, retried};
pub(crate) use test_dir::{LoopDevice, TestDir, loop_numbers};
pub(crate) use tools::{bind_loop, mount_image, mounted};
pub(crate) use usage::{access, least_bytes, with_flags, with_mode};
pub(crate) use volume::{Volume, attribute};
pub(crate) use world::World;

/// The number of lines of the kernel's log that are shown with a failed test.
const KERNEL_LINES: usize = 30;

/// A node agent with a directory of volumes.
pub(crate) struct Rig {
    agent: Option<Process>,
    test_dir: TestDir,
    volumes: PathBuf,
    launch: Launch,
}

/// The settings for starting an agent, in addition to the common flags.
#[derive(Default)]
pub(crate) struct Launch {
    /// The command that executes the agent, such as `unshare`.
    pub(crate) command: Vec<String>,
    /// Additional flags.
    pub(crate) flags: Vec<String>,
}

impl Rig {
    /// Starts a rig with a new agent.
    pub(crate) fn new() -> Self {
        let test_dir = TestDir::new();
        let volumes = test_dir.directory("volumes");
        Self::with_volumes_in(test_dir, volumes)
    }

    /// Starts a rig whose volumes' files are in a directory of another filesystem.
    pub(crate) fn with_volumes_in(test_dir: TestDir, volumes: PathBuf) -> Self {
        Self::launched(test_dir, volumes, Launch::default())
    }

    /// Starts a rig whose agent is started with these settings.
    pub(crate) fn launched(test_dir: TestDir, volumes: PathBuf, launch: Launch) -> Self {
        let mut rig = Rig {
            agent: None,
            test_dir,
            volumes,
            launch,
        };
        rig.start();
        rig
    }

    /// Returns the directory of this rig.
    pub(crate) fn test_dir(&self) -> &TestDir {
        &self.test_dir
    }

    /// Returns `--loop-dir`.
    pub(crate) fn volumes(&self) -> &Path {
        &self.volumes
    }

    /// Creates a volume: a file of this size without any data.
    pub(crate) fn volume(&self, bytes: u64) -> Volume {
        Volume::blank(&self.test_dir, &self.volumes, bytes)
    }

    /// Creates a volume with a copy of the file.
    pub(crate) fn copy_of(&self, file: &Path) -> Volume {
        Volume::copied(&self.test_dir, &self.volumes, file)
    }

    /// Returns the agent's RPCs.
    pub(crate) fn node(&self) -> NodeCalls {
        NodeCalls::new(self.socket())
    }

    /// Returns the path of the agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.test_dir.path().join("node.sock")
    }

    /// Returns the running agent.
    pub(crate) fn agent(&self) -> &Process {
        self.agent.as_ref().expect("the agent runs")
    }

    /// Starts the agent, and returns once it listens.
    pub(crate) fn start(&mut self) {
        let volumes = self.volumes.to_str().expect("UTF-8");
        let mut flags = vec!["--node-id", "node-1", "--loop-dir", volumes];
        flags.extend(self.launch.flags.iter().map(String::as_str));
        let command: Vec<&str> = self.launch.command.iter().map(String::as_str).collect();
        self.agent = Some(Process::start_by(
            &command,
            &self.test_dir,
            "belay-node",
            &self.socket(),
            &flags,
        ));
    }

    /// Ends the agent as a crash would, and returns once no process has its socket open: a child
    /// that the agent was just starting exits a moment later. In a container, nothing starts before
    /// that.
    pub(crate) fn kill(&mut self) {
        drop(self.agent.take());
        until("no process has the socket", || {
            UnixStream::connect(self.socket()).is_err()
        });
    }

    /// Kills an agent of which a thread hangs in the kernel. Returns its process.
    pub(crate) fn kill_hung(&mut self) -> Process {
        let agent = self.agent.take().expect("the agent runs");
        agent.signal(Signal::KILL);
        until("the agent is a zombie", || agent.is_zombie());
        agent
    }

    /// Starts the next agents through this command.
    pub(crate) fn launch_by(&mut self, command: &[&str]) {
        self.launch.command = command.iter().map(|&word| word.to_owned()).collect();
    }

    /// Stops the agent as an operator would.
    pub(crate) fn stop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.terminate();
        }
    }

    /// Kills the agent and starts it again: [`Rig::kill`] and [`Rig::start`].
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.start();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Some(agent) = &self.agent {
                eprintln!("the agent's last words:\n{}", agent.last_words());
                eprintln!("the kernel's:\n{}", kernel_log());
            }
            drop(self.agent.take());
            return; // `test_dir` sweeps
        }
        self.stop();
        self.test_dir.expect_nothing_left();
    }
}

/// Returns the end of the kernel's log, in which some filesystems report why they refuse a mount.
fn kernel_log() -> String {
    // Do not use `run`: a second panic would hide the first.
    let log = Command::new("dmesg").output();
    let log = log.map(|output| output.stdout).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(KERNEL_LINES)..].join("\n")
}
