//! The sandbox of a running agent. The code that builds the sandbox has tests for the system calls
//! it refuses; all tests here check that it allows the calls that the agent and its tools need.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::rig::{Launch, Pages, Rig, TestDir, access, least_bytes, until};

/// The value of `Seccomp:` in proc_pid_status(5) for a process with filters.
const FILTERED: &str = "2";

/// A script that makes the agent believe the kernel was built without filters.
const NO_FILTERS: &str =
    "strace -D -f -o /dev/null -e trace=seccomp -e inject=seccomp:error=EINVAL";

/// Starts an agent with HTTP pages.
fn rig(command: &[&str], flags: &[&str]) -> Rig {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let mut launch = Launch {
        command: owned(command),
        flags: owned(flags),
    };
    launch.flags.push("--http-endpoint=127.0.0.1:0".to_owned());
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    Rig::launched(test_dir, volumes, launch)
}

/// Returns the values of a line in the status of all threads.
fn values(directory: &Path, name: &str) -> BTreeSet<String> {
    let tasks = fs::read_dir(directory.join("task")).expect("threads");
    let value = |task: PathBuf| {
        let text = fs::read_to_string(task.join("status")).expect("a status");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim().to_owned()
    };
    tasks.flatten().map(|task| value(task.path())).collect()
}

/// Returns the same line for this process: a container may have a filter for all its processes.
fn outside() -> String {
    let own = values(Path::new("/proc/self"), "Seccomp:");
    own.first().expect("a thread").clone()
}

/// Runs a lifecycle with mkfs, on threads of the pool.
fn live(rig: &Rig) {
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    volume.down(&node, &[&target]);
}

/// Checks all threads and the metric, and that the log reports once that there is no sandbox, with
/// the reason.
#[track_caller]
fn expect(rig: &Rig, seccomp: &str, metric: &str, warning: Option<&str>) {
    let agent = PathBuf::from(format!("/proc/{}", rig.agent().pid()));
    let seen = values(&agent, "Seccomp:");
    assert!(seen.iter().eq([seccomp]), "{seen:?}");
    let seen = values(&agent, "NoNewPrivs:");
    assert!(seen.iter().eq(["1"]), "{seen:?}");
    let pages = Pages::of(rig.agent());
    assert_eq!(pages.metric("belay_sandbox ").as_deref(), Some(metric));
    let warnings = || {
        let log = rig.agent().log();
        let lines = log.lines().filter(|it| it.contains("no sandbox"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    until("the log has the warning", || {
        warnings().len() == warning.iter().count()
    });
    let why = warning.unwrap_or_default();
    assert!(warnings().iter().all(|line| line.contains(why)));
}

#[test]
#[ignore = "needs root: make test"]
fn the_sandbox_is_on_unless_it_is_switched_off() {
    let on = rig(&[], &[]);
    live(&on);
    expect(&on, FILTERED, "1", None);
    drop(on);
    let off = rig(&[], &["--sandbox=off"]);
    live(&off);
    expect(&off, &outside(), "0", Some("--sandbox is off"));
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_whose_kernel_has_no_filters_says_so_once_and_serves() {
    let strace = NO_FILTERS.split(' ').collect::<Vec<_>>();
    let rig = rig(&strace, &[]);
    live(&rig);
    expect(
        &rig,
        &outside(),
        "0",
        Some("seccomp of this process: EINVAL"),
    );
}
