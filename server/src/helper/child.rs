//! The parent's side of a helper process. No thread waits for the process, because the Tokio
//! runtime watches the socket and the exit of the process.

use super::Process;
use super::limits::EXIT_MAX;
use super::serve::{LINE_BYTES_MAX, send};
use crate::call::{Failure, Kind};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child as StdChild, Command, ExitStatus, Stdio};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Maximum number of bytes that are read from the standard error of a process that has exited
/// without a result.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// A running helper process. Dropping this value kills the process with its process group, and
/// reaps it.
#[derive(Debug)]
pub struct Child {
    /// The word before "process" in error messages.
    name: &'static str,
    process: StdChild,
    is_reaped: bool,
    /// The pidfd, which becomes readable when the process has exited.
    exit: AsyncFd<OwnedFd>,
    /// The connection with the process; `None` once it is closed.
    pub(super) socket: Option<UnixStream>,
    /// Bytes received after the last complete line.
    received: Vec<u8>,
    /// A received descriptor, and the number of bytes in `received` up to the end of the message
    /// that contained the descriptor.
    passed: Option<(usize, OwnedFd)>,
}

/// Returns a command that runs this program with a subcommand, even if the program's file was
/// replaced.
#[must_use]
pub fn program(subcommand: &str) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg(subcommand);
    program
}

impl Child {
    /// Starts a process in its own process group, with an empty environment, and sends the first
    /// line to it. Does not wait for the process. Must be called in the Tokio runtime, and on a
    /// thread that outlives the process, since the process is killed when the thread exits. `name`
    /// is the word before "process" in error messages.
    ///
    /// # Errors
    /// Returns the error of the system call. After an error, no process is left.
    pub fn start(
        name: &'static str,
        mut program: Command,
        call: &impl Serialize,
    ) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        program
            .env_clear()
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let process = program.spawn()?;
        // The process has not been reaped yet, so its ID cannot have been reused.
        let exit = pid(&process).ok_or(Errno::SRCH);
        let exit = exit.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
        entrust(name, process, ours, call, exit)
    }

    /// Sends a further line without waiting. The socket's buffer must have room for the whole line.
    ///
    /// # Errors
    /// Returns `System` if the process does not read, or has ended.
    pub fn send(&self, line: &impl Serialize) -> Result<(), Failure> {
        let sent = match &self.socket {
            Some(socket) => send(socket, line, None),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        sent.map_err(|error| self.broken(&error))
    }

    /// Waits for the next line, and returns it with the descriptor that was sent with the line. If
    /// the future is dropped, no data is lost.
    ///
    /// # Errors
    /// Returns `System`, with the exit status and the last line of standard error, if the process
    /// has ended or has sent a malformed line.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Option<OwnedFd>), Failure> {
        let line = match self.line().await {
            Ok(line) => line,
            Err(error) => return Err(self.broken(&error)),
        };
        // The kernel may return earlier lines together with the line that was sent with a
        // descriptor.
        let passed = self.passed.take_if(|(end, _)| *end <= line.len());
        if let Some((end, _)) = &mut self.passed {
            *end -= line.len();
        }
        match serde_json::from_slice(&line) {
            Ok(said) => Ok((said, passed.map(|(_, fd)| fd))),
            Err(_) => {
                let ending = self.ending().await;
                Err(self.broken(&ending))
            }
        }
    }

    /// Returns the next line, or at the end of the connection, the bytes received after the last
    /// line.
    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                return Ok(self.received.drain(..=end).collect());
            }
            if self.received.len() > LINE_BYTES_MAX {
                return Err(io::Error::other("its line is too long"));
            }
            let Some(socket) = &self.socket else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            socket.readable().await?;
            let (received, passed) = (&mut self.received, &mut self.passed);
            match socket.try_io(Interest::READABLE, || read(socket, received, passed)) {
                Ok(0) => return Ok(std::mem::take(&mut self.received)),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {}
                    // The process has ended without reading.
                    io::ErrorKind::ConnectionReset => return Ok(Vec::new()),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Waits for the exit of the process for at most [`EXIT_MAX`], and returns the reason why the
    /// process sent no result.
    async fn ending(&mut self) -> String {
        drop(timeout(EXIT_MAX, self.exited()).await);
        let status = self.process.try_wait().ok().flatten();
        let mut errors = [0; ERROR_BYTES_MAX];
        let length = self.process.stderr.as_ref().and_then(|stderr| {
            // A different process of the child's group may keep the pipe open.
            rustix::io::ioctl_fionbio(stderr, true).ok()?;
            rustix::io::read(stderr, &mut errors[..]).ok()
        });
        ending(status, &errors[..length.unwrap_or_default()])
    }

    fn broken(&self, why: &dyn Display) -> Failure {
        let name = self.name;
        let message = format!("the {name} process that asked the server has failed: {why}");
        Failure::new(Kind::System, message)
    }

    /// Kills the process, and reaps it if it has exited. Does not wait for the exit. If the helper
    /// process exits after this process, process 1 reaps it.
    fn reap(&mut self) {
        self.kill();
        // A new process may get the ID of this child as soon as the child is reaped, here or
        // elsewhere.
        self.is_reaped |= !matches!(self.process.try_wait(), Ok(None));
    }
}

