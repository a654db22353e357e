//! Child processes that do not outlive their parent, however it exits; and Belay's own programs,
//! which serve on a socket.

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

/// Returns the path of a program of this workspace: in `BELAY_BIN_DIR`, or else the newest one that
/// make or cargo has built next to this test.
///
/// # Errors
/// Fails if the program was not built.
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

/// Creates a command without input. The kernel kills its process when the thread that started it
/// exits (PR_SET_PDEATHSIG), so it does not outlive a killed test.
#[must_use]
pub fn program(words: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args(["--pdeathsig", "KILL", "--"])
        .args(words)
        .stdin(Stdio::null());
    setpriv
}

/// Creates the command for one of Belay's programs that serves on this socket, for
/// [`Running::serving`]. `words` are a command that executes the program, such as `unshare`; if
/// empty, the program is started directly.
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
    /// Starts the process.
    ///
    /// # Errors
    /// Returns the errors of execve(2).
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Starts a [`server`], and returns once it listens on its socket.
    ///
    /// # Errors
    /// Returns the errors of execve(2); fails if the program exits before it listens.
    ///
    /// # Panics
    /// Panics if the program neither listens nor exits within [`crate::patience::PATIENCE`].
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

    /// Whether this process listens on the socket (SO_PEERCRED, unix(7)), or its child, if a
    /// command started the program as a child. A child that an agent was just starting when it was
    /// killed keeps the old socket open for a moment.
    fn listens_at(&self, socket: &Path) -> bool {
        let peer = peer_at(socket).ok();
        peer.is_some_and(|peer| peer == Pid::from_child(self) || self.children().contains(&peer))
    }

    /// Returns the running child processes.
    #[must_use]
    pub fn children(&self) -> Vec<Pid> {
        let tasks = format!("/proc/{}/task", self.id());
        let mut pids = Vec::new();
        for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
            // A thread may exit between the listing and the read.
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let numbers = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.extend(numbers.filter_map(Pid::from_raw));
        }
        pids
    }
}

/// Returns the process that listens on the socket.
fn peer_at(socket: &Path) -> rustix::io::Result<Pid> {
    // Do not wait: the queue of a killed agent may never be emptied.
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
        // Both calls fail only if the process has already exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
