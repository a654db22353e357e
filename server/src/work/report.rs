//! Reports the running jobs: single jobs, totals as metrics, and a list as lines of text for tools.
//! All reports are computed only on request.

use super::{Amount, Class, Doing, Job, JobMap};
use crate::call::Rpc;
use crate::lock::Lock;
use metrics::Unit;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Gauge: running jobs.
const RUNNING: &str = "belay_jobs_running";
/// Gauge: jobs beyond their deadline.
const HUNG: &str = "belay_jobs_hung";
/// Gauge: age of the oldest job in seconds; 0 while no job runs.
const OLDEST: &str = "belay_jobs_oldest_age_seconds";
/// Gauge: bytes that running jobs must still read, as far as the amount is known.
const LEFT: &str = "belay_jobs_left_bytes";

/// Maximum number of jobs in the list; at most 64 changes and 16 reads may hang per driver.
const JOBS_MAX: usize = 1000;

/// A running job at one moment. Its `Display` form is a sentence with the call, its age and its
/// state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// The call that started the job.
    pub rpc: Rpc,
    /// The job's age.
    pub age: Duration,
    /// Whether the job has exceeded its deadline without visible progress.
    pub is_hung: bool,
    /// The current work; `None` if unknown.
    pub doing: Option<Doing>,
    /// The event for which the job is waiting; `None` if the job is working.
    pub awaited: Option<&'static str>,
}

impl<T> Job<T> {
    pub(super) fn view(&self) -> JobView {
        JobView {
            rpc: self.rpc,
            age: self.since.elapsed(),
            is_hung: self.is_hung,
            doing: self.ticket.doing(),
            awaited: self.ticket.awaited(),
        }
    }
}

impl fmt::Display for JobView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rpc, seconds) = (self.rpc.name(), self.age.as_secs());
        write!(f, "{rpc} has been running for {seconds} s")?;
        match (self.awaited, self.doing) {
            (Some(awaited), _) => write!(f, ", waiting for {awaited}"),
            (None, Some(doing)) => write!(f, ", now in {doing}"),
            (None, None) => Ok(()),
        }
    }
}

/// The jobs of one service, for the totals and the list of all jobs in the process.
trait JobTable: Send + Sync {
    fn totals(&self) -> Totals;
    /// Returns the jobs with their keys.
    fn list(&self) -> Vec<(String, JobView)>;
}

/// Statistics of the jobs of a service or of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// The number of running jobs.
    pub(crate) running: u32,
    /// The number of jobs that have exceeded their deadline without visible progress.
    pub(crate) hung: u32,
    /// The number of bytes that jobs must still read, as far as the amount is known.
    pub(crate) left_bytes: u64,
    /// The age of the oldest job.
    pub(crate) oldest: Duration,
}

/// The job tables of the process. A program has a few tables, which exist until the program exits.
/// A test process has more.
static ALL: Lock<Vec<Weak<dyn JobTable>>> = Lock::new(Vec::new());

/// Includes this job table in all reports from now on.
pub(super) fn register<C: Class, T: Send + 'static>(running: &Arc<JobMap<C, T>>) {
    let running: Weak<JobMap<C, T>> = Arc::downgrade(running);
    let mut all = ALL.lock();
    all.retain(|jobs| jobs.strong_count() > 0);
    all.push(running);
}

pub(crate) fn describe() {
    metrics::describe_gauge!(RUNNING, "Running operations.");
    metrics::describe_gauge!(
        HUNG,
        "Operations that have exceeded their deadline and still run."
    );
    metrics::describe_gauge!(OLDEST, Unit::Seconds, "Age of the oldest operation.");
    metrics::describe_gauge!(
        LEFT,
        Unit::Bytes,
        "Bytes that operations must still read before they know whether a disk is blank."
    );
}

/// Returns the statistics of all jobs of this process.
pub(crate) fn totals() -> Totals {
    sum(&ALL.lock())
}

/// Sets the gauges.
pub(crate) fn measure() {
    let all = ALL.lock();
    show(&all);
}

fn sum(all: &[Weak<dyn JobTable>]) -> Totals {
    let mut sum = Totals::default();
    for jobs in all.iter().filter_map(Weak::upgrade) {
        let totals = jobs.totals();
        sum.running += totals.running;
        sum.hung += totals.hung;
        sum.left_bytes += totals.left_bytes;
        sum.oldest = sum.oldest.max(totals.oldest);
    }
    sum
}

fn show(all: &[Weak<dyn JobTable>]) {
    let sum = sum(all);
    metrics::gauge!(RUNNING).set(sum.running);
    metrics::gauge!(HUNG).set(sum.hung);
    metrics::gauge!(OLDEST).set(sum.oldest.as_secs_f64());
    // The value of a gauge is a floating-point number.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 8 PiB")]
    metrics::gauge!(LEFT).set(sum.left_bytes as f64);
}

impl<C: Class, T: Send> JobTable for JobMap<C, T> {
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        // A call that shares a key is already counted as a job, with a different key.
        for job in self.0.lock().values().filter(|job| job.sharers == 0) {
            totals.running += 1;
            totals.hung += u32::from(job.is_hung);
            if let Some(Amount { done, total }) = job.ticket.amount() {
                totals.left_bytes += total.saturating_sub(done);
            }
            totals.oldest = totals.oldest.max(job.since.elapsed());
        }
        totals
    }

    fn list(&self) -> Vec<(String, JobView)> {
        let running = self.0.lock();
        let jobs = running.iter().filter(|(_, job)| job.sharers == 0);
        jobs.map(|(key, job)| (key.to_string(), job.view()))
            .collect()
    }
}

