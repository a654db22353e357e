//! How many jobs run and how old they are, counted when somebody asks: a job costs nothing for it.

use super::Running;
use metrics::Unit;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Gauge: jobs that run.
const RUNNING: &str = "belay_jobs_running";
/// Gauge: those of them that are past their deadline.
const HUNG: &str = "belay_jobs_hung";
/// Gauge: the age of the oldest job in seconds; 0 while none runs.
const OLDEST: &str = "belay_jobs_oldest_age_seconds";

trait Count: Send + Sync {
    fn count(&self) -> Counted;
}

#[derive(Default)]
struct Counted {
    running: u32,
    hung: u32,
    oldest: Duration,
}

/// A process has a handful of these, for as long as it lives; tests have more.
static ALL: Mutex<Vec<Weak<dyn Count>>> = Mutex::new(Vec::new());

/// These jobs are counted from now on.
pub(super) fn count<T: Send + 'static>(running: &Arc<Running<T>>) {
    let running: Weak<Running<T>> = Arc::downgrade(running);
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|jobs| jobs.strong_count() > 0);
    all.push(running);
}

pub(crate) fn describe() {
    metrics::describe_gauge!(RUNNING, "Operations that are going on.");
    metrics::describe_gauge!(HUNG, "Operations that are past their deadline and go on.");
    metrics::describe_gauge!(OLDEST, Unit::Seconds, "Age of the oldest operation.");
}

/// Sets the gauges.
pub(crate) fn measure() {
    let mut sum = Counted::default();
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    for jobs in all.iter().filter_map(Weak::upgrade) {
        let counted = jobs.count();
        sum.running += counted.running;
        sum.hung += counted.hung;
        sum.oldest = sum.oldest.max(counted.oldest);
    }
    drop(all);
    metrics::gauge!(RUNNING).set(sum.running);
    metrics::gauge!(HUNG).set(sum.hung);
    metrics::gauge!(OLDEST).set(sum.oldest.as_secs_f64());
}

impl<T: Send> Count for Running<T> {
    fn count(&self) -> Counted {
        let mut counted = Counted::default();
        for job in self.lock().values() {
            counted.running += 1;
            counted.hung += u32::from(job.is_hung);
            counted.oldest = counted.oldest.max(job.since.elapsed());
        }
        counted
    }
}
