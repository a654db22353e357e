//! Tests whether a process is alive. A killed process keeps its descriptors, sockets and locks
//! while one of its threads hangs in the kernel, so these do not prove that the process can still
//! serve. Only processes of this PID namespace are visible. Changes nothing.

use std::fs::{self, DirEntry};

/// The state of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The process is serving, or may serve again. Contains a description of the process for
    /// messages.
    Alive(String),
    /// The process can no longer serve. Contains the reason.
    Dead(String),
}

impl Liveness {
    /// Returns the state of a process: dead if all its threads have exited, or were killed and only
    /// wait in the kernel. Returns `None` if no process has this ID.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        // Ignore a thread that has exited meanwhile, since it has no state.
        let stat = |task: DirEntry| fs::read_to_string(task.path().join("stat")).ok();
        let stats = tasks.flatten().filter_map(stat);
        let threads: Vec<Thread> = stats.filter_map(|stat| Thread::parse(&stat)).collect();
        if threads.is_empty() {
            return None;
        }
        let is_stopped = |thread: &Thread| matches!(thread.state, 'T' | 't');
        Some(if threads.iter().all(Thread::is_dead) {
            Self::Dead(format!(
                "process {pid} was killed, but one of its threads hangs"
            ))
        } else if threads.iter().any(is_stopped) {
            Self::Alive(format!("process {pid}, stopped by a signal or a debugger"))
        } else {
            Self::Alive(format!("process {pid}"))
        })
    }

    /// Whether the process is alive.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Alive(_))
    }
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
        // Reads fields 3, 9 and 31, after the name, which may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            flags: fields.get(6)?.parse().ok()?,
            pending: fields.get(28)?.parse().ok()?,
        })
    }

    /// Whether the thread can never run user code again.
    fn is_dead(&self) -> bool {
        /// `PF_EXITING` of the kernel's `include/linux/sched.h`.
        const EXITING: u64 = 4;
        /// The bit of SIGKILL (9) in a set of signals.
        const KILL: u64 = 1 << 8;
        matches!(self.state, 'Z' | 'X' | 'x')
            || self.flags & EXITING != 0
            || self.pending & KILL != 0
    }
}

/// Whether the process runs the same program as this one, by its name (proc_pid_comm(5)).
pub(crate) fn is_namesake(pid: u32) -> bool {
    let name = |pid: &str| fs::read(format!("/proc/{pid}/comm")).ok();
    let own = name("self");
    own.is_some() && name(&pid.to_string()) == own
}

/// Returns the ID of a living process that runs the same program as this process and has locked the
/// file by flock(2), from proc_locks(5). On btrfs, proc_locks(5) and stat(2) have different device
/// numbers, so a file on a different btrfs with the same inode number may be mistaken for this
/// file.
#[must_use]
pub fn with_lock_on(device: (u32, u32), inode: u64) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = locks
        .lines()
        .filter_map(|line| holder_in(line, device, inode));
    holders.find(|pid| is_namesake(*pid) && Liveness::of(*pid).is_some_and(|life| life.is_alive()))
}

/// Parses a line of proc_locks(5) such as `1: FLOCK ADVISORY WRITE 708 00:13:2621 0 EOF`: the
/// process ID, then major, minor and inode. In the line of a process that is waiting for the lock,
/// an arrow precedes `FLOCK`.
fn holder_in(line: &str, device: (u32, u32), inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = words[..] else {
        return None;
    };
    let mut numbers = file.split(':');
    let mut hex = || u32::from_str_radix(numbers.next()?, 16).ok();
    let shown = (hex()?, hex()?);
    // Filesystems without a block device, such as btrfs, have the major number 0.
    let is_device = shown == device || shown.0 == 0 && device.0 == 0;
    let is_file = is_device && numbers.next()?.parse() == Ok(inode);
    is_file.then_some(pid.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

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
        assert_eq!(
            Liveness::of(pid),
            Some(Liveness::Alive(format!("process {pid}")))
        );
    }

    #[test]
    fn a_line_names_the_process_that_has_the_lock() {
        for (line, pid) in [
            ("1: FLOCK  ADVISORY  WRITE 708 fe:01:2621 0 EOF", Some(708)),
            ("1: FLOCK  ADVISORY  WRITE 708 fe:01:26212 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 708 fe:02:2621 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 708 00:01:2621 0 EOF", None),
            ("1: -> FLOCK  ADVISORY  WRITE 709 fe:01:2621 0 EOF", None),
            ("2: POSIX  ADVISORY  WRITE 708 fe:01:2621 0 EOF", None),
            ("3: FLOCK  ADVISORY  WRITE -1 fe:01:2621 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(holder_in(line, (0xfe, 1), 2621), pid, "{line}");
        }
        let line = "1: FLOCK  ADVISORY  WRITE 708 00:1f:257 0 EOF";
        assert_eq!(holder_in(line, (0, 0x23), 257), Some(708), "btrfs");
    }

    #[test]
    fn who_has_a_lock_is_found_and_nobody_where_nobody_has_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = file.as_file().metadata().unwrap();
        let device = (
            rustix::fs::major(found.dev()),
            rustix::fs::minor(found.dev()),
        );
        assert_eq!(with_lock_on(device, found.ino()), None);
        file.as_file().lock().unwrap();
        let us = std::process::id();
        assert_eq!(with_lock_on(device, found.ino()), Some(us));
    }
}
