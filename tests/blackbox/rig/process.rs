//! A running program: started with its own log, and ended through its own PID.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use belay_bed::patience::until;
use belay_bed::programs::{Running, binary, server};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::test_dir::TestDir;

/// The number of lines of a log that are shown when a test fails.
const LAST_WORDS_LINES: usize = 40;

/// A process, killed when this is dropped.
pub(crate) struct Process {
    child: Running,
    log: PathBuf,
}

impl Process {
    /// Starts one of the programs, and returns once it responds at its socket.
    pub(crate) fn start(test_dir: &TestDir, name: &str, socket: &Path, flags: &[&str]) -> Self {
        Self::start_by(&[], test_dir, name, socket, flags)
    }

    /// Starts a program like [`Process::start`], through a command that executes it, such as
    /// `unshare`.
    pub(crate) fn start_by(
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        let stderr = appended(test_dir, name).into();
        Self::serving(stderr, command, test_dir, name, socket, flags)
    }

    /// Starts a program that must fail, and returns the last line of its log.
    ///
    /// # Panics
    /// Panics unless the program exits by itself, with exit code 1.
    pub(crate) fn refused(test_dir: &TestDir, name: &str, socket: &Path, flags: &[&str]) -> String {
        Self::refused_by(&[], test_dir, name, socket, flags)
    }

    /// Starts a program like [`Process::refused`], through a command that executes it.
    pub(crate) fn refused_by(
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> String {
        let mut server = server_of(command, name, socket, flags);
        let log = log_of(test_dir, name);
        let child = Running::start(server.stderr(appended(test_dir, name)));
        let child = child.expect("setpriv of util-linux");
        let mut process = Process { child, log };
        let mut status = None;
        until(&format!("{name} ends"), || {
            status = process.child.try_wait().expect("wait");
            status.is_some()
        });
        let words = process.last_words();
        let code = status.and_then(|status| status.code());
        assert_eq!(code, Some(1), "{name}: {words}");
        words.lines().last().unwrap_or_default().to_owned()
    }

    /// Starts a program with another log, and returns once it responds at its socket.
    pub(crate) fn start_with_log(
        stderr: Stdio,
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        Self::serving(stderr, &[], test_dir, name, socket, flags)
    }

    fn serving(
        stderr: Stdio,
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        let log = log_of(test_dir, name);
        let mut server = server_of(command, name, socket, flags);
        match Running::serving(server.stderr(stderr), socket) {
            Ok(child) => Process { child, log },
            Err(error) => panic!("{name}: {error}\n{}", last_words(&log)),
        }
    }

    /// Sends the process a signal, without waiting.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }

    /// Whether the process was killed but has not exited: its first thread is a zombie
    /// (proc_pid_stat(5)).
    pub(crate) fn is_zombie(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    /// Returns the PID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the running child processes.
    pub(crate) fn children(&self) -> Vec<Pid> {
        self.child.children()
    }

    /// Kills the child processes. Must be called while the program runs: afterwards, their parent
    /// is unknown.
    pub(crate) fn kill_children(&self) {
        for child in self.children() {
            let killed = kill_process(child, Signal::KILL);
            // A child may have exited by itself.
            assert!(matches!(killed, Ok(()) | Err(Errno::SRCH)), "{killed:?}");
        }
    }

    /// Returns the number of open sockets.
    pub(crate) fn sockets(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("its descriptors");
        let target = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
        let names = open.flatten().filter_map(target);
        names
            .filter(|name| name.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Whether the process has this file open.
    pub(crate) fn has_open(&self, file: &Path) -> bool {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("its descriptors");
        let mut targets = open.flatten().map(|entry| fs::read_link(entry.path()));
        targets.any(|target| target.is_ok_and(|target| target == file))
    }

    /// Returns the end of the log.
    pub(crate) fn last_words(&self) -> String {
        last_words(&self.log)
    }

    /// Returns the whole log, including the logs of earlier processes with this name.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends SIGTERM, as an operator would.
    ///
    /// # Panics
    /// Panics unless the process exits with success.
    pub(crate) fn terminate(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("kill");
        let mut status = None;
        until("the agent ends on SIGTERM", || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        let words = self.last_words();
        assert!(
            status.is_some_and(|status| status.success()),
            "the agent ended with {status:?}\n{words}"
        );
    }
}

fn server_of(command: &[&str], name: &str, socket: &Path, flags: &[&str]) -> Command {
    let binary = binary(name).expect("a program");
    let mut server = server(command, &binary, socket);
    server.args(flags);
    server
}

fn last_words(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LAST_WORDS_LINES)..].join("\n")
}

/// Opens the log of a program, which all programs of this name share.
fn appended(test_dir: &TestDir, name: &str) -> File {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log_of(test_dir, name));
    log.expect("a log")
}

fn log_of(test_dir: &TestDir, name: &str) -> PathBuf {
    test_dir.path().join(format!("{name}.log"))
}
