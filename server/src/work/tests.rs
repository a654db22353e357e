//! Tests of jobs: which calls join a job, which calls are refused, when callers stop waiting, and
//! which work continues after that.

use super::*;
use crate::call::{Certainty, Kind};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};

const DEADLINE: Duration = Duration::from_secs(100);

type Caller = JoinHandle<Result<u32, Failure>>;

type Jobs<T> = super::Jobs<Plain, T>;

/// The only class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Plain;

impl Class for Plain {
    fn deadline(self) -> Duration {
        DEADLINE
    }
}

pub(super) fn key(id: &str) -> Key<Plain> {
    Key::new(Plain, id)
}

fn jobs() -> Jobs<u32> {
    Jobs::default()
}

/// A job with its own caller, which ends with the value that is sent.
async fn begun(jobs: &Jobs<u32>, rpc: Rpc, fingerprint: u64) -> (oneshot::Sender<u32>, Caller) {
    let (end, ended) = oneshot::channel::<u32>();
    let jobs = jobs.clone();
    let caller = tokio::spawn(async move {
        let work = |_| async { Ok(ended.await.unwrap()) };
        jobs.run(key("vol-1"), rpc, fingerprint, work).await
    });
    yield_now().await;
    yield_now().await;
    (end, caller)
}

/// A job that waits for a slot, and ends as soon as it has the slot.
async fn waiting(jobs: &Jobs<u32>, rpc: Rpc, slots: &Arc<Semaphore>) -> Caller {
    let (jobs, slots) = (jobs.clone(), Arc::clone(slots));
    let caller = tokio::spawn(async move {
        let work = |ticket: Ticket| async move {
            let slot = ticket.wait("a slot", slots.acquire_owned()).await?;
            slot.unwrap().forget();
            Ok(1)
        };
        jobs.run(key("vol-1"), rpc, 7, work).await
    });
    yield_now().await;
    yield_now().await;
    caller
}

async fn run(jobs: &Jobs<u32>, rpc: Rpc, fingerprint: u64) -> Result<u32, Failure> {
    let work = |_| async { Ok(1) };
    jobs.run(key("vol-1"), rpc, fingerprint, work).await
}

fn keys<C: Class, T>(jobs: &super::Jobs<C, T>) -> usize {
    jobs.running.0.lock().len()
}

