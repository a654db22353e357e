//! The child's side of a helper process. The standard input of a helper process is a socket to its
//! parent. The process is killed when its parent exits.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

/// Maximum length of a line, in bytes: enough for a call with two maps of 4 KiB, and for JSON
/// escapes.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// The connection of a helper process with its parent.
#[derive(Debug)]
pub struct Parent(());

/// Runs `work` if the first argument of this process is `subcommand`, and returns the exit code.
/// Returns `None` in any other process. Must be called first in `main`.
#[must_use]
pub fn serve(subcommand: &str, work: impl FnOnce(&Parent) -> io::Result<()>) -> Option<ExitCode> {
    if std::env::args_os().nth(1).as_deref() != Some(OsStr::new(subcommand)) {
        return None;
    }
    Some(match end_with_parent().and_then(|()| work(&Parent(()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent process reads this message and the exit status.
            writeln!(io::stderr(), "{error}").ok();
            ExitCode::FAILURE
        }
    })
}

impl Parent {
    /// Waits for the next line.
    ///
    /// # Errors
    /// Returns an error if the connection is closed, or if the line cannot be parsed as a `T`.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<T> {
        let mut line = Vec::new();
        let mut input = io::stdin().lock().take(LINE_BYTES_MAX as u64);
        input.read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Sends a line, together with the descriptor `passed`.
    ///
    /// # Errors
    /// Returns an error if the parent has closed the connection.
    pub fn send(&self, line: &impl Serialize, passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send(io::stdin(), line, passed)
    }

    /// Waits until the parent closes the connection.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn closed(&self) -> io::Result<()> {
        io::stdin().lock().read(&mut [0]).map(drop)
    }
}

/// Makes the kernel send SIGKILL when the parent's thread exits. Fails if the parent has already
/// exited, since the kernel sends no signal in that case.
fn end_with_parent() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let input = io::stdin();
    let mut watched = [PollFd::new(&input, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&Timespec::default()))?;
    match watched[0].revents().contains(PollFlags::HUP) {
        true => Err(io::Error::other("its parent has exited")),
        false => Ok(()),
    }
}

/// Sends a complete line of JSON.
pub(super) fn send(
    socket: impl AsFd,
    line: &impl Serialize,
    passed: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = SendAncillaryBuffer::new(&mut space);
    if let Some(fds) = passed.as_slice().first_chunk::<1>()
        && !messages.push(SendAncillaryMessage::ScmRights(fds))
    {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let parts = [IoSlice::new(&bytes)];
    let flags = SendFlags::NOSIGNAL;
    let sent = retry_on_intr(|| rustix::net::sendmsg(&socket, &parts, &mut messages, flags))?;
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}
