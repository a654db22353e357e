//! Children that do not outlive the process that started them, whichever way that ends; and our own
//! programs, which serve at a socket.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Pid;

use crate::patience::until;

/// A program of this workspace: in `BELAY_BIN_DIR`, else the newest that was built next to this
/// test, by make or by cargo.
///
/// # Errors
/// If there is none.
pub fn binary(name: &str) -> io::Result<PathBuf> {
    if let Some(directory) = std::env::var_os("BELAY_BIN_DIR") {
        return Ok(PathBuf::from(directory).join(name));
    }
    let test = std::env::current_exe()?;
    // <target>/<profile>/deps/<test>
    let target = test.ancestors().nth(3).unwrap_or(&test);
    let built = |path: &PathBuf| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let missing = || format!("no {name} in {}; run `make build` first", target.display());
    ["bin", "release", "debug"]
        .map(|directory| target.join(directory).join(name))
        .into_iter()
        .filter(|path| built(path).is_some())
        .max_by_key(built)
        .ok_or_else(|| io::Error::other(missing()))
}

/// A program that the kernel kills when the thread that starts it exits (PR_SET_PDEATHSIG), so that
/// it does not outlive a killed test. Without input.
#[must_use]
pub fn program(words: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args(["--pdeathsig", "KILL", "--"])
        .args(words)
        .stdin(Stdio::null());
    setpriv
}

/// One of our programs that serves at that socket, for [`Running::serving`]. It is started by
/// `words`, a command that becomes it, such as `unshare`; by none, itself.
#[must_use]
pub fn server(words: &[&str], binary: &Path, socket: &Path) -> Command {
    let words = words.iter().map(AsRef::<OsStr>::as_ref);
    let mut server = program(words.chain([binary.as_os_str()]));
    let endpoint = format!("unix://{}", socket.display());
    server.args(["--endpoint", &endpoint]).stdout(Stdio::null());
    server
}

/// A process, killed when this is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// As execve(2).
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Starts a [`server`], and returns when it listens at its socket.
    ///
    /// # Errors
    /// As execve(2); if it exits before.
    ///
    /// # Panics
    /// If neither happens within [`crate::patience::PATIENCE`].
    pub fn serving(command: &mut Command, socket: &Path) -> io::Result<Self> {
        let mut running = Self::start(command)?;
        let mut ended = Ok(None);
        until(&format!("{} is served", socket.display()), || {
            ended = running.try_wait();
            !matches!(ended, Ok(None)) || running.listens_at(socket)
        });
        match ended? {
            None => Ok(running),
            Some(status) => Err(io::Error::other(format!("it ended at its start: {status}"))),
        }
    }

    /// Whether this process listens there (SO_PEERCRED, unix(7)), or its child if the command that
    /// starts it stays. A child that an agent was just starting when it was killed keeps the old
    /// socket open for a moment.
    fn listens_at(&self, socket: &Path) -> bool {
        let peer = peer_at(socket).ok();
        peer.is_some_and(|peer| peer == Pid::from_child(self) || self.children().contains(&peer))
    }

    /// Its running child processes.
    #[must_use]
    pub fn children(&self) -> Vec<Pid> {
        let tasks = format!("/proc/{}/task", self.id());
        let mut pids = Vec::new();
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            // A thread may exit between the listing and the reading.
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let numbers = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.extend(numbers.filter_map(Pid::from_raw));
        }
        pids
    }
}

/// The process that listens at the socket.
fn peer_at(socket: &Path) -> rustix::io::Result<Pid> {
    // Without waiting: a killed agent's queue may never be emptied.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(socket_peercred(&stream)?.pid)
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
