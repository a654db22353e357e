//! Whether the process that listens on a socket is alive. A killed process keeps its descriptors
//! open while one of its threads hangs in the kernel, including sockets: they accept connections
//! and never answer. Changes nothing.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a process whose state is not visible may be silent: one in the PID namespace of another
/// container. A live server answers in milliseconds, a very busy one within seconds.
const SILENCE: Duration = Duration::from_secs(10);

/// A process may be about to exit, or be a child that keeps the socket until it execs.
const DYING: Duration = Duration::from_millis(200);

const PAUSE: Duration = Duration::from_millis(20);

/// The start of HTTP/2 (RFC 9113, section 3.4), with empty settings; a server sends its own at
/// once.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The process behind a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rival {
    /// It serves, or may serve again.
    Alive(String),
    /// It can no longer serve, and why.
    Dead(String),
}

/// How long to inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// At a start, when no caller waits.
    AtStart,
    /// While others are served: a process whose state is not clear at once counts as alive.
    None,
}

/// The result of one check.
#[derive(Debug)]
enum Look {
    Certain(Rival),
    /// Connected, but the process is not visible.
    Hidden(UnixStream),
    /// The queue of connections is full.
    Full,
}

/// Inspects the process that listens there.
///
/// # Errors
/// If connecting fails for another reason.
pub(super) fn look(address: &SocketAddrUnix, patience: Patience) -> Result<Rival, Errno> {
    let begun = Instant::now();
    loop {
        let (verdict, limit) = match look_once(address)? {
            Look::Certain(Rival::Dead(why)) => return Ok(Rival::Dead(why)),
            Look::Certain(alive) => (alive, DYING),
            Look::Full if begun.elapsed() >= SILENCE => (behind_a_full_queue(address), SILENCE),
            Look::Full => (Rival::Alive("its queue is full".into()), SILENCE),
            Look::Hidden(stream) => {
                let left = SILENCE.saturating_sub(begun.elapsed());
                let is_patient = patience == Patience::AtStart && !left.is_zero();
                let wait = if is_patient { left } else { PAUSE };
                match speaks(stream, wait) {
                    Some(true) => (Rival::Alive("another container's".into()), Duration::ZERO),
                    Some(false) => {
                        let seconds = SILENCE.as_secs();
                        let why = format!("no answer for {seconds} s");
                        (Rival::Dead(why), SILENCE)
                    }
                    // Closed: by a server that does not speak HTTP/2, or one that just exited.
                    None => (Rival::Alive("it closes connections".into()), DYING),
                }
            }
        };
        if begun.elapsed() >= limit {
            return Ok(verdict);
        }
        if patience == Patience::None {
            return Ok(Rival::Alive("not known to have exited".into()));
        }
        pause();
    }
}

fn look_once(address: &SocketAddrUnix) -> Result<Look, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&probe, address) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => {
            return Ok(Look::Certain(Rival::Dead("no process listens".into())));
        }
        Err(Errno::AGAIN) => return Ok(Look::Full),
        Err(error) => return Err(error),
    }
    let stream = UnixStream::from(probe);
    Ok(match listener_of(&stream).and_then(state_of) {
        Some(rival) => Look::Certain(rival),
        None => Look::Hidden(stream),
    })
}

/// The process behind a full queue, where SO_PEERCRED is not available: a live process with our
/// name and this path in its arguments, if there is one; else a dead one.
fn behind_a_full_queue(address: &SocketAddrUnix) -> Rival {
    let path = address.path().unwrap_or_default();
    let namesakes = namesakes().unwrap_or_default().into_iter();
    let with_path = namesakes.filter(|pid| {
        let flags = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let path = path.to_bytes();
        flags.windows(path.len().max(1)).any(|part| part == path)
    });
    let mut alive = with_path
        .filter_map(state_of)
        .filter(|rival| matches!(rival, Rival::Alive(_)));
    alive.next().unwrap_or_else(|| {
        let seconds = SILENCE.as_secs();
        Rival::Dead(format!("its queue was full for {seconds} s"))
    })
}

/// Other processes with the name of this one.
fn namesakes() -> io::Result<Vec<u32>> {
    let own = std::fs::read("/proc/self/comm")?;
    let all = std::fs::read_dir("/proc")?.flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_like_us = |pid: &u32| {
        let name = std::fs::read(format!("/proc/{pid}/comm"));
        *pid != std::process::id() && name.is_ok_and(|name| name == own)
    };
    Ok(pids.filter(is_like_us).collect())
}

/// The process that called listen (SO_PEERCRED, unix(7)); none if it is in another namespace.
fn listener_of(stream: &UnixStream) -> Option<u32> {
    // Only tokio accepts a process id of 0, and it needs a runtime.
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
    // This thread may be inside a runtime already.
    runtime.shutdown_background();
    u32::try_from(pid?).ok().filter(|pid| *pid != 0)
}

/// A process is dead if all its threads have exited, or were killed and only wait in the kernel.
/// None if there is no such process.
fn state_of(pid: u32) -> Option<Rival> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // A thread that has exited meanwhile has no state, and does not matter.
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
    let stats = tasks.flatten().filter_map(stat);
    let threads: Vec<Thread> = stats.filter_map(|stat| Thread::parse(&stat)).collect();
    if threads.is_empty() {
        return None;
    }
    Some(if threads.iter().all(Thread::is_dead) {
        Rival::Dead(format!(
            "process {pid} was killed, but one of its threads hangs"
        ))
    } else if threads
        .iter()
        .any(|thread| matches!(thread.state, 'T' | 't'))
    {
        Rival::Alive(format!("process {pid}, stopped by a signal or a debugger"))
    } else {
        Rival::Alive(format!("process {pid}"))
    })
}

/// The fields of proc_pid_stat(5) for a thread.
#[derive(Debug)]
struct Thread {
    state: char,
    flags: u64,
    pending: u64,
}

impl Thread {
    fn parse(stat: &str) -> Option<Self> {
        // After the name, which may contain anything: fields 3, 9 and 31.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            flags: fields.get(6)?.parse().ok()?,
            pending: fields.get(28)?.parse().ok()?,
        })
    }

    /// It will never run user code again.
    fn is_dead(&self) -> bool {
        /// `PF_EXITING` of the kernel's `include/linux/sched.h`.
        const EXITING: u64 = 4;
        /// Signal 9 in a signal set.
        const KILL: u64 = 1 << 8;
        matches!(self.state, 'Z' | 'X' | 'x')
            || self.flags & EXITING != 0
            || self.pending & KILL != 0
    }
}

/// Whether the server sends anything within that time; none if it closes the connection.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_killed_is_dead_whatever_its_name_and_wait() {
        let stat = |name: &str, state, flags, pending| {
            let zeros = "0 ".repeat(21);
            let text = format!("7 ({name}) {state} 1 7 7 0 -1 {flags} {zeros}{pending} 0 0");
            Thread::parse(&text).unwrap()
        };
        for name in ["belay-node", "a) R 1", "tokio worker"] {
            assert!(stat(name, 'Z', 0, 0).is_dead());
            assert!(stat(name, 'D', 4, 0).is_dead());
            assert!(stat(name, 'D', 0, 0x100).is_dead());
            assert!(!stat(name, 'D', 0, 0x4000).is_dead());
            assert!(!stat(name, 'T', 0x0040_0000, 0).is_dead());
        }
    }

    #[test]
    fn this_process_is_alive() {
        let pid = std::process::id();
        assert_eq!(state_of(pid), Some(Rival::Alive(format!("process {pid}"))));
    }
}
