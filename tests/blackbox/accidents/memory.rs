//! A program that the kernel kills because memory runs out: it shares a control group with a memory
//! hog, which allocates more than the group's limit.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{PATIENCE, pause, until};

const LIMIT: &str = "16777216";

/// The script of the hog: waits until it is in the group, and then needs four times the limit. It
/// exits by itself if this process is killed.
const HOG: &str = "read -r go && exec dd if=/dev/zero of=/dev/null bs=64M count=1";

/// The files of a control group, in one of the two versions.
struct Version {
    parent: &'static str,
    limit: &'static str,
    /// The limit of swap. If it is 0, the hog is killed instead of swapped out.
    swap: &'static str,
    /// The file with the line `oom_kill <count>`.
    events: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        parent: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        swap: "memory.swappiness",
        events: "memory.oom_control",
    },
    Version {
        parent: "/sys/fs/cgroup",
        limit: "memory.max",
        swap: "memory.swap.max",
        events: "memory.events",
    },
];

/// Has the kernel kill this program because memory runs out.
///
/// # Panics
/// Panics unless the kernel counts an out-of-memory kill.
pub(super) fn starve(pid: u32) {
    let mut group = Group::new();
    // Make the program the first to be killed; no privilege is needed to raise the score.
    fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").expect("oom_score_adj");
    group.admit(pid);
    group.admit(group.hog.id());
    let status = group.feed();
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status}");
    // The program's earlier memory is not charged to the group, so the hog follows it.
    assert_eq!(group.kills(), 2, "killed for want of memory");
}

/// A control group with a limit, and a hog that will join it.
struct Group {
    path: PathBuf,
    version: &'static Version,
    hog: Child,
}

impl Group {
    fn new() -> Self {
        let name = format!("belay-test-{}", std::process::id());
        let made = VERSIONS.iter().find_map(|version| {
            let path = Path::new(version.parent).join(&name);
            fs::create_dir(&path).ok()?;
            if path.join(version.limit).exists() {
                return Some((path, version));
            }
            // The parent group does not delegate the memory controller.
            fs::remove_dir(&path).expect("rmdir");
            None
        });
        let (path, version) = made.unwrap_or_else(|| {
            panic!("no control group with a memory limit can be made in /sys/fs/cgroup")
        });
        let hog = Command::new("sh")
            .args(["-c", HOG])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let group = Group { path, version, hog };
        group.set(version.limit, LIMIT);
        // A kernel without swap has no such file.
        if group.path.join(version.swap).exists() {
            group.set(version.swap, "0");
        }
        group
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.path.join(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn admit(&self, pid: u32) {
        self.set("cgroup.procs", &pid.to_string());
    }

    /// Lets the hog allocate memory, and returns its exit status.
    fn feed(&mut self) -> ExitStatus {
        let input = self.hog.stdin.as_mut().expect("a pipe");
        input.write_all(b"go\n").expect("write");
        let mut status = None;
        until("the hog ends", || {
            status = self.hog.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Returns the number of processes of the group that the kernel has killed because memory ran
    /// out.
    fn kills(&self) -> u32 {
        let text = fs::read_to_string(self.path.join(self.version.events)).expect("its events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).expect(&text)
    }

    /// Kills the program and the hog, if they are still running.
    fn kill_all(&self) {
        let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|pid| pid.parse().ok()) {
            let killed = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            if let Some(Err(errno)) = killed {
                eprintln!("{pid}, in {}: {errno}", self.path.display());
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill_all();
        // This fails only if the process was already waited for.
        drop(self.hog.wait());
        let end = Instant::now() + PATIENCE;
        while let Err(error) = fs::remove_dir(&self.path) {
            if Instant::now() > end {
                eprintln!("{}: {error}", self.path.display());
                break;
            }
            pause();
        }
    }
}
