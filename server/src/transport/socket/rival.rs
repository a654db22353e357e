//! Whether the process that listens on a socket is alive. One that was killed keeps all it has open
//! for as long as one of its threads hangs in the kernel, its sockets too: they take connections
//! and never answer. Changes nothing.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a process whose state cannot be seen may be silent: one in the process namespace of
/// another container. A living server answers in milliseconds, a very busy one within seconds.
const SILENCE: Duration = Duration::from_secs(10);

/// A process may be about to end, or a child of it that keeps the socket until it execs.
const DYING: Duration = Duration::from_millis(200);

const PAUSE: Duration = Duration::from_millis(20);

/// What begins HTTP/2 (RFC 9113, section 3.4), with empty settings; a server sends its own at once.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The process behind a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rival {
    /// It serves, or may do so again.
    Alive(String),
    /// It cannot serve any more, and why.
    Dead(String),
}

/// How long to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// At a start, which nobody waits for.
    AtStart,
    /// While others are served: a process that cannot be judged at once is alive.
    None,
}

/// One look.
#[derive(Debug)]
enum Look {
    Certain(Rival),
    /// Connected, but the process cannot be seen.
    Hidden(UnixStream),
    /// Too many wait for it already.
    Full,
}

/// Who listens there.
///
/// # Errors
/// If the socket cannot be connected to for another reason.
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
                        let why = format!("it said nothing for {seconds} s");
                        (Rival::Dead(why), SILENCE)
                    }
                    // Closed: by a server that speaks no HTTP/2, or since it just ended.
                    None => (Rival::Alive("it closes connections".into()), DYING),
                }
            }
        };
        if begun.elapsed() >= limit {
            return Ok(verdict);
        }
        if patience == Patience::None {
            return Ok(Rival::Alive("not seen to have ended".into()));
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
            return Ok(Look::Certain(Rival::Dead("nobody listens".into())));
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

/// Who listens where nobody can connect, and so nobody can ask who it is: a process like this one
/// that was started with this path, if there is one; else what is left of a dead one.
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

/// The process that began to listen (SO_PEERCRED, unix(7)); none if it is in another namespace.
fn listener_of(stream: &UnixStream) -> Option<u32> {
    // Only tokio takes a process id of 0, and it wants a runtime around it.
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
    // Others may wait in a runtime around this one.
    runtime.shutdown_background();
    u32::try_from(pid?).ok().filter(|pid| *pid != 0)
}

/// Dead is a process all threads of which have ended, or were killed and only wait for the kernel
/// to let them end. None if there is none to be seen.
fn state_of(pid: u32) -> Option<Rival> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // A thread that ended since has no state, and is no matter.
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
    let stats = tasks.flatten().filter_map(stat);
    let threads: Vec<Thread> = stats.filter_map(|stat| Thread::parse(&stat)).collect();
    if threads.is_empty() {
        return None;
    }
    Some(if threads.iter().all(Thread::is_dead) {
        Rival::Dead(format!(
            "process {pid} was killed, and a thread of it hangs"
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

/// What proc_pid_stat(5) says of a thread.
#[derive(Debug)]
struct Thread {
    state: char,
    flags: u64,
    pending: u64,
}

impl Thread {
    fn parse(stat: &str) -> Option<Self> {
        // Behind the name, which may hold anything: fields 3, 9 and 31.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            flags: fields.get(6)?.parse().ok()?,
            pending: fields.get(28)?.parse().ok()?,
        })
    }

    /// It never runs code of its program again.
    fn is_dead(&self) -> bool {
        /// `PF_EXITING` of the kernel's `include/linux/sched.h`.
        const EXITING: u64 = 4;
        /// Signal 9 in a set of signals.
        const KILL: u64 = 1 << 8;
        matches!(self.state, 'Z' | 'X' | 'x')
            || self.flags & EXITING != 0
            || self.pending & KILL != 0
    }
}

/// Whether anything comes back within that time; none if the connection is closed.
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
    reason = "no event tells that another process ends; nothing is served yet"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_killed_is_dead_whatever_it_is_called_and_waits_for() {
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