#[tokio::test]
async fn the_same_request_joins_and_gets_the_same_result() {
    let jobs = jobs();
    let (end, first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    let (unused, second) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    assert!(unused.is_closed(), "the work of the second is dropped");
    assert_eq!(keys(&jobs), 1);
    end.send(42).unwrap();
    assert_eq!(first.await.unwrap(), Ok(42));
    assert_eq!(second.await.unwrap(), Ok(42));
    assert_eq!(keys(&jobs), 0);
}

#[tokio::test]
async fn another_request_for_the_key_is_refused_and_learns_what_runs() {
    let jobs = jobs();
    let (_end, _first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    for (rpc, fingerprint) in [(Rpc::NodeStageVolume, 8), (Rpc::NodeUnstageVolume, 7)] {
        let refused = run(&jobs, rpc, fingerprint).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Busy);
        assert_eq!(refused.certainty, Certainty::NothingHappened);
        let how = match rpc {
            Rpc::NodeStageVolume => " with other arguments",
            _ => "",
        };
        let running =
            format!("vol-1: another operation{how} is in progress: NodeStageVolume has been ");
        assert!(refused.message.starts_with(&running), "{refused}");
    }
    let other = jobs.run(key("vol-2"), Rpc::NodeStageVolume, 8, |_| async { Ok(1) });
    assert_eq!(other.await, Ok(1));
}

#[tokio::test]
async fn a_job_outlives_its_caller_and_serves_the_next_one() {
    let jobs = jobs();
    let (end, first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(!end.is_closed(), "the work continues");
    let (_unused, second) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    end.send(42).unwrap();
    assert_eq!(second.await.unwrap(), Ok(42));
    assert_eq!(keys(&jobs), 0);
}

#[tokio::test]
async fn a_panic_reaches_all_who_wait_as_maybe_running_and_frees_the_key() {
    let jobs = jobs();
    // The work of this job unwraps the error of a dropped sender.
    let (end, first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    let (_unused, second) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    drop(end);
    for caller in [first, second] {
        let failure = caller.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, Kind::Bug);
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
    }
    assert_eq!(run(&jobs, Rpc::NodeUnstageVolume, 1).await, Ok(1));
}

#[test]
fn a_job_cut_short_by_the_end_of_its_runtime_frees_the_key() {
    let jobs = jobs();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let (_end, _first) = runtime.block_on(begun(&jobs, Rpc::NodeStageVolume, 7));
    assert_eq!(keys(&jobs), 1);
    drop(runtime);
    assert_eq!(keys(&jobs), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_past_its_deadline_is_hung_and_its_key_stays_taken_until_it_ends() {
    let jobs = jobs();
    let (end, first) = begun(&jobs, Rpc::NodeUnstageVolume, 7).await;
    assert_eq!((jobs.hung(|_| true), jobs.hung_count(Plain)), (None, 0));
    let failure = first.await.unwrap().unwrap_err();
    assert_eq!(failure.kind, Kind::Timeout);
    assert_eq!(failure.certainty, Certainty::MayBeRunning);
    assert!(!end.is_closed(), "the work continues");

    let view = jobs.view(&key("vol-1")).unwrap();
    assert!(view.is_hung);
    assert_eq!(view.rpc, Rpc::NodeUnstageVolume);
    assert_eq!(jobs.hung(|key| *key.id == *"vol-1").unwrap().rpc, view.rpc);
    assert_eq!(jobs.hung(|key| *key.id == *"vol-2"), None);
    assert_eq!(jobs.hung_count(Plain), 1);
    let refused = run(&jobs, Rpc::NodeStageVolume, 7).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);

    // A retry also waits for the end of the job, but only until a deadline.
    let (_unused, second) = begun(&jobs, Rpc::NodeUnstageVolume, 7).await;
    assert_eq!(second.await.unwrap().unwrap_err().kind, Kind::Timeout);
    let (_unused, third) = begun(&jobs, Rpc::NodeUnstageVolume, 7).await;
    end.send(42).unwrap();
    assert_eq!(third.await.unwrap(), Ok(42));
    assert_eq!(jobs.view(&key("vol-1")), None);
    assert_eq!(run(&jobs, Rpc::NodeStageVolume, 7).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_only_waits_is_cancelled_at_its_deadline() {
    let (jobs, slots) = (jobs(), Arc::new(Semaphore::new(0)));
    let failure = waiting(&jobs, Rpc::NodeStageVolume, &slots)
        .await
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(failure.kind, Kind::Timeout);
    assert_eq!(failure.certainty, Certainty::NothingHappened);
    assert!(
        failure.message.contains("100 s of waiting for a slot"),
        "{failure}"
    );
    assert_eq!(keys(&jobs), 0);
}

#[tokio::test]
async fn an_unstage_replaces_a_stage_that_waits() {
    let (jobs, slots) = (jobs(), Arc::new(Semaphore::new(0)));
    let stage = waiting(&jobs, Rpc::NodeStageVolume, &slots).await;
    let other = run(&jobs, Rpc::NodeExpandVolume, 1).await.unwrap_err();
    assert_eq!(other.kind, Kind::Busy, "only an unstage may");

    let (end, unstage) = begun(&jobs, Rpc::NodeUnstageVolume, 7).await;
    let failure = stage.await.unwrap().unwrap_err();
    assert_eq!(failure.kind, Kind::Busy);
    assert_eq!(failure.certainty, Certainty::NothingHappened);
    assert!(failure.message.contains("cancelled"), "{failure}");
    assert_eq!(keys(&jobs), 1, "the end of the stage leaves it its key");

    slots.add_permits(1);
    end.send(42).unwrap();
    assert_eq!(unstage.await.unwrap(), Ok(42));
    assert_eq!(slots.available_permits(), 1, "the stage took nothing");
    assert_eq!(keys(&jobs), 0);
}

#[tokio::test]
async fn a_stage_that_works_is_not_cancelled() {
    let jobs = jobs();
    let (end, stage) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
    let refused = run(&jobs, Rpc::NodeUnstageVolume, 7).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);
    end.send(42).unwrap();
    assert_eq!(stage.await.unwrap(), Ok(42));
}

#[tokio::test]
async fn others_see_what_a_job_is_doing() {
    struct Mounting;
    impl Watch for Mounting {
        fn doing(&self) -> Option<Doing> {
            Some(Doing {
                step: "mount",
                amount: None,
            })
        }
    }
    let jobs = jobs();
    let runner = jobs.clone();
    let work = |ticket: Ticket| async move {
        ticket.watched_by(Mounting);
        pending().await
    };
    let _caller = tokio::spawn(async move {
        runner
            .run(key("vol-1"), Rpc::NodeStageVolume, 7, work)
            .await
    });
    yield_now().await;
    yield_now().await;
    let view = jobs.view(&key("vol-1")).unwrap();
    assert_eq!(view.doing.map(|doing| doing.step), Some("mount"));
    assert_eq!(
        view.to_string(),
        "NodeStageVolume has been running for 0 s, now in mount"
    );
}

#[test]
fn fingerprints_distinguish_requests_but_not_retries() {
    let request = |path: &str, read_only: bool| fingerprint(&(path.to_owned(), read_only));
    assert_eq!(request("/a", true), request("/a", true));
    assert_ne!(request("/a", true), request("/a", false));
    assert_ne!(request("/a", true), request("/b", true));
}

#[tokio::test]
async fn a_shared_key_has_room_for_the_same_call_and_for_no_job() {
    let jobs = jobs();
    let cut = || jobs.share(key("vol-1"), Rpc::CreateSnapshot);
    let (first, second) = (cut().unwrap(), cut().unwrap());
    for refused in [
        run(&jobs, Rpc::DeleteVolume, 0).await.unwrap_err(),
        run(&jobs, Rpc::CreateSnapshot, 0).await.unwrap_err(),
        jobs.share(key("vol-1"), Rpc::CreateVolume).unwrap_err(),
    ] {
        assert_eq!(refused.kind, Kind::Busy);
        assert!(refused.message.contains("CreateSnapshot has"), "{refused}");
    }
    drop(first);
    assert_eq!(
        run(&jobs, Rpc::DeleteVolume, 0).await.unwrap_err().kind,
        Kind::Busy
    );
    drop(second);
    assert_eq!(keys(&jobs), 0);
    let (end, _caller) = begun(&jobs, Rpc::DeleteVolume, 0).await;
    assert!(cut().unwrap_err().message.contains("DeleteVolume has"));
    end.send(1).unwrap();
}

#[test]
fn a_key_is_its_class_object_and_path_and_is_printed_without_its_class() {
    assert_eq!(key("vol-1").to_string(), "vol-1");
    let there = key("vol-1").at("/a");
    assert_eq!(there.to_string(), "vol-1 at /a");
    assert_ne!(there, key("vol-1").at("/b"));
    assert_ne!(there, key("vol-1"));
}

/// The classes of the test: changes, and queries with a different deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Two {
    Change,
    Query,
}

impl Class for Two {
    fn deadline(self) -> Duration {
        match self {
            Two::Change => DEADLINE,
            Two::Query => DEADLINE / 10,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_two_classes_do_not_exclude_each_other_and_each_has_its_deadline() {
    let jobs = super::Jobs::<Two, u32>::default();
    let begin = |class| {
        let jobs = jobs.clone();
        tokio::spawn(async move {
            let work = |_| pending::<Result<u32, Failure>>();
            let rpc = Rpc::NodeGetVolumeStats;
            jobs.run(Key::new(class, "vol-1"), rpc, 0, work).await
        })
    };
    let (change, query) = (begin(Two::Change), begin(Two::Query));
    let counts = || [Two::Change, Two::Query].map(|class| jobs.hung_count(class));
    assert_eq!(query.await.unwrap().unwrap_err().kind, Kind::Timeout);
    assert_eq!(counts(), [0, 1]);
    assert_eq!(change.await.unwrap().unwrap_err().kind, Kind::Timeout);
    assert_eq!(counts(), [1, 1]);
    assert_eq!(keys(&jobs), 2);
}

/// Work whose amount is known. The test sets the completed amount.
#[derive(Clone, Default)]
struct Reading {
    done: Arc<AtomicU64>,
    is_given_up: Arc<AtomicBool>,
}

impl Watch for Reading {
    fn doing(&self) -> Option<Doing> {
        Some(Doing {
            step: "probe",
            amount: Some(Amount {
                done: self.done.load(Ordering::Relaxed) << 30,
                total: 20 << 30,
            }),
        })
    }

    fn give_up(&self) -> bool {
        self.is_given_up.store(true, Ordering::Relaxed);
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_makes_headway_is_late_and_not_hung_and_an_unstage_ends_it() {
    let (jobs, reading) = (jobs(), Reading::default());
    let (runner, watch) = (jobs.clone(), reading.clone());
    let work = |ticket: Ticket| async move {
        ticket.watched_by(watch);
        pending().await
    };
    let stage = tokio::spawn(async move {
        runner
            .run(key("vol-1"), Rpc::NodeStageVolume, 7, work)
            .await
    });
    yield_now().await;
    reading.done.store(10, Ordering::Relaxed);
    let late = stage.await.unwrap().unwrap_err();
    assert_eq!(late.kind, Kind::Timeout);
    let end = "now in probe (10 of 20 GiB); still running, retry for the result";
    assert!(late.message.ends_with(end), "{late}");
    // Sleep until the time between two deadlines.
    tokio::time::sleep(DEADLINE / 2).await;
    for (done, is_hung) in [(10, true), (11, false), (11, true), (12, false), (12, true)] {
        reading.done.store(done, Ordering::Relaxed);
        tokio::time::sleep(DEADLINE).await;
        let view = jobs.view(&key("vol-1")).unwrap();
        assert_eq!(view.is_hung, is_hung, "{view}");
    }
    for (rpc, is_given_up) in [
        (Rpc::NodeExpandVolume, false),
        (Rpc::NodeUnstageVolume, true),
    ] {
        let refused = run(&jobs, rpc, 7).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Busy);
        assert_eq!(reading.is_given_up.load(Ordering::Relaxed), is_given_up);
    }
}

#[test]
fn small_amounts_are_in_mebibytes() {
    let doing = |total| Doing {
        step: "probe",
        amount: Some(Amount {
            done: 5 << 20,
            total,
        }),
    };
    assert_eq!(doing(512 << 20).to_string(), "probe (5 of 512 MiB)");
    assert_eq!(doing(10 << 30).to_string(), "probe (0 of 10 GiB)");
}
