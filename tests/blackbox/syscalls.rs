//! What the agent asks of the kernel, call by call, seen by strace: which processes it starts, what
//! it reads, and how many system calls a request costs. Counted, not timed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Rig, access, least_bytes};

/// An strace of a running agent and all its threads and children.
struct Trace {
    strace: Child,
    file: PathBuf,
}

/// What happened while a trace ran.
struct Seen {
    lines: Vec<String>,
}

impl Trace {
    fn attach(rig: &Rig, name: &str) -> Self {
        let file = rig.place().path().join(format!("{name}.strace.log"));
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
        // Read to the end, so that it never waits for a reader.
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
        // It has ended already unless the test failed.
        drop(self.strace.kill());
        drop(self.strace.wait());
    }
}

impl Seen {
    /// The programs that processes became, each by the line that names it. One that fails, because
    /// the program is not in that folder, becomes none.
    fn programs(&self) -> BTreeMap<&str, &str> {
        let mut begun = BTreeMap::new();
        let mut programs = BTreeMap::new();
        for line in &self.lines {
            let (pid, call) = line.split_once(' ').unwrap_or_default();
            if call.contains("execve(") {
                begun.insert(pid, line.as_str());
            }
            // A call may be cut in two by what other threads do meanwhile.
            if call.contains("execve") && call.ends_with("= 0") {
                programs.extend(begun.remove_entry(pid));
            }
        }
        programs
    }

    /// Where the agent itself, and not a program that it started, reads a whole mount table.
    fn mount_tables(&self) -> Vec<&String> {
        let programs = self.programs();
        let is_one = |line: &&String| {
            let (pid, call) = line.split_once(' ').unwrap_or_default();
            let table = call.contains("mountinfo") || call.contains("/mounts\"");
            table && !programs.contains_key(pid)
        };
        self.lines.iter().filter(is_one).collect()
    }

    /// How often each system call was made. A call that was cut in two is counted where it begins.
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
            // The wait that the trace found going on is none of the request's.
            if is_name && !name.is_empty() && name != "restart_syscall" {
                *counts.entry(name).or_insert(0) += 1;
            }
        }
        counts
    }
}

/// What answering costs by itself: waking up, the socket, the log line.
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
            | "eventfd2"
            | "fcntl"
    )
}

/// One row of the table of costs.
struct Cost {
    name: String,
    work: usize,
    all: usize,
}

fn cost(name: &str, seen: &Seen) -> Cost {
    let counts = seen.counts();
    let work = counts.iter().filter(|(call, _)| !is_overhead(call));
    let work_calls: Vec<String> = work
        .clone()
        .map(|(call, n)| format!("{call} {n}"))
        .collect();
    let overhead = counts.iter().filter(|(call, _)| is_overhead(call));
    let overhead_calls: Vec<String> = overhead.map(|(call, n)| format!("{call} {n}")).collect();
    let cost = Cost {
        name: name.to_owned(),
        work: work.map(|(_, n)| n).sum(),
        all: counts.values().sum(),
    };
    eprintln!(
        "{name}: {} system calls, {} of them work ({}); the rest: {}",
        cost.all,
        cost.work,
        work_calls.join(", "),
        overhead_calls.join(", ")
    );
    cost
}

/// Runs one request under strace.
fn traced(rig: &Rig, name: &str, request: impl FnOnce()) -> Seen {
    let trace = Trace::attach(rig, name);
    request();
    trace.stop()
}

/// One volume's life, request by request: blank stage first, and once more when it is formatted.
fn life(rig: &Rig, kind: &str) -> Vec<(&'static str, Seen)> {
    let node = rig.node();
    let volume = rig.volume(least_bytes(kind));
    let (first, second) = (volume.target("first"), volume.target("second"));
    let stage = || {
        node.stage(volume.stage(access(kind))).expect("stage");
    };
    let unstage = || {
        node.unstage(volume.unstage()).expect("unstage");
    };
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
fn nothing_but_mkfs_is_ever_started_and_no_mount_table_is_read() {
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
            assert!(tables.is_empty(), "{kind}, {name}: {tables:?}");
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_request_costs_no_more_system_calls_than_the_budget_says() {
    let rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        // Threads start and memory grows in the first one.
        life(&rig, kind);
        for (name, seen) in life(&rig, kind) {
            let cost = cost(&format!("{kind}, {name}"), &seen);
            let (work, all) = match name {
                // Which device a btrfs is on is asked by more than one call.
                "stage" if kind == "btrfs" => (50, 95),
                "stage" => (45, 90),
                "publish" | "second publish" => (20, 45),
                "publish again" => (10, 35),
                "stats" => (6, 35),
                "unpublish" => (6, 35),
                "unpublish again" => (2, 30),
                "unstage" => (25, 60),
                _ => continue,
            };
            assert!(
                cost.work <= work,
                "{}: {} calls, of {work}",
                cost.name,
                cost.work
            );
            assert!(
                cost.all <= all,
                "{}: {} calls in all, of {all}",
                cost.name,
                cost.all
            );
        }
    }
}
