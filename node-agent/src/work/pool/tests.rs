//! Tests of the pool: which calls run on a thread, which calls wait for a slot, and how a slow disk
//! affects other calls.

use std::sync::mpsc;

use belay_server::call::Rpc;
use belay_server::work::{CHANGE_DEADLINE, Jobs, Key};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use super::*;
use crate::work::Phase;
use crate::work::{Class, Clock, Operation};

/// Jobs on a pool. The work of these jobs hangs until the test releases it.
struct Bench {
    jobs: Jobs<Class, u64>,
    pool: Arc<Pool>,
}

struct Work {
    has_begun: tokio::sync::oneshot::Receiver<()>,
    release: mpsc::Sender<()>,
    job: JoinHandle<Result<u64, Failure>>,
}

fn change(id: &str) -> Key<Class> {
    Key::new(Class::Change, id)
}

impl Bench {
    fn new() -> Self {
        Bench {
            jobs: Jobs::default(),
            pool: Pool::new(),
        }
    }

    /// Starts a job. Returns when the job is running on a thread or is waiting for a thread.
    async fn begin(&self, key: &str, lane: Lane) -> Work {
        let (begins, has_begun) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let (jobs, pool, key) = (self.jobs.clone(), Arc::clone(&self.pool), change(key));
        let job = tokio::spawn(async move {
            let work = move |ticket: Ticket| async move {
                let hang = move |_: &Progress| {
                    begins.send(()).unwrap();
                    // `recv` returns an error when the test drops the sender, even if the test
                    // fails.
                    assert!(released.recv().is_err());
                    Ok(1)
                };
                pool.run(&ticket, lane, hang).await
            };
            jobs.run(key, Rpc::NodeStageVolume, 0, work).await
        });
        for _ in 0..4 {
            yield_now().await;
        }
        Work {
            has_begun,
            release,
            job,
        }
    }

    fn waiting(&self) -> u32 {
        self.pool.waiting.load(Ordering::Relaxed)
    }

    /// Returns the values of the gauges: the threads in the states `working`, `formatting` and
    /// `slow`, and the number of waiting operations.
    fn shown(&self) -> [u32; 4] {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || measure(std::slice::from_ref(&self.pool)));
        let page = recorder.handle().render();
        [
            "belay_pool_threads{state=\"working\"} ",
            "belay_pool_threads{state=\"formatting\"} ",
            "belay_pool_threads{state=\"slow\"} ",
            "belay_pool_waiting ",
        ]
        .map(|series| {
            let value = page.lines().find_map(|line| line.strip_prefix(series));
            value
                .unwrap_or_else(|| panic!("{series} in {page}"))
                .parse()
                .unwrap()
        })
    }
}