/// Returns one line per job of this process, with the oldest job first. A line has the age in
/// seconds, the state, the call, the key and the current work, separated by tabs. The state is
/// `running`, `waiting` or `hung`; the work may be empty.
pub(crate) fn lines() -> String {
    let all = ALL.lock();
    let tables = all.iter().filter_map(Weak::upgrade);
    text(tables.flat_map(|table| table.list()).collect())
}

fn text(mut jobs: Vec<(String, JobView)>) -> String {
    jobs.sort_by_key(|(_, job)| std::cmp::Reverse(job.age));
    let mut lines = String::new();
    for (key, job) in jobs.iter().take(JOBS_MAX) {
        let state = match (job.is_hung, job.awaited) {
            (true, _) => "hung",
            (false, Some(_)) => "waiting",
            (false, None) => "running",
        };
        let awaited = job.awaited.map(str::to_owned);
        let work = awaited.or(job.doing.map(|doing| doing.to_string()));
        let work = work.unwrap_or_default();
        // The key contains text from a caller, which must not add lines to the report.
        let key = key.replace(char::is_control, "\u{fffd}");
        let (age, call) = (job.age.as_secs_f64(), job.rpc.name());
        // Writing to a String cannot fail.
        writeln!(lines, "{age:.1}\t{state}\t{call}\t{key}\t{work}").unwrap_or_default();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Failure;
    use crate::work::tests::{Plain, key};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::future::pending;
    use tokio::task::yield_now;

    type Jobs<T> = crate::work::Jobs<Plain, T>;

    struct Fixed(Totals);

    impl JobTable for Fixed {
        fn totals(&self) -> Totals {
            self.0
        }

        fn list(&self) -> Vec<(String, JobView)> {
            Vec::new()
        }
    }

    fn fixed(running: u32, hung: u32, seconds: u64) -> Arc<dyn JobTable> {
        Arc::new(Fixed(Totals {
            running,
            hung,
            left_bytes: u64::from(running) << 40,
            oldest: Duration::from_secs(seconds),
        }))
    }

    /// Returns the number of running and hung jobs, the remaining bytes, and the age of the oldest
    /// job, as the metrics page reports them.
    fn shown(measure: impl FnOnce()) -> [f64; 4] {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, measure);
        let page = recorder.handle().render();
        [
            "belay_jobs_running ",
            "belay_jobs_hung ",
            "belay_jobs_left_bytes ",
            "belay_jobs_oldest_age_seconds ",
        ]
        .map(|series| {
            let value = page.lines().find_map(|line| line.strip_prefix(series));
            let value = value.unwrap_or_else(|| panic!("{series} in {page}"));
            value.parse().unwrap()
        })
    }

    #[test]
    fn the_gauges_are_the_sums_of_all_jobs_and_the_age_of_the_oldest() {
        let (one, other, gone) = (fixed(5, 1, 7), fixed(3, 2, 4), fixed(9, 9, 9));
        let all = [&one, &gone, &other].map(Arc::downgrade);
        drop(gone);
        assert_eq!(shown(|| show(&all)), [8.0, 3.0, (8_u64 << 40) as f64, 7.0]);
        assert_eq!(shown(|| show(&[])), [0.0; 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_counted_while_it_runs_and_as_hung_beyond_its_deadline() {
        let jobs = Jobs::<()>::default();
        let counted = |jobs: &Jobs<()>| {
            let counted = jobs.running.totals();
            (counted.running, counted.hung)
        };
        assert_eq!(jobs.running.totals(), Totals::default());
        let begin = |id: &str| {
            let key = key(id);
            let jobs = jobs.clone();
            let work = |_| pending::<Result<(), Failure>>();
            tokio::spawn(async move { jobs.run(key, Rpc::NodeStageVolume, 0, work).await })
        };
        let hung = begin("vol-1");
        yield_now().await;
        assert_eq!(counted(&jobs), (1, 0));
        hung.await.unwrap().unwrap_err();
        begin("vol-2");
        yield_now().await;
        assert_eq!(counted(&jobs), (2, 1));
        assert!(jobs.running.totals().oldest > Duration::ZERO);
        // Other tests in this process may add further jobs.
        let [running, hung, _, oldest] = shown(measure);
        assert!(running >= 2.0 && hung >= 1.0 && oldest > 0.0);
    }

    fn job(seconds: u64, is_hung: bool, awaited: Option<&'static str>) -> JobView {
        JobView {
            rpc: Rpc::NodeStageVolume,
            age: Duration::from_secs(seconds),
            is_hung,
            doing: Some(Doing {
                step: "mount",
                amount: None,
            }),
            awaited,
        }
    }

    #[test]
    fn the_oldest_is_first_and_a_key_makes_no_lines() {
        let jobs = vec![
            ("a\tb\nc".to_owned(), job(1, false, None)),
            ("vol-2".to_owned(), job(200, true, None)),
            ("vol-3".to_owned(), job(3, false, Some("its disk"))),
        ];
        assert_eq!(
            text(jobs),
            "200.0\thung\tNodeStageVolume\tvol-2\tmount\n\
             3.0\twaiting\tNodeStageVolume\tvol-3\tits disk\n\
             1.0\trunning\tNodeStageVolume\ta\u{fffd}b\u{fffd}c\tmount\n"
        );
    }

    #[tokio::test]
    async fn a_job_is_listed_while_it_runs() {
        let jobs = Jobs::<()>::default();
        let key = key("listed-while-it-runs");
        let work = |_| pending::<Result<(), Failure>>();
        let running = jobs.clone();
        tokio::spawn(async move { running.run(key, Rpc::NodeStageVolume, 0, work).await });
        yield_now().await;
        // Other tests in this process may add further jobs.
        assert!(lines().contains("\trunning\tNodeStageVolume\tlisted-while-it-runs\t\n"));
    }
}
