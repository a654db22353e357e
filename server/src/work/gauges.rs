//! How many jobs run and how old they are, counted only when the metrics are read.

use super::list::Listed;
use super::{Amount, Class, Running};
use metrics::Unit;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Gauge: running jobs.
const RUNNING: &str = "belay_jobs_running";
/// Gauge: jobs beyond their deadline.
const HUNG: &str = "belay_jobs_hung";
/// Gauge: the age of the oldest job in seconds; 0 while none runs.
const OLDEST: &str = "belay_jobs_oldest_age_seconds";
/// Gauge: bytes that running jobs have still to read, as far as they know.
const LEFT: &str = "belay_jobs_left_bytes";

pub(super) trait Count: Send + Sync {
    fn count(&self) -> Counted;
    fn list(&self) -> Vec<Listed>;
}

/// The jobs of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// All of them.
    pub(crate) running: u32,
    /// Those that are past their deadline, without headway.
    pub(crate) hung: u32,
    /// What they have still to do, as far as they know.
    pub(crate) left_bytes: u64,
    /// The age of the oldest.
    pub(crate) oldest: Duration,
}

/// A process has a few of these, for its whole run time; tests have more.
static ALL: Mutex<Vec<Weak<dyn Count>>> = Mutex::new(Vec::new());

/// Counts these jobs from now on.
pub(super) fn count<C: Class, T: Send + 'static>(running: &Arc<Running<C, T>>) {
    let running: Weak<Running<C, T>> = Arc::downgrade(running);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The jobs of this process.
pub(crate) fn counted() -> Counted {
    sum(&ALL.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Visits all jobs of this process.
pub(super) fn for_all(mut visit: impl FnMut(&dyn Count)) {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    for jobs in all.iter().filter_map(Weak::upgrade) {
        visit(&*jobs);
    }
}

/// Sets the gauges.
pub(crate) fn measure() {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    show(&all);
}

fn sum(all: &[Weak<dyn Count>]) -> Counted {
    let mut sum = Counted::default();
    for jobs in all.iter().filter_map(Weak::upgrade) {
        let counted = jobs.count();
        sum.running += counted.running;
        sum.hung += counted.hung;
        sum.left_bytes += counted.left_bytes;
        sum.oldest = sum.oldest.max(counted.oldest);
    }
    sum
}

fn show(all: &[Weak<dyn Count>]) {
    let sum = sum(all);
    metrics::gauge!(RUNNING).set(sum.running);
    metrics::gauge!(HUNG).set(sum.hung);
    metrics::gauge!(OLDEST).set(sum.oldest.as_secs_f64());
    // A gauge is a floating-point number.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 8 PiB")]
    metrics::gauge!(LEFT).set(sum.left_bytes as f64);
}

impl<C: Class, T: Send> Count for Running<C, T> {
    fn count(&self) -> Counted {
        let mut counted = Counted::default();
        // Sharers of a key are counted by their own jobs.
        for job in self.lock().values().filter(|job| job.sharers == 0) {
            counted.running += 1;
            counted.hung += u32::from(job.is_hung);
            if let Some(Amount { done, total }) = job.ticket.amount() {
                counted.left_bytes += total.saturating_sub(done);
            }
            counted.oldest = counted.oldest.max(job.since.elapsed());
        }
        counted
    }

    fn list(&self) -> Vec<Listed> {
        let running = self.lock();
        let jobs = running.iter().filter(|(_, job)| job.sharers == 0);
        jobs.map(|(key, job)| (key.to_string(), job.view()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Failure, Rpc};
    use crate::work::tests::{Plain, key};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::future::pending;
    use tokio::task::yield_now;

    type Jobs<T> = crate::work::Jobs<Plain, T>;

    struct Fixed(Counted);

    impl Count for Fixed {
        fn count(&self) -> Counted {
            self.0
        }

        fn list(&self) -> Vec<Listed> {
            Vec::new()
        }
    }

    fn fixed(running: u32, hung: u32, seconds: u64) -> Arc<dyn Count> {
        Arc::new(Fixed(Counted {
            running,
            hung,
            left_bytes: u64::from(running) << 40,
            oldest: Duration::from_secs(seconds),
        }))
    }

    /// Running, hung, bytes left, and the age of the oldest, as on the page.
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
            let counted = jobs.running.count();
            (counted.running, counted.hung)
        };
        assert_eq!(jobs.running.count(), Counted::default());
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
        assert!(jobs.running.count().oldest > Duration::ZERO);
        // Other tests in this process may have more.
        let [running, hung, _, oldest] = shown(measure);
        assert!(running >= 2.0 && hung >= 1.0 && oldest > 0.0);
    }
}
