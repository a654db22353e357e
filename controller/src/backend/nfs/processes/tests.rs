//! Tests the limits on processes for a server, for all servers, and for a directory.

use super::super::super::StartedCreations;
use super::super::call::{Copying, NewVolume, OldVolume, Owned, Source};
use super::super::id::OnDelete;
use super::super::path::Dir;
use super::running::is_settled;
use super::*;
use belay_server::call::Certainty;
use belay_server::helper::Slot;
use belay_server::request::Name;
use std::sync::Arc;

fn owned() -> Owned {
    Owned {
        dir: Dir::read("data").unwrap().unwrap(),
        name: "pvc-1".to_owned(),
        adopts: false,
    }
}

fn mount() -> Mount {
    Mount {
        server: "Filer".to_owned(),
        share: "share".to_owned(),
        options: Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn deletions_leave_slots_of_their_server_to_other_calls() {
    let processes = Processes::new();
    let soon = Duration::from_millis(1);
    let mut held = Vec::new();
    for _ in 0..DELETIONS.slots {
        let slot = processes.helpers.slot("filer", &DELETION, soon).await;
        held.push(slot.unwrap());
    }
    let deletion = Work::Delete(OldVolume {
        at: owned(),
        on_delete: None,
        default: OnDelete::Delete,
    });
    let refused = processes.ask(mount(), deletion, Duration::from_secs(7));
    let refused = refused.await.unwrap_err();
    let state = (refused.kind, refused.certainty);
    assert_eq!(state, (Kind::Timeout, Certainty::NothingHappened));
    let expected = "server filer: none of 4 worker processes for its deletions was free within 7 s";
    assert!(refused.message.starts_with(expected), "{refused}");
    for _ in DELETIONS.slots..OF_SERVER.slots {
        let slot = processes.helpers.slot("filer", &OTHER, soon).await;
        held.push(slot.unwrap());
    }
    // Names of servers are compared without regard to case.
    let refused = processes.ask(mount(), Work::Lookup(owned()), Duration::from_secs(7));
    let refused = refused.await.unwrap_err();
    let expected = "server filer: none of 8 worker processes for it was free within 7 s; if it";
    assert!(refused.message.starts_with(expected), "{refused}");
}

#[test]
fn one_process_at_a_time_changes_a_directory() {
    let all = Directories::default();
    let of = |server: &str, share: &str, dir: &str| {
        let mount = Mount {
            server: server.to_owned(),
            share: share.to_owned(),
            options: Vec::new(),
        };
        all.turn(Directory::of(&mount, &Dir::read(dir).unwrap().unwrap()))
    };
    let turn = of("s", "a", "b/c").unwrap();
    let refused = of("s", "a", "b/c").err().unwrap();
    assert_eq!(refused.kind, Kind::Busy);
    assert!(refused.message.contains("b/c"), "{refused}");
    let others = [of("t", "a", "b/c"), of("s", "", "b/c"), of("s", "a", "b")];
    assert!(others.iter().all(Result::is_ok));
    drop(turn);
    of("s", "a", "b/c").unwrap();
    drop(others);
    assert!(all.all().is_empty());
}

/// After a soft mount has reported that a server does not respond, the server may still execute the
/// request.
#[test]
fn a_directory_is_free_once_no_request_for_it_is_under_way() {
    assert!(is_settled(&Ok(Done::Volume(None))));
    assert!(is_settled(&Err(Failure::busy("why"))));
    assert!(!is_settled(&Err(Failure::busy("why").may_be_running())));
}

fn volume() -> NewVolume {
    NewVolume {
        at: owned(),
        is_named_so: false,
        on_delete: OnDelete::Delete,
        bytes: 7,
        permissions: None,
    }
}

fn copying(source: &str) -> Work {
    Work::Copy(Copying {
        volume: volume(),
        from: Source {
            at: owned(),
            id: source.to_owned(),
            share: None,
        },
    })
}

async fn copy_slot(processes: &Processes) -> Slot {
    let slot = processes.helpers.slot("filer", &COPY, LONG).await;
    slot.unwrap()
}

/// This test program is not a worker program, so each copy fails before its work begins.
#[tokio::test]
async fn a_copy_goes_on_without_its_call_and_the_next_call_finds_it_or_its_failure() {
    let processes = Arc::new(Processes::new());
    let others = [copy_slot(&processes).await, copy_slot(&processes).await];
    let begun = StartedCreations::default();
    let copy = |source, within| {
        let begun = begun.volumes.recorder("pvc-1");
        let processes = Arc::clone(&processes);
        async move {
            let copied = processes.copy((mount(), copying(source)), within, begun);
            copied.await.unwrap_err()
        }
    };
    let soon = Duration::from_millis(10);
    for _ in 0..2 {
        let waiting = copy("a", soon).await;
        let state = (waiting.kind, waiting.certainty);
        assert_eq!(state, (Kind::Busy, Certainty::NothingHappened));
        let words = "directory data of server filer: waits for other copies of that server";
        assert!(waiting.message.starts_with(words), "{waiting}");
    }
    // The copy begins as soon as a slot is free, even if no call is waiting for the copy.
    assert_eq!(unreachable(&begun), Certainty::MayBeRunning);
    let other = copy("b", soon).await;
    assert!(
        other.message.contains("another call is changing it"),
        "{other}"
    );
    drop(others);
    let failed = copy("a", LONG).await;
    let state = (failed.kind, failed.certainty);
    assert_eq!(state, (Kind::System, Certainty::NothingHappened));
    assert!(failed.message.contains("worker process"), "{failed}");
    assert!(processes.copies.is_empty(), "a failure is answered once");
    assert_eq!(unreachable(&begun), Certainty::NothingHappened);
}

/// Returns the certainty of a failed call for the volume whose request does not reach the server.
fn unreachable(begun: &StartedCreations) -> Certainty {
    let name = Name::new("pvc-1").unwrap();
    let failed = Err::<(), _>(Failure::new(Kind::Unreachable, "why"));
    begun.volumes.judge(&name, failed).unwrap_err().certainty
}

const LONG: Duration = Duration::from_secs(60);

/// Returns the command of a shell that runs instead of the worker program.
fn shell(script: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    // The socket is only the standard input, so the script's output is redirected to the socket.
    shell.args(["-c", &format!("exec >&0; {script}")]);
    shell
}

fn asking(worker: fn() -> Command) -> Arc<Processes> {
    Arc::new(Processes {
        worker,
        ..Processes::new()
    })
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let holds = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let held = tokio::time::timeout(LONG, holds).await;
    assert!(held.is_ok(), "timed out after {LONG:?}: {what}");
}

fn creation() -> Work {
    Work::Create(volume())
}

/// A call that did not begin does not change the certainty about an earlier call.
#[tokio::test]
async fn a_worker_that_ends_before_it_has_mounted_the_share_has_begun_nothing() {
    let hangs = || shell("read call; exec sleep 1000");
    let processes = asking(hangs);
    for _ in 0..2 {
        // Other calls may use the directory immediately, although the process may still be running.
        let asked = processes.ask(mount(), creation(), Duration::from_millis(1));
        let failure = asked.await.unwrap_err();
        let state = (failure.kind, failure.certainty);
        assert_eq!(state, (Kind::Timeout, Certainty::NothingHappened));
        assert!(failure.message.contains("was not mounted"), "{failure}");
    }
    for worker in [|| shell("read call; exit 3"), || shell("exit 3")] {
        let asked = asking(worker).ask(mount(), creation(), LONG).await;
        let failure = asked.unwrap_err();
        let state = (failure.kind, failure.certainty);
        assert_eq!(
            state,
            (Kind::System, Certainty::NothingHappened),
            "{failure}"
        );
    }
}

#[tokio::test]
async fn a_worker_that_ends_after_it_has_mounted_the_share_may_have_begun() {
    let worker = || shell("read call; echo '\"Mounted\"'; read begin; exit 3");
    let asked = asking(worker).ask(mount(), creation(), LONG).await;
    let failure = asked.unwrap_err();
    let state = (failure.kind, failure.certainty);
    assert_eq!(state, (Kind::System, Certainty::MayBeRunning), "{failure}");
    let answers = || {
        shell(
            "read call; echo '\"Mounted\"'; read begin; [ $begin = '\"begin\"' ] || exit 3
             echo '{\"Answer\":{\"Ok\":{\"Volume\":null}}}'",
        )
    };
    let asked = asking(answers).ask(mount(), creation(), LONG).await;
    assert_eq!(asked, Ok(Done::Volume(None)));
}

/// The call has returned while the copy was waiting, and no later call has requested the copy.
#[tokio::test]
async fn a_copy_that_has_begun_without_a_call_counts_before_it_has_ended() {
    let processes = asking(|| shell("read call; echo '\"Mounted\"'; read begin; exec sleep 1000"));
    let others = [copy_slot(&processes).await, copy_slot(&processes).await];
    let begun = StartedCreations::default();
    let call = (mount(), copying("a"));
    let recorder = begun.volumes.recorder("pvc-1");
    let queued = processes.copy(call, Duration::ZERO, recorder).await;
    assert_eq!(queued.unwrap_err().certainty, Certainty::NothingHappened);
    drop(others);
    until("the copy begins", || processes.copies.counts() == (0, 1)).await;
    assert_eq!(unreachable(&begun), Certainty::MayBeRunning);
}

/// No call is waiting when the copy ends.
#[tokio::test]
async fn a_copy_that_was_made_without_a_call_is_noted() {
    let makes = || {
        shell(
            "read call; echo '\"Mounted\"'; read begin
             echo '{\"Answer\":{\"Ok\":{\"Volume\":null}}}'",
        )
    };
    let fails = || shell("read call; echo '\"Mounted\"'; read begin; exit 3");
    for worker in [makes, fails] {
        let processes = asking(worker);
        let begun = StartedCreations::default();
        let call = (mount(), copying("a"));
        let recorder = begun.volumes.recorder("pvc-1");
        let soon = processes.copy(call, Duration::ZERO, recorder).await;
        assert_eq!(soon.unwrap_err().kind, Kind::Busy);
        until("the copy has ended", || processes.copies.counts() == (0, 0)).await;
        assert_eq!(unreachable(&begun), Certainty::MayBeRunning);
    }
}
