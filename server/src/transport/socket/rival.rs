//! Determines whether the process that listens on a socket is alive. The socket of a killed process
//! whose threads hang accepts connections, but never responds. Changes nothing.

use crate::process::{Liveness, is_namesake};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum time without a response from a process whose state is not visible, since it is in the
/// PID namespace of another container. A live server responds in milliseconds, a very busy server
/// within seconds.
const SILENCE: Duration = Duration::from_secs(10);

/// Maximum time to wait for a process that may be about to exit, or may be a child that keeps the
/// socket until it execs.
const DYING: Duration = Duration::from_millis(200);

const PAUSE: Duration = Duration::from_millis(20);

/// The first bytes of an HTTP/2 client (RFC 9113, section 3.4), with empty settings. A live server
/// sends its own settings at once.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The maximum duration of an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// The inspection happens at startup, when no caller is waiting.
    AtStart,
    /// The inspection happens while callers are served, so a process whose state is not clear at
    /// once counts as alive.
    None,
}

/// The result of one check of the process.
#[derive(Debug)]
enum Probe {
    Certain(Liveness),
    /// The connection succeeded, but the listening process is not visible in this PID namespace.
    Hidden(UnixStream),
    /// The socket's queue of connections is full.
    Full,
}

/// Inspects the process that listens on the address.
///
/// # Errors
/// Returns the error of connect(2), unless it shows that no process listens or that the queue of
/// connections is full.
pub(super) fn look(address: &SocketAddrUnix, patience: Patience) -> Result<Liveness, Errno> {
    let begun = Instant::now();
    loop {
        let (verdict, limit) = match look_once(address)? {
            Probe::Certain(Liveness::Dead(why)) => return Ok(Liveness::Dead(why)),
            Probe::Certain(alive) => (alive, DYING),
            Probe::Full if begun.elapsed() >= SILENCE => (behind_a_full_queue(address), SILENCE),
            Probe::Full => (Liveness::Alive("its queue is full".into()), SILENCE),
            Probe::Hidden(stream) => {
                let left = SILENCE.saturating_sub(begun.elapsed());
                let is_patient = patience == Patience::AtStart && !left.is_zero();
                let wait = if is_patient { left } else { PAUSE };
                match speaks(stream, wait) {
                    Some(true) => (
                        Liveness::Alive("another container's".into()),
                        Duration::ZERO,
                    ),
                    Some(false) => {
                        let seconds = SILENCE.as_secs();
                        let why = format!("no answer for {seconds} s");
                        (Liveness::Dead(why), SILENCE)
                    }
                    // A server that does not speak HTTP/2, or that has just exited, has closed the
                    // connection.
                    None => (Liveness::Alive("it closes connections".into()), DYING),
                }
            }
        };
        if begun.elapsed() >= limit {
            return Ok(verdict);
        }
        if patience == Patience::None {
            return Ok(Liveness::Alive("not known to have exited".into()));
        }
        pause();
    }
}

fn look_once(address: &SocketAddrUnix) -> Result<Probe, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&probe, address) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => {
            return Ok(Probe::Certain(Liveness::Dead("no process listens".into())));
        }
        Err(Errno::AGAIN) => return Ok(Probe::Full),
        Err(error) => return Err(error),
    }
    let stream = UnixStream::from(probe);
    Ok(match listener_of(&stream).and_then(Liveness::of) {
        Some(rival) => Probe::Certain(rival),
        None => Probe::Hidden(stream),
    })
}

/// Returns the state of the process whose queue of connections is full. SO_PEERCRED is not
/// available in this case, so the process counts as alive only if another living process of this
/// program has the path in its arguments.
fn behind_a_full_queue(address: &SocketAddrUnix) -> Liveness {
    let path = address.path().unwrap_or_default();
    let has_path = |pid: &u32| {
        let flags = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let path = path.to_bytes();
        flags.windows(path.len().max(1)).any(|part| part == path)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = pids.filter(|pid| *pid != std::process::id() && is_namesake(*pid));
    let mut states = others.filter(has_path).filter_map(Liveness::of);
    states.find(Liveness::is_alive).unwrap_or_else(|| {
        let seconds = SILENCE.as_secs();
        Liveness::Dead(format!("its queue was full for {seconds} s"))
    })
}

/// Returns the ID of the process that called listen (SO_PEERCRED, unix(7)), or `None` if the
/// process is in a different PID namespace.
fn listener_of(stream: &UnixStream) -> Option<u32> {
    // The function of tokio, unlike the others, accepts a process ID of 0, but it needs a runtime.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .ok()?;
    let pid = {
        let _inside = runtime.enter();
        let stream = OwnedFd::from(stream.try_clone().ok()?);
        let stream = tokio::net::UnixStream::from_std(UnixStream::from(stream)).ok()?;
        stream.peer_cred().ok()?.pid()
    };
    // Do not wait for the shutdown, since this thread may already be inside a runtime.
    runtime.shutdown_background();
    u32::try_from(pid?).ok().filter(|pid| *pid != 0)
}

/// Returns whether the server sends any data within this time, or `None` if the server closes the
/// connection.
fn speaks(mut stream: UnixStream, wait: Duration) -> Option<bool> {
    let exchange = |stream: &mut UnixStream| {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(wait))?;
        stream.write_all(PREFACE)?;
        stream.read(&mut [0])
    };
    match exchange(&mut stream) {
        Ok(0) => None,
        Ok(_) => Some(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(false),
        Err(_) => None,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event reports that another process exits; nothing is served yet"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}
