//! One running agent: started with its own log, ended by its own process id.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use belay_bed::patience::until;
use belay_bed::programs::{Running, binary, program};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};

use super::test_dir::TestDir;

/// How much of a log is shown when a test fails.
const LAST_WORDS_LINES: usize = 40;

/// A process, killed when this is dropped.
pub(crate) struct Process {
    child: Running,
    log: PathBuf,
}

impl Process {
    /// Starts one of the programs, and returns when it answers at its socket.
    pub(crate) fn start(test_dir: &TestDir, name: &str, socket: &Path, flags: &[&str]) -> Self {
        Self::start_by(&[], test_dir, name, socket, flags)
    }

    /// The same, started by a command that becomes it, such as `unshare`.
    pub(crate) fn start_by(
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        let mut process = Self::spawn(command, test_dir, name, socket, flags);
        until(&format!("{name} listens"), || {
            let ended = process.child.try_wait().expect("wait");
            let words = process.last_words();
            assert!(
                ended.is_none(),
                "{name} ended at its start: {ended:?}\n{words}"
            );
            process.listens_at(socket)
        });
        process
    }

    /// Starts one that must fail, and returns the last line of its log.
    ///
    /// # Panics
    /// Unless it exits by itself, with exit code 1.
    pub(crate) fn refused(test_dir: &TestDir, name: &str, socket: &Path, flags: &[&str]) -> String {
        Self::refused_by(&[], test_dir, name, socket, flags)
    }

    /// The same, started by such a command.
    pub(crate) fn refused_by(
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> String {
        let mut process = Self::spawn(command, test_dir, name, socket, flags);
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

    fn spawn(
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(log_of(test_dir, name))
            .expect("a log");
        Self::spawn_with(stderr.into(), command, test_dir, name, socket, flags)
    }

    /// Starts one with another log, and returns when it answers at its socket.
    pub(crate) fn start_with_log(
        stderr: Stdio,
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        let process = Self::spawn_with(stderr, &[], test_dir, name, socket, flags);
        until(&format!("{name} listens"), || process.listens_at(socket));
        process
    }

    fn spawn_with(
        stderr: Stdio,
        command: &[&str],
        test_dir: &TestDir,
        name: &str,
        socket: &Path,
        flags: &[&str],
    ) -> Self {
        let log = log_of(test_dir, name);
        let words = command.iter().map(AsRef::<OsStr>::as_ref);
        let binary = binary(name).expect("a program");
        let mut program = program(words.chain([binary.as_os_str()]));
        program
            .arg("--endpoint")
            .arg(format!("unix://{}", socket.display()))
            .args(flags)
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = Running::start(&mut program).expect("setpriv of util-linux");
        Process { child, log }
    }

    /// Whether this process listens there (SO_PEERCRED, unix(7)), or its child if the command that
    /// starts it stays. A child that an agent was just starting when it was killed keeps the old
    /// socket open for a moment.
    fn listens_at(&self, socket: &Path) -> bool {
        // Without waiting: a killed agent's queue may never be emptied.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let stream = stream.expect("a socket");
        let address = SocketAddrUnix::new(socket).expect("a short path");
        if connect(&stream, &address).is_err() {
            return false;
        }
        let peer = socket_peercred(&stream).expect("SO_PEERCRED");
        peer.pid == Pid::from_child(&self.child) || self.children().contains(&peer.pid)
    }

    /// Sends it a signal, without waiting.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }

    /// Whether it was killed, but has not exited: its first thread is a zombie (proc_pid_stat(5)).
    pub(crate) fn is_zombie(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its running child processes.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let tasks = format!("/proc/{}/task", self.pid());
        let mut pids = Vec::new();
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            // A thread may exit between the listing and the reading.
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let numbers = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.extend(numbers.filter_map(Pid::from_raw));
        }
        pids
    }

    /// Kills them. Found while it runs: afterwards their parent is unknown.
    pub(crate) fn kill_children(&self) {
        for child in self.children() {
            let killed = kill_process(child, Signal::KILL);
            // It may have exited by itself.
            assert!(matches!(killed, Ok(()) | Err(Errno::SRCH)), "{killed:?}");
        }
    }

    /// How many sockets it has open.
    pub(crate) fn sockets(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("its descriptors");
        let target = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
        let names = open.flatten().filter_map(target);
        names
            .filter(|name| name.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Whether it has that file open.
    pub(crate) fn has_open(&self, file: &Path) -> bool {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("its descriptors");
        let mut targets = open.flatten().map(|entry| fs::read_link(entry.path()));
        targets.any(|target| target.is_ok_and(|target| target == file))
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS_LINES)..].join("\n")
    }

    /// All of its log, and that of those before it.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends it SIGTERM, as an operator would.
    ///
    /// # Panics
    /// Unless it exits with success.
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

fn log_of(test_dir: &TestDir, name: &str) -> PathBuf {
    test_dir.path().join(format!("{name}.log"))
}
