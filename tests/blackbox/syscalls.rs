//! The agent's system calls, traced with strace: the processes it starts, the files it reads, and
//! the number of system calls per request. Counted, not timed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::kubelet_dir::Mount;
use crate::rig::{Launch, Rig, TestDir, Volume, access, least_bytes};

/// An strace of a running agent and all its threads and children.
struct Trace {
    strace: Child,
    file: PathBuf,
}

/// The events of a trace.
struct Seen {
    lines: Vec<String>,
}

impl Trace {
    fn attach(rig: &Rig, name: &str) -> Self {
        let file = rig.test_dir().path().join(format!("{name}.strace.log"));
        let mut strace = Command::new("strace")
            .args([
                "-f",
                "-s",
                "256",
                "-p",
                &rig.agent().pid().to_string(),
                "-o",
            ])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace; `make setup` installs it");
        let mut words = BufReader::new(strace.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("attached") {
            line.clear();
            let length = words.read_line(&mut line).expect("read");
            assert_ne!(length, 0, "strace could not attach");
        }
        // Read to the end, so that strace never waits for a reader.
        std::thread::spawn(move || drop(words.read_to_string(&mut line)));
        Trace { strace, file }
    }

    fn stop(mut self) -> Seen {
        let pid = Pid::from_child(&self.strace);
        kill_process(pid, Signal::INT).expect("kill");
        self.strace.wait().expect("wait");
        let text = fs::read_to_string(&self.file).expect("a trace");
        Seen {
            lines: text.lines().map(str::to_owned).collect(),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // strace has already exited unless the test failed.
        drop(self.strace.kill());
        drop(self.strace.wait());
    }
}

impl Seen {
    /// Returns the programs that processes execute, each with its line of the trace. Attempts in
    /// other directories of PATH fail, and do not count.
    fn programs(&self) -> BTreeMap<&str, &str> {
        let mut begun = BTreeMap::new();
        let mut programs = BTreeMap::new();
        for line in &self.lines {
            let (pid, call) = line.split_once(' ').unwrap_or_default();
            if call.contains("execve(") {
                begun.insert(pid, line.as_str());
            }
            // Other threads may split the line of a call.
            if call.contains("execve") && call.ends_with("= 0") {
                programs.extend(begun.remove_entry(pid));
            }
        }
        programs
    }

    /// Returns the lines in which the agent itself, and not a child, reads a whole mount table.
    fn mount_tables(&self) -> Vec<&String> {
        let programs = self.programs();
        let is_one = |line: &&String| {
            let (pid, call) = line.split_once(' ').unwrap_or_default();
            let table = call.contains("mountinfo") || call.contains("/mounts\"");
            table && !programs.contains_key(pid)
        };
        self.lines.iter().filter(is_one).collect()
    }

    /// Returns the count of each system call. A split call is counted where it begins.
    fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for line in &self.lines {
            let Some((_pid, call)) = line.split_once(' ') else {
                continue;
            };
            let name = call.trim_start().split('(').next().unwrap_or_default();
            let is_name = name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            // The wait that was in progress when the trace started does not belong to the request.
            if is_name && !name.is_empty() && name != "restart_syscall" {
                *counts.entry(name).or_insert(0) += 1;
            }
        }
        counts
    }
}

/// Whether any response causes this call: waking up, the socket, the log line.
fn is_overhead(call: &str) -> bool {
    matches!(
        call,
        "accept4"
            | "epoll_ctl"
            | "epoll_wait"
            | "epoll_pwait"
            | "futex"
            | "getsockopt"
            | "read"
            | "recvfrom"
            | "sendto"
            | "shutdown"
            | "write"
            | "writev"
            | "sendmsg"
            | "recvmsg"
            | "sched_yield"
            | "getrandom"
            | "pwritev2"
            | "eventfd2"
            | "fcntl"
    )
}

/// The number of system calls of a request.
struct Cost {
    /// The number without the calls that any response causes.
    work: usize,
    all: usize,
    /// The number of each call, by name.
    details: String,
}

impl Cost {
    fn of(seen: &Seen) -> Self {
        let counts = seen.counts();
        let (overhead, work): (Vec<_>, Vec<_>) =
            counts.into_iter().partition(|(call, _)| is_overhead(call));
        let sum = |calls: &[(&str, usize)]| calls.iter().map(|(_, n)| n).sum();
        let list = |calls: &[(&str, usize)]| {
            let each = calls.iter().map(|(call, n)| format!("{call} {n}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let work_calls: usize = sum(&work);
        Cost {
            work: work_calls,
            all: work_calls + sum(&overhead),
            details: format!("{}; the rest: {}", list(&work), list(&overhead)),
        }
    }
}

/// Runs one request under strace.
fn traced(rig: &Rig, name: &str, request: impl FnOnce()) -> Seen {
    let trace = Trace::attach(rig, name);
    request();
    trace.stop()
}

/// Runs one volume's lifecycle, request by request: first a blank stage, and another stage once it
/// is formatted.
fn life(rig: &Rig, kind: &str) -> Vec<(&'static str, Seen)> {
    let node = rig.node();
    let volume = rig.volume(least_bytes(kind));
    let (first, second) = (volume.target("first"), volume.target("second"));
    let stage = || {
        node.stage(volume.stage(access(kind))).expect("stage");
    };
    let unstage = || volume.down(&node, &[]);
    let publish = |target| {
        let request = volume.publish(target, access(kind));
        node.publish(request).expect("publish");
    };
    let unpublish = |target| {
        let request = volume.unpublish(target);
        node.unpublish(request).expect("unpublish");
    };
    let stats = |target| drop(node.stats(volume.stats(target)).expect("stats"));
    let seen = |name: &'static str, request: &dyn Fn()| {
        (name, traced(rig, &format!("{kind}-{name}"), request))
    };
    let mut life = vec![seen("blank stage", &stage)];
    unstage();
    life.push(seen("stage", &stage));
    life.push(seen("stage again", &stage));
    life.push(seen("publish", &|| publish(&first)));
    life.push(seen("publish again", &|| publish(&first)));
    life.push(seen("second publish", &|| publish(&second)));
    life.push(seen("first stats", &|| stats(&first)));
    life.push(seen("stats", &|| stats(&first)));
    life.push(seen("unpublish", &|| unpublish(&second)));
    life.push(seen("unpublish again", &|| unpublish(&second)));
    unpublish(&first);
    life.push(seen("unstage", &unstage));
    life.push(seen("unstage again", &unstage));
    life
}

#[test]
#[ignore = "needs root: make test"]
fn nothing_but_mkfs_is_ever_started_and_one_mount_table_read_where_a_raw_device_is_freed() {
    let rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        for (name, seen) in life(&rig, kind) {
            let programs = seen.programs();
            let expected = usize::from(name == "blank stage" && kind != "block");
            assert_eq!(programs.len(), expected, "{kind}, {name}: {programs:?}");
            let mkfs = format!("/mkfs.{kind}\"");
            assert!(
                programs.values().all(|line| line.contains(&mkfs)),
                "{kind}: {programs:?}"
            );
            let tables = seen.mount_tables();
            let expected = usize::from(name == "unstage" && kind == "block");
            assert_eq!(tables.len(), expected, "{kind}, {name}: {tables:?}");
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_path_in_the_kubelets_directory_costs_one_open_and_no_more() {
    let test_dir = TestDir::new();
    let (directory, volumes) = (test_dir.directory("kubelet"), test_dir.directory("volumes"));
    let mount = Mount::of(&test_dir, MountPropagationFlags::SHARED);
    let flags = vec![format!("--kubelet-dir={}", directory.display())];
    let command = Vec::new();
    let rig = Rig::launched(test_dir, volumes, Launch { command, flags });
    let id = rig.volume(least_bytes("ext4")).id;
    let volume = Volume::made(&directory, rig.volumes(), id);
    let (node, target) = (rig.node(), volume.target("a"));
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    let stats = || drop(node.stats(volume.stats(&target)).expect("stats"));
    stats();
    let seen = traced(&rig, "kubelet-dir", stats);
    let counts = seen.counts();
    assert!(!counts.contains_key("readlinkat"), "{counts:?}");
    let beneath = format!("openat2(AT_FDCWD, \"{}", directory.display());
    let opened: Vec<_> = seen
        .lines
        .iter()
        .filter(|it| it.contains(&beneath))
        .collect();
    // Only the target itself is opened: its directory was opened when it was published.
    assert_eq!(opened.len(), 1, "{opened:?}");
    volume.down(&node, &[&target]);
    drop(mount);
}

/// Returns the maximum for a request: without and with the calls of any response. Each is at most
/// twice the actual number.
fn budget(kind: &str, request: &str) -> Option<(usize, usize)> {
    Some(match (kind, request) {
        // Inspecting the device of a btrfs takes several calls.
        ("btrfs", "stage") => (55, 95),
        (_, "stage") => (45, 90),
        // The bind mount of a raw device does not keep the device bound, so each call checks the
        // device itself.
        ("block", "publish" | "second publish") => (30, 60),
        ("block", "publish again") => (20, 55),
        ("block", "stats") => (14, 45),
        (_, "publish" | "second publish") => (24, 45),
        (_, "publish again") => (10, 35),
        // In addition to statfs, these inspect the mount, the file, the device, and the counted
        // errors.
        ("btrfs", "stats") => (15, 45),
        ("ext4", "stats") => (16, 40),
        (_, "stats") => (14, 40),
        // The first statistics also inspect the directory above the target, or find out that they
        // need a thread.
        ("ext4", "first stats") => (18, 44),
        ("xfs", "first stats") => (16, 44),
        (_, "first stats") => (25, 55),
        (_, "unpublish") => (6, 35),
        // Resolving the path takes calls, since it may reach a mount through a link.
        (_, "unpublish again") => (4, 30),
        // The mount table is read, with one read per page.
        ("block", "unstage") => (30, 70),
        (_, "unstage") => (25, 60),
        _ => return None,
    })
}

#[test]
#[ignore = "needs root: make test"]
fn a_request_costs_no_more_system_calls_than_the_budget_says() {
    let rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        // During the first lifecycle, threads start and memory grows.
        life(&rig, kind);
        // Take the minimum of three, since other processes that open the devices add calls.
        let mut cheapest: BTreeMap<&str, Cost> = BTreeMap::new();
        for (name, seen) in (0..3).flat_map(|_| life(&rig, kind)) {
            let cost = Cost::of(&seen);
            if cheapest.get(name).is_none_or(|known| cost.all < known.all) {
                cheapest.insert(name, cost);
            }
        }
        for (name, Cost { work, all, details }) in cheapest {
            eprintln!("{kind}, {name}: {all} system calls, {work} of them work: {details}");
            if let Some((work_max, all_max)) = budget(kind, name) {
                assert!(
                    work <= work_max,
                    "{kind}, {name}: {work} calls, of {work_max}"
                );
                assert!(
                    all <= all_max,
                    "{kind}, {name}: {all} calls in all, of {all_max}"
                );
            }
        }
    }
}
