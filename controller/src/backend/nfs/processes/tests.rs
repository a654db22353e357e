//! How many processes there are for a server, for all servers, and for a directory.

use super::super::super::Begun;
use super::super::call::{Copying, Fault, NewVolume, OldVolume, Owned, Source};
use super::super::id::OnDelete;
use super::super::path::Dir;
use super::running::{ending, is_settled};
use super::*;
use belay_server::call::Certainty;
use belay_server::request::Name;

fn owned() -> Owned {
    Owned {
        dir: Dir::read("data").unwrap().unwrap(),
        name: "pvc-1".to_owned(),
    }
}

fn mount() -> Mount {
    Mount {
        server: "Filer".to_owned(),
        share: "share".to_owned(),
        options: Vec::new(),
    }
}

#[test]
fn a_server_with_too_many_hung_processes_is_asked_no_more() {
    let processes = Processes::new();
    let server = processes.of("filer");
    server.killed.store(OF_SERVER - 1, Ordering::Relaxed);
    server.refuse_hung("filer").unwrap();
    server.killed.store(OF_SERVER, Ordering::Relaxed);
    let failure = server.refuse_hung("filer").unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable);
    let expected = "server filer: 8 killed processes have not exited";
    assert!(failure.message.starts_with(expected), "{failure}");
}

#[test]
fn a_server_is_known_while_a_call_has_it() {
    let processes = Processes::new();
    let server = processes.of("filer");
    assert!(Arc::ptr_eq(&server, &processes.of("filer")));
    assert!(!Arc::ptr_eq(&server, &processes.of("other")));
    drop(server);
    drop(processes.of("third"));
    let known = processes.servers.lock();
    assert_eq!(known.keys().collect::<Vec<_>>(), ["third"]);
}