impl Work {
    async fn end(self) {
        self.has_begun.await.unwrap();
        drop(self.release);
        assert_eq!(self.job.await.unwrap(), Ok(1));
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_long_gives_its_place_on() {
    let bench = Bench::new();
    let mut hung = Vec::new();
    for n in 0..SLOTS {
        hung.push(bench.begin(&format!("hung-{n}"), Lane::Change).await);
    }
    let next = bench.begin("next", Lane::Change).await;
    assert_eq!(bench.waiting(), 1, "all slots are taken");
    advance(Lane::Change.slow_after() + Duration::from_millis(1)).await;
    next.end().await;
    assert_eq!(bench.pool.slow.available_permits(), SLOW_MAX - SLOTS);
    assert_eq!(bench.pool.slots.available_permits(), SLOTS);
    for work in hung {
        work.end().await;
    }
    assert_eq!(bench.pool.slow.available_permits(), SLOW_MAX);
}

#[tokio::test(start_paused = true)]
async fn threads_are_bounded_and_who_finds_none_is_given_up_at_the_deadline() {
    let bench = Bench::new();
    let mut hung = Vec::new();
    while hung.len() < SLOW_MAX + SLOTS {
        hung.push(
            bench
                .begin(&format!("hung-{}", hung.len()), Lane::Change)
                .await,
        );
        if hung.len() % SLOTS == 0 {
            advance(Lane::Change.slow_after() + Duration::from_millis(1)).await;
        }
    }
    let late = bench.begin("late", Lane::Change).await;
    assert_eq!(bench.waiting(), 1);
    // Advance the clock manually, because a paused clock does not advance while threads are
    // running.
    advance(CHANGE_DEADLINE).await;
    let failure = late.job.await.unwrap().unwrap_err();
    assert!(
        failure.message.contains(Lane::Change.slot_name()),
        "{failure}"
    );
    assert_eq!(bench.waiting(), 0);
    let seen = bench.jobs.view(&change("hung-0")).unwrap();
    assert!(seen.is_hung);
    for work in hung {
        drop(work.release);
    }
}

#[tokio::test(start_paused = true)]
async fn reads_leave_places_to_changes() {
    let bench = Bench::new();
    let mut reads = Vec::new();
    for n in 0..SLOTS {
        reads.push(bench.begin(&format!("read-{n}"), Lane::Read).await);
    }
    assert_eq!(bench.waiting() as usize, SLOTS - READ_SLOTS);
    bench.begin("change", Lane::Change).await.end().await;
    for read in reads {
        read.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn mkfs_has_places_of_its_own_and_gives_them_on_when_it_hangs() {
    let bench = Bench::new();
    let mut formats = Vec::new();
    for n in 0..=FORMAT_SLOTS {
        formats.push(bench.begin(&format!("format-{n}"), Lane::Format).await);
    }
    advance(Lane::Change.slow_after() * 2).await;
    yield_now().await;
    assert_eq!(bench.waiting(), 1, "the last one waits for a format");
    bench.begin("change", Lane::Change).await.end().await;
    advance(Lane::Format.slow_after()).await;
    formats.pop().unwrap().end().await;
    for format in formats {
        format.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn encrypted_volumes_wait_for_each_other_and_hold_up_no_mkfs() {
    let bench = Bench::new();
    let mut volumes = Vec::new();
    for n in 0..=UNLOCK_SLOTS {
        volumes.push(bench.begin(&format!("volume-{n}"), Lane::Unlock).await);
    }
    assert_eq!(bench.waiting(), 1);
    bench.begin("format", Lane::Format).await.end().await;
    bench.begin("change", Lane::Change).await.end().await;
    // The disks of the first ones do not answer.
    advance(Lane::Unlock.slow_after()).await;
    while let Some(volume) = volumes.pop() {
        volume.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_gauges_follow_the_threads_and_those_who_wait_for_one() {
    let bench = Bench::new();
    assert_eq!(bench.shown(), [0; 4]);
    let mut changes = Vec::new();
    for n in 0..SLOTS + 1 {
        changes.push(bench.begin(&format!("change-{n}"), Lane::Change).await);
    }
    let format = bench.begin("format", Lane::Format).await;
    assert_eq!(bench.shown(), [4, 1, 0, 1]);
    // The four running jobs are considered slow now, so the waiting job has received a slot.
    advance(Lane::Change.slow_after() + Duration::from_millis(1)).await;
    let late = changes.pop().unwrap();
    late.has_begun.await.unwrap();
    let read = bench.begin("read", Lane::Read).await;
    assert_eq!(bench.shown(), [2, 1, 4, 0]);
    advance(Lane::Read.slow_after() + Duration::from_millis(1)).await;
    for _ in 0..4 {
        yield_now().await;
    }
    assert_eq!(bench.shown(), [0, 1, 6, 0]);
    drop(late.release);
    assert_eq!(late.job.await.unwrap(), Ok(1));
    for work in changes.into_iter().chain([read, format]) {
        work.end().await;
    }
    assert_eq!(bench.shown(), [0; 4]);
}

#[tokio::test(start_paused = true)]
async fn others_see_the_phase_of_a_thread() {
    let bench = Bench::new();
    let (release, released) = mpsc::channel::<()>();
    let (begins, has_begun) = tokio::sync::oneshot::channel();
    let (jobs, pool) = (bench.jobs.clone(), Arc::clone(&bench.pool));
    let job = tokio::spawn(async move {
        let work = move |ticket: Ticket| async move {
            let hang = move |progress: &Progress| {
                Clock::start(Operation::Unstage, progress).phase(Phase::Unmount, || {
                    begins.send(()).unwrap();
                    assert!(released.recv().is_err());
                });
                Ok(1)
            };
            pool.run(&ticket, Lane::Change, hang).await
        };
        jobs.run(change("vol-1"), Rpc::NodeUnstageVolume, 0, work)
            .await
    });
    has_begun.await.unwrap();
    assert_eq!(
        bench
            .jobs
            .view(&change("vol-1"))
            .unwrap()
            .doing
            .map(|doing| doing.step),
        Some("unmount")
    );
    drop(release);
    assert_eq!(job.await.unwrap(), Ok(1));
}
