//! Finds the holder of a directory's lock in /proc/locks (proc_locks(5)), which shows only
//! processes of this PID namespace. A killed agent keeps the lock while one of its threads waits
//! for a disk, so a held lock does not mean that an agent serves.

use std::fmt::Display;
use std::fs;

use crate::kernel::Dev;

/// The process id of the running node agent that has locked the file with this inode number. On
/// btrfs the table shows a different device number than stat does, so a file of another btrfs may
/// be mistaken for it.
pub(crate) fn agent_with(dev: Dev, inode: u64) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = locks.lines().filter_map(|line| pid_in(line, dev, inode));
    holders.find(|pid| is_running(*pid) && program(pid) == program(&"self"))
}

/// `1: FLOCK  ADVISORY  WRITE 708 00:13:2621 0 EOF`: the process, then major, minor and inode. A
/// process that waits for the lock has an arrow before the kind.
fn pid_in(line: &str, dev: Dev, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = words[..] else {
        return None;
    };
    let mut numbers = file.split(':');
    let mut hex = || u32::from_str_radix(numbers.next()?, 16).ok();
    let shown = Dev {
        major: hex()?,
        minor: hex()?,
    };
    let is_dev = shown == dev || shown.is_anonymous() && dev.is_anonymous();
    let is_it = is_dev && numbers.next()?.parse() == Ok(inode);
    is_it.then_some(pid.parse().ok()?)
}

/// The name of its program (proc_pid_comm(5)).
fn program(pid: &impl Display) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

/// Its first thread has not ended (proc_pid_stat(5)).
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in brackets, may contain anything.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel as _;
    use crate::kernel::linux::Linux;

    const fn dev(major: u32, minor: u32) -> Dev {
        Dev { major, minor }
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
            assert_eq!(pid_in(line, dev(0xfe, 1), 2621), pid, "{line}");
        }
        let line = "1: FLOCK  ADVISORY  WRITE 708 00:1f:257 0 EOF";
        assert_eq!(pid_in(line, dev(0, 0x23), 257), Some(708), "btrfs");
    }

    #[test]
    fn who_has_a_lock_is_found_and_nobody_where_nobody_has_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = Linux::detect().unwrap().look(file.path()).unwrap().unwrap();
        assert_eq!(agent_with(stat.dev, stat.ino), None);
        file.as_file().lock().unwrap();
        let us = std::process::id();
        assert_eq!(agent_with(stat.dev, stat.ino), Some(us));
    }
}