impl Process for Child {
    fn close(&mut self) {
        // Close the passed descriptor before the child closes its copy: closing the last descriptor
        // of a mount may wait for a server.
        self.passed = None;
        self.socket = None;
        self.process.stderr = None;
    }

    fn kill(&mut self) {
        // Until the process is reaped, no other process can have its ID.
        if let Some(group) = pid(&self.process).filter(|_| !self.is_reaped) {
            // Ignore the error: all processes of the group may have exited.
            rustix::process::kill_process_group(group, Signal::KILL).ok();
        }
    }

    async fn exited(&mut self) {
        // Ignore the error of a runtime that is being shut down, since dropping the value kills the
        // process.
        drop(self.exit.readable().await);
        self.reap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.reap();
    }
}

/// Registers the process with the runtime, so that the process can be killed and reaped without
/// blocking, and then sends the call to the process.
pub(super) fn entrust(
    name: &'static str,
    mut process: StdChild,
    socket: StdUnixStream,
    call: &impl Serialize,
    exit: rustix::io::Result<OwnedFd>,
) -> io::Result<Child> {
    let entrusted = || {
        let exit = watched(exit?)?;
        let socket = UnixStream::from_std(socket)?;
        // The call fits into the socket's buffer, which is empty.
        send(&socket, call, None)?;
        Ok((exit, socket))
    };
    match entrusted() {
        Ok((exit, socket)) => Ok(Child {
            name,
            process,
            is_reaped: false,
            exit,
            socket: Some(socket),
            received: Vec::new(),
            passed: None,
        }),
        Err(error) => {
            // A killed process that has not received a call exits at once, since it does not wait
            // for a server. Ignore the errors, since both calls fail only if the process was
            // already reaped.
            process.kill().ok();
            process.wait().ok();
            Err(error)
        }
    }
}

fn pid(process: &StdChild) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process.id()).ok()?)
}

/// Registers a descriptor with the Tokio runtime. This function must be called in the runtime.
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its replacement is unsafe because of types that may return another descriptor \
                  later; an OwnedFd does not"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Appends the bytes that have arrived to `received`, and stores the descriptor that was sent with
/// them.
fn read(
    socket: &UnixStream,
    received: &mut Vec<u8>,
    passed: &mut Option<(usize, OwnedFd)>,
) -> io::Result<usize> {
    let mut bytes = [0; 4 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let read = rustix::net::recvmsg(socket.as_fd(), into, &mut messages, flags)?;
    if read.flags.contains(ReturnFlags::CTRUNC) {
        // The kernel has dropped the received descriptor, since this process has reached its limit
        // of open descriptors.
        return Err(Errno::MFILE.into());
    }
    received.extend_from_slice(&bytes[..read.bytes]);
    for message in messages.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            *passed = fds.last().map(|fd| (received.len(), fd));
        }
    }
    Ok(read.bytes)
}

/// Describes the exit of a process that has sent no result. The text contains the exit status and
/// the last line of standard error, without the notes that follow a panic's message.
pub(super) fn ending(status: Option<ExitStatus>, errors: &[u8]) -> String {
    let status = status.map_or_else(|| "it has not exited".to_owned(), |it| it.to_string());
    let errors = String::from_utf8_lossy(errors);
    let mut lines = errors.lines().map(str::trim);
    match lines.rfind(|line| !line.is_empty() && !line.starts_with("note: ")) {
        Some(line) => format!("no answer; {status}: {line}"),
        None => format!("no answer; {status}"),
    }
}
