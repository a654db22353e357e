//! The demo leaves nothing behind, whichever of its processes is killed and whenever. Needs root
//! and the built programs, so these tests are run by `make test`, which passes their directory in
//! `BELAY_BIN_DIR`. Kills only the demo's processes, by PID.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longer than the demo and its cleanup ever take; only a hang is cut short by it.
const HANG: Duration = Duration::from_secs(120);

/// Moments: the number of rounds, the kind of volume, and the line that is printed when the step is
/// done. Raw block in addition to a filesystem, because its loop device is not released by the
/// umount; copies, which come after all rounds, because several volumes are in use by then.
const MOMENTS: [(&str, &str, &str); 9] = [
    ("1000", "ext4", "create"),
    ("1000", "ext4", "publish read-only"),
    ("1000", "xfs", "unstage"),
    ("1000", "btrfs", "publish read-only"),
    ("1000", "block", "stage (first)"),
    ("1000", "block", "write"),
    ("1", "xfs", "overwrite"),
    ("1", "xfs", "stage (clone)"),
    ("1", "block", "read, compare"),
];

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_demo_that_ends_by_itself_leaves_nothing() {
    let demo = Demo::start(&["--rounds", "1"]);
    let end = demo.wait_for_all_processes();
    assert_eq!(end.code, Some(0), "{}", end.output);
    // `make demo | tail -40` is the whole summary, plain and no wider than 80 columns.
    let lines: Vec<&str> = end.output.lines().collect();
    let summary = lines[lines.len().saturating_sub(40)..].join("\n");
    for part in [
        "Belay 0",
        "every volume's loop device was already released",
        "make cluster",
    ] {
        assert!(summary.contains(part), "{part}: {}", end.output);
    }
    let is_plain = |line: &&str| line.chars().count() <= 80 && !line.contains('\x1b');
    assert_eq!(lines.iter().find(|line| !is_plain(line)), None);
    end.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn every_step_of_copies_is_printed_on_request_and_leaves_nothing() {
    let demo = Demo::start(&["--rounds", "1", "--only", "btrfs", "-v"]);
    let end = demo.wait_for_all_processes();
    assert_eq!(end.code, Some(0), "{}", end.output);
    for pattern in ["the first pattern, every", "the second pattern, every"] {
        assert!(end.output.contains(pattern), "{}", end.output);
    }
    end.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_killed_outer_process_leaves_nothing() {
    kill_at_every_moment("outer");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_killed_unshare_leaves_nothing() {
    kill_at_every_moment("unshare");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_killed_inner_process_leaves_nothing() {
    kill_at_every_moment("inner");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_killed_reaper_leaves_nothing() {
    kill_at_every_moment("reaper");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_killed_node_agent_leaves_nothing() {
    kill_at_every_moment("belay-node");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_killed_controller_leaves_nothing() {
    kill_at_every_moment("belay-controller");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn ctrl_c_ends_it_with_130_and_leaves_nothing() {
    let mut demo = Demo::start(&["--rounds", "1000", "--verbose"]);
    demo.read_until("publish read-only");
    demo.signal("outer", "INT");
    let end = demo.wait_for_all_processes();
    assert_eq!(end.code, Some(130), "{}", end.output);
    end.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_kept_demo_runs_until_it_is_stopped() {
    let mut demo = Demo::start(&["--rounds", "1", "--keep"]);
    demo.read_until("to stop");
    assert!(!demo.output.contains('…'), "cut: {}", demo.output);
    assert!(demo.processes().contains_key("belay-node"));
    demo.signal("outer", "TERM");
    let end = demo.wait_for_all_processes();
    assert_eq!(end.code, Some(0), "{}", end.output);
    end.assert_nothing_is_left();
}

fn kill_at_every_moment(victim: &str) {
    for (rounds, kind, moment) in MOMENTS {
        let mut demo = Demo::start(&["--rounds", rounds, "--only", kind, "-v"]);
        demo.read_until(moment);
        demo.signal(victim, "KILL");
        let end = demo.wait_for_all_processes();
        assert_ne!(
            end.code,
            Some(0),
            "{victim} killed after {kind} {moment}: {}",
            end.output
        );
        end.assert_nothing_is_left();
    }
}

/// A running demo.
struct Demo {
    outer: Child,
    lines: BufReader<ChildStdout>,
    errors: ChildStderr,
    output: String,
    /// Its temporary directory, with nothing else in it.
    temporary: tempfile::TempDir,
}

/// A demo that ended, with everything it printed.
struct End {
    code: Option<i32>,
    output: String,
    temporary: tempfile::TempDir,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        let directory = std::env::var_os("BELAY_BIN_DIR").map(PathBuf::from);
        let directory = directory
            .expect("BELAY_BIN_DIR must be the directory of the built programs: make test");
        let temporary = tempfile::tempdir().unwrap();
        let mut outer = Command::new(directory.join("belay-demo"))
            .args(arguments)
            .env("TMPDIR", temporary.path())
            .env_remove("KEEP")
            .env_remove("VERBOSE")
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(outer.stdout.take().unwrap());
        let errors = outer.stderr.take().unwrap();
        Self {
            outer,
            lines,
            errors,
            output: String::new(),
            temporary,
        }
    }

    /// Reads its output up to the line that starts with `beginning`.
    fn read_until(&mut self, beginning: &str) {
        loop {
            let start = self.output.len();
            let count = self.lines.read_line(&mut self.output).unwrap();
            if count == 0 {
                let mut errors = String::new();
                self.errors.read_to_string(&mut errors).unwrap();
                panic!("ended before {beginning:?}: {}{errors}", self.output);
            }
            if self.output[start..].trim_start().starts_with(beginning) {
                return;
            }
        }
    }

    /// Its processes by role.
    fn processes(&self) -> HashMap<String, u32> {
        let mut found = HashMap::from([("outer".to_owned(), self.outer.id())]);
        let mut parents = vec![self.outer.id()];
        let all = all_processes();
        while let Some(parent) = parents.pop() {
            for process in all.iter().filter(|process| process.parent == parent) {
                parents.push(process.id);
                found.insert(process.role(), process.id);
            }
        }
        found
    }

    fn signal(&self, role: &str, name: &str) {
        let processes = self.processes();
        let id = processes
            .get(role)
            .unwrap_or_else(|| panic!("no {role} in {processes:?}"));
        let status = Command::new("kill")
            .args(["-s", name, &id.to_string()])
            .status()
            .unwrap();
        assert!(status.success(), "kill -s {name} of {role}");
    }

    /// Waits until all processes that inherited its output have closed it, the reaper last.
    fn wait_for_all_processes(self) -> End {
        let Self {
            mut outer,
            mut lines,
            mut errors,
            mut output,
            temporary,
        } = self;
        let (done, wait) = mpsc::channel();
        thread::spawn(move || {
            lines.read_to_string(&mut output).unwrap();
            errors.read_to_string(&mut output).unwrap();
            done.send((outer.wait().unwrap().code(), output)).unwrap();
        });
        let (code, output) = wait
            .recv_timeout(HANG)
            .expect("a process of the demo hangs");
        End {
            code,
            output,
            temporary,
        }
    }
}

impl End {
    /// No file, no loop device, no process, and no mount in any namespace.
    fn assert_nothing_is_left(&self) {
        let directory = self.temporary.path();
        let files: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|f| f.unwrap().path())
            .collect();
        assert_eq!(files, Vec::<PathBuf>::new(), "files: {}", self.output);

        let name = directory.to_str().unwrap();
        let mut list = Command::new("losetup");
        let loops = output_of(list.args(["--list", "--output", "NAME,BACK-FILE"]));
        assert!(
            !loops.contains(name),
            "loop devices: {loops}{}",
            self.output
        );

        for process in all_processes() {
            assert!(
                !process.command.contains(name),
                "{} is left: {}",
                process.id,
                self.output
            );
            // A process that ended meanwhile has no mounts.
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", process.id));
            let mounts = mounts.unwrap_or_default();
            assert!(!mounts.contains(name), "mounts of {}: {mounts}", process.id);
        }
    }
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A process in `/proc`.
struct Process {
    id: u32,
    parent: u32,
    command: String,
}

impl Process {
    /// Its role in the demo: the program's name, or the role in its flags.
    fn role(&self) -> String {
        let binary = self.command.split(' ').next().unwrap_or_default();
        let name = Path::new(binary)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        match &*name {
            "belay-demo" if self.command.contains("--reap") => "reaper".to_owned(),
            "belay-demo" if self.command.contains("--inner") => "inner".to_owned(),
            other => other.to_owned(),
        }
    }
}

fn all_processes() -> Vec<Process> {
    let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        entry
            .unwrap()
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
    });
    ids.filter_map(|id: u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let command = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        // The name in parentheses may contain anything; the parent is the second word after it.
        let parent = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(Process {
            id,
            parent,
            command,
        })
    })
    .collect()
}
