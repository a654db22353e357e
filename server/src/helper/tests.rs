//! Tests with shell processes instead of helper processes, and tests of the limits with processes
//! that exit only when the test says so.

use super::child::{ending, entrust};
use super::*;
use crate::call::{Certainty, Failure, Kind};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

fn shell(script: &str) -> Child {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("exec >&0; read call; {script}")]);
    Child::start("helper", shell, &"call").unwrap()
}

#[tokio::test]
async fn each_line_of_a_process_is_an_answer_to_one_that_it_has_read() {
    let mut child = shell("echo $call; read more; printf '[\"a\"'; echo \",$$]\"; sleep 1000");
    assert_eq!(child.receive::<String>().await.unwrap().0, "call");
    child.send(&1).unwrap();
    let ((_, id), passed) = child.receive::<(String, u32)>().await.unwrap();
    assert!(passed.is_none());
    let process = format!("/proc/{id}");
    assert!(Path::new(&process).exists());
    child.kill();
    child.exited().await;
    assert!(!Path::new(&process).exists(), "not reaped");
    child.kill();
}

#[tokio::test]
async fn a_process_that_ends_without_an_answer_is_described_by_its_end() {
    for (script, why) in [
        ("exit 3", "no answer; exit status: 3"),
        ("echo why >&2; exit 3", "no answer; exit status: 3: why"),
        ("echo '{'; kill -9 $$", "no answer; signal: 9 (SIGKILL)"),
    ] {
        let failure = shell(script).receive::<String>().await.unwrap_err();
        assert_eq!(failure.kind, Kind::System);
        let expected = format!("the helper process that asked the server has failed: {why}");
        assert_eq!(failure.message, expected);
    }
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exit 3"]);
    let mut child = Child::start("helper", shell, &"call").unwrap();
    let failure = child.receive::<String>().await.unwrap_err();
    let end = "no answer; exit status: 3";
    assert!(failure.message.ends_with(end), "without reading: {failure}");
    let panic = b"thread 'main' panicked at x.rs:1:2:\nout of paper\nnote: run with more\n\n";
    let failed = Some(ExitStatus::from_raw(101 << 8));
    assert_eq!(
        ending(failed, panic),
        "no answer; exit status: 101: out of paper"
    );
    assert_eq!(ending(None, b"\n"), "no answer; it has not exited");
}

#[tokio::test]
async fn a_line_is_bounded() {
    let mut child = shell("yes | tr -d '\\n'");
    let failure = child.receive::<String>().await.unwrap_err();
    assert!(
        failure.message.ends_with("its line is too long"),
        "{failure}"
    );
}

/// A helper process may start other processes, which may keep its connection open.
#[tokio::test]
async fn the_whole_group_of_a_process_is_killed() {
    let mut child = shell("sleep 1000 & echo \"\\\"$!\\\"\"; wait");
    let (other, _) = child.receive::<String>().await.unwrap();
    let other = format!("/proc/{other}/stat");
    let is_alive = || std::fs::read_to_string(&other).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(is_alive());
    drop(child);
    while is_alive() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_process_that_cannot_be_watched_is_reaped_and_gets_no_call() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let seen = theirs.try_clone().unwrap();
    // The process never reads.
    let mut command = Command::new("/bin/sleep");
    command.arg("600").stdin(Stdio::from(OwnedFd::from(theirs)));
    let child = command.spawn().unwrap();
    let process = format!("/proc/{}", child.id());
    let failed = entrust("helper", child, ours, &"call", Err(Errno::MFILE));
    let errno = failed.err().and_then(|error| error.raw_os_error());
    assert_eq!(errno, Some(Errno::MFILE.raw_os_error()));
    assert!(!Path::new(&process).exists(), "running, or not reaped");
    drop(command);
    // Wait, since a process that a different test forks has a copy of this end of the connection
    // until it executes its program.
    let received = rustix::net::recv(&seen, &mut [0; 64][..], rustix::net::RecvFlags::empty());
    assert_eq!(received.map(|(bytes, _)| bytes), Ok(0), "it has a call");
}

#[test]
fn a_descriptor_is_passed_with_its_line() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let mut child = shell("sleep 1000");
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        child.socket = Some(tokio::net::UnixStream::from_std(theirs).unwrap());
        let file = std::fs::File::open("/dev/null").unwrap();
        use std::os::fd::AsFd as _;
        for passed in [None, Some(file.as_fd()), None] {
            serve::send(&ours, &7, passed).unwrap();
        }
        for has_one in [false, true, false] {
            let (line, passed) = child.receive::<u8>().await.unwrap();
            assert_eq!((line, passed.is_some()), (7, has_one));
        }
    });
}

static SPEC: Spec = Spec {
    name: "helper",
    processes: "test_processes",
    waiting: Some("test_waiting"),
    kills: "test_kills",
};
const ALL: Group = Group::new(8, "it").kept();
const READS: Group = Group::new(2, "its reads");
const OTHERS: Group = Group::new(8, "others");
static CHANGE: Lane = Lane::new(&[ALL], 8);
static READ: Lane = Lane::new(&[READS, ALL], 4);
static OTHER: Lane = Lane::new(&[OTHERS], 8);

/// A process that exits when the test sends `true`.
struct Hung(tokio::sync::watch::Receiver<bool>);

impl Process for Hung {
    fn close(&mut self) {}

    fn kill(&mut self) {}