#[tokio::test]
async fn a_call_that_is_refused_starts_no_process_whatever_the_case_of_the_servers_name() {
    let processes = Processes::new();
    let server = processes.of("filer");
    server.killed.store(OF_SERVER, Ordering::Relaxed);
    let asked = processes.ask(mount(), Work::Look(owned()), Duration::from_secs(60));
    assert_eq!(asked.await.unwrap_err().kind, Kind::Unreachable);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_slot_ends_in_time_and_was_not_begun() {
    let processes = Processes::new();
    let server = processes.of("filer");
    let slots = u32::try_from(OF_SERVER).unwrap();
    let _all = Arc::clone(&server.slots).acquire_many_owned(slots).await;
    let begun = Instant::now();
    let asked = processes.ask(mount(), Work::Look(owned()), Duration::from_secs(7));
    let failure = asked.await.unwrap_err();
    assert!(begun.elapsed() >= Duration::from_secs(7));
    let state = (failure.kind, failure.certainty);
    assert_eq!(state, (Kind::Timeout, Certainty::NothingHappened));
    let message = &failure.message;
    assert!(message.contains("within 7 s; if it answers"), "{message}");
    assert!(
        message.ends_with("this call was not begun; retry"),
        "{message}"
    );
}

/// Those that are free now.
async fn slots(processes: &Processes, server: &Server) -> Result<Slots, Awaited> {
    let end = Instant::now() + Duration::from_millis(1);
    processes.slots(server, &Work::Look(owned()), end).await
}

#[tokio::test(start_paused = true)]
async fn killed_processes_of_some_servers_leave_the_slots_of_others() {
    let processes = Processes::new();
    let dead: Vec<_> = (0..TOTAL / OF_SERVER)
        .map(|n| processes.of(&format!("dead-{n}")))
        .collect();
    let one_more = processes.of("one-more");
    let mut held = Vec::new();
    for server in &dead {
        for _ in 0..OF_SERVER {
            held.push(slots(&processes, server).await.unwrap());
        }
        let refused = slots(&processes, server).await.err();
        assert_eq!(refused, Some(Awaited::Server));
    }
    let refused = slots(&processes, &one_more).await.err();
    assert_eq!(refused, Some(Awaited::All), "all run");
    let message = Awaited::All.failure("s", Duration::from_secs(7)).message;
    let expected = "server s: none of 64 worker processes was free within 7 s, since other servers";
    assert!(message.starts_with(expected), "{message}");
    for slots in &mut held {
        slots.of_all = None;
    }
    for _ in 0..OF_SERVER {
        held.push(slots(&processes, &one_more).await.unwrap());
    }
    for server in &dead {
        assert!(slots(&processes, server).await.is_err(), "until they exit");
    }
    held.clear();
    for server in &dead {
        assert!(slots(&processes, server).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn deletions_leave_slots_of_their_server_to_other_calls() {
    let processes = Processes::new();
    let server = processes.of("filer");
    let deletion = Work::Delete(OldVolume {
        at: owned(),
        on_delete: None,
        default: OnDelete::Delete,
        removes_archived: false,
    });
    let end = || Instant::now() + Duration::from_millis(1);
    let mut held = Vec::new();
    for _ in 0..DELETIONS_OF_SERVER {
        held.push(processes.slots(&server, &deletion, end()).await.unwrap());
    }
    let refused = processes.slots(&server, &deletion, end()).await.err();
    assert_eq!(refused, Some(Awaited::Deletions));
    let message = Awaited::Deletions
        .failure("s", Duration::from_secs(7))
        .message;
    let expected = "server s: 4 workers of it delete other volumes";
    assert!(message.starts_with(expected), "{message}");
    for _ in DELETIONS_OF_SERVER..OF_SERVER {
        held.push(slots(&processes, &server).await.unwrap());
    }
    held.truncate(DELETIONS_OF_SERVER - 1);
    held.push(processes.slots(&server, &deletion, end()).await.unwrap());
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

/// A soft mount reports a server that does not answer; it may still execute the request.
#[test]
fn a_directory_is_free_once_no_request_for_it_is_under_way() {
    let fault = |failure: Failure| Err(Fault::from(failure));
    assert!(is_settled(&Ok(Done::Volume(None))));
    assert!(is_settled(&fault(Failure::busy("why"))));
    assert!(!is_settled(&fault(Failure::busy("why").may_be_running())));
}

#[test]
fn a_process_that_has_not_answered_is_described_by_its_end() {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;
    let panic = b"thread 'main' panicked at x.rs:1:2:\nout of paper\nnote: run with more\n\n";
    let failed = Some(ExitStatus::from_raw(101 << 8));
    assert_eq!(
        ending(failed, panic),
        "no answer; exit status: 101: out of paper"
    );
    let killed = Some(ExitStatus::from_raw(9));
    assert_eq!(ending(killed, b""), "no answer; signal: 9 (SIGKILL)");
    assert_eq!(ending(None, b"\n"), "no answer; it has not exited");
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

/// This program is no worker, so a copy fails before it is begun.
#[tokio::test]
async fn a_copy_goes_on_without_its_call_and_the_next_call_finds_it_or_its_failure() {
    let processes = Arc::new(Processes::new());
    let server = processes.of("filer");
    let count = u32::try_from(copies::OF_SERVER).unwrap();
    let all = Arc::clone(&server.copies);
    let others = all.acquire_many_owned(count).await.unwrap();
    let begun = Begun::default();
    let copy = |source, within| {
        let begun = begun.volumes.noting("pvc-1");
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
    // It begins by itself, whatever its calls do.
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

/// What a call for the volume finds out that does not reach the server.
fn unreachable(begun: &Begun) -> Certainty {
    let name = Name::new("pvc-1").unwrap();
    let failed = Err::<(), _>(Failure::new(Kind::Unreachable, "why"));
    begun.volumes.judge(&name, failed).unwrap_err().certainty
}

const LONG: Duration = Duration::from_secs(60);

/// A shell in the place of the worker.
fn shell(script: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]);
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

/// Whether an earlier call may have created something does not depend on one that was not begun.
#[tokio::test]
async fn a_worker_that_ends_before_it_has_mounted_the_share_has_begun_nothing() {
    let hangs = || shell("read call; exec sleep 1000");
    let processes = asking(hangs);
    for _ in 0..2 {
        // The directory is free at once, although the process may still run.
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
            "read call; echo '\"Mounted\"'; read begin; [ $begin = begin ] || exit 3
             echo '{\"Answer\":{\"Ok\":{\"Volume\":null}}}'",
        )
    };
    let asked = asking(answers).ask(mount(), creation(), LONG).await;
    assert_eq!(asked, Ok(Done::Volume(None)));
}

/// Its call has seen it wait, and no other one has come since.
#[tokio::test]
async fn a_copy_that_has_begun_without_a_call_counts_before_it_has_ended() {
    let processes = asking(|| shell("read call; echo '\"Mounted\"'; read begin; exec sleep 1000"));
    let server = processes.of("filer");
    let count = u32::try_from(copies::OF_SERVER).unwrap();
    let all = Arc::clone(&server.copies);
    let others = all.acquire_many_owned(count).await.unwrap();
    let begun = Begun::default();
    let call = (mount(), copying("a"));
    let noting = begun.volumes.noting("pvc-1");
    let queued = processes.copy(call, Duration::ZERO, noting).await;
    assert_eq!(queued.unwrap_err().certainty, Certainty::NothingHappened);
    drop(others);
    until("the copy begins", || processes.copies.counts() == (0, 1)).await;
    assert_eq!(unreachable(&begun), Certainty::MayBeRunning);
}

/// A call that waits for it is not the one that finds out.
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
        let begun = Begun::default();
        let call = (mount(), copying("a"));
        let noting = begun.volumes.noting("pvc-1");
        let soon = processes.copy(call, Duration::ZERO, noting).await;
        assert_eq!(soon.unwrap_err().kind, Kind::Busy);
        until("the copy has ended", || processes.copies.counts() == (0, 0)).await;
        assert_eq!(unreachable(&begun), Certainty::MayBeRunning);
    }
}