    async fn exited(&mut self) {
        drop(self.0.wait_for(|exits| *exits).await);
    }
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn refused<T>(slot: Result<T, Unanswered>) -> (Kind, bool, String) {
    let Err(Unanswered { failure, by_server }) = slot else {
        panic!("a slot")
    };
    assert_eq!(failure.certainty, Certainty::NothingHappened);
    (failure.kind, by_server, failure.message)
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_slot_ends_in_time_and_was_not_begun() {
    let helpers = Helpers::new(&SPEC);
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(helpers.slot("filer", &READ, MINUTE).await.unwrap());
    }
    let begun = Instant::now();
    let (kind, by_server, message) = refused(helpers.slot("filer", &READ, MINUTE).await);
    assert!(begun.elapsed() >= MINUTE);
    assert_eq!((kind, by_server), (Kind::Timeout, true));
    let expected = "server filer: none of 2 helper processes for its reads was free within 60 s; \
                    if it answers, other calls take long; this call was not begun; retry";
    assert_eq!(message, expected);
    assert_eq!(helpers.running(), 2);
}

#[tokio::test(start_paused = true)]
async fn killed_processes_of_some_servers_leave_the_slots_of_others() {
    let helpers = Helpers::new(&SPEC);
    let (exit, exits) = tokio::sync::watch::channel(false);
    let mut running = Vec::new();
    for number in 0..TOTAL {
        let server = format!("dead-{}", number / 8);
        let slot = helpers.slot(&server, &CHANGE, MINUTE).await.unwrap();
        running.push(slot.run(Hung(exits.clone())));
    }
    let (kind, by_server, message) = refused(helpers.slot("other", &CHANGE, MINUTE).await);
    assert_eq!((kind, by_server), (Kind::Timeout, false));
    let expected = "server other: none of 64 helper processes was free within 60 s, since other";
    assert!(message.starts_with(expected), "{message}");
    for running in &mut running {
        assert!(running.overdue(MINUTE).by_server);
    }
    running.clear();
    settle().await;
    assert_eq!((helpers.running(), helpers.killed()), (0, TOTAL));
    drop(helpers.slot("other", &CHANGE, MINUTE).await.unwrap());
    let (kind, by_server, message) = refused(helpers.slot("dead-0", &CHANGE, MINUTE).await);
    assert_eq!((kind, by_server), (Kind::Unreachable, true));
    let expected = "server dead-0: 8 killed processes have not exited, since the server does not";
    assert!(message.starts_with(expected), "{message}");
    exit.send_replace(true);
    settle().await;
    assert_eq!(helpers.killed(), 0);
    drop(helpers.slot("dead-0", &CHANGE, MINUTE).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_keeps_its_slots_of_the_groups_that_say_so() {
    for (lane, free) in [(&CHANGE, 3), (&OTHER, 8)] {
        let helpers = Helpers::new(&SPEC);
        let (_exit, exits) = tokio::sync::watch::channel(false);
        while helpers.killed() < 5 {
            let slot = helpers.slot("dead", lane, MINUTE).await.unwrap();
            drop(slot.run(Hung(exits.clone())));
            settle().await;
        }
        let refused = refused(helpers.slot("dead", &READ, MINUTE).await);
        assert_eq!(refused.0, Kind::Unreachable, "of another lane");
        let mut held = Vec::new();
        while let Ok(slot) = helpers.slot("dead", lane, MINUTE).await {
            held.push(slot);
        }
        assert_eq!(held.len(), free);
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_process_that_has_answered_has_time_to_exit() {
    let helpers = Helpers::new(&SPEC);
    let (exit, exits) = tokio::sync::watch::channel(false);
    let running = async |exits, has_answered| {
        let slot = helpers.slot("filer", &CHANGE, MINUTE).await.unwrap();
        let mut running = slot.run(Hung(exits));
        if has_answered {
            running.answered();
        }
    };
    running(exits.clone(), true).await;
    settle().await;
    assert_eq!((helpers.running(), helpers.killed()), (1, 0));
    exit.send_replace(true);
    settle().await;
    assert_eq!((helpers.running(), helpers.killed()), (0, 0));
    exit.send_replace(false);
    running(exits.clone(), true).await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!((helpers.running(), helpers.killed()), (0, 1));
    running(exits, false).await;
    settle().await;
    assert_eq!((helpers.running(), helpers.killed()), (0, 2));
}

#[tokio::test]
async fn a_server_is_known_while_a_call_has_it() {
    let helpers = Helpers::new(&SPEC);
    let server = helpers.of("filer");
    server.killed.store(3, Ordering::Relaxed);
    assert!(Arc::ptr_eq(&server, &helpers.of("filer")));
    assert!(!Arc::ptr_eq(&server, &helpers.of("other")));
    drop(server);
    drop(helpers.of("third"));
    let known = helpers.servers.lock();
    assert_eq!(known.keys().map(|it| &**it).collect::<Vec<_>>(), ["third"]);
}

#[test]
fn a_failure_survives_the_way_between_processes_and_a_long_message_keeps_its_ends() {
    for kind in Kind::ALL {
        for certainty in Certainty::ALL {
            let failure = Failure {
                certainty: *certainty,
                ..Failure::new(*kind, "volume v: why")
            };
            let sent = serde_json::to_string(&failure).unwrap();
            assert_eq!(serde_json::from_str::<Failure>(&sent).unwrap(), failure);
        }
    }
    for name in ["\u{1}", "\u{fffd}", "\u{1f600}", "n"] {
        let path = format!("{}/", name.repeat(255)).repeat(256);
        let message = format!("{path:?} in the share: is deep; move it up");
        let raw = format!("{path} in the share: is deep; move it up");
        for message in [message, raw] {
            let line = serde_json::to_string(&Failure::precondition(message)).unwrap();
            assert!(line.len() < 32 << 10, "{}", line.len());
            let got: Failure = serde_json::from_str(&line).unwrap();
            assert!(got.message.ends_with("in the share: is deep; move it up"));
            assert!(got.message.contains(name) || got.message.contains("\\u{"));
        }
    }
    assert_eq!(crate::call::shortened("short", 5), "short");
}
