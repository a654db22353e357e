//! The metrics of this process in Prometheus' text form. Whoever measures something declares it
//! where it happens; here is only where it all ends up.

use crate::layer;
use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Upper bounds of the histograms, in seconds: from a call answered out of the kernel's memory to
/// one that waits for a cloud.
const BUCKETS: [f64; 20] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
];

/// The recorder is one a process, as that of the `metrics` crate is.
static INSTALLED: Mutex<Option<Metrics>> = Mutex::new(None);

/// What has been measured so far.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
}

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The list of buckets is not in order.
    #[error("cannot set up the histograms")]
    Buckets(#[from] metrics_exporter_prometheus::BuildError),
    /// Somebody else's.
    #[error("another metrics recorder is installed already")]
    Taken,
}

/// Begins to measure; what was asked for before is lost. The second time it does nothing.
///
/// # Errors
/// See [`MetricsError`].
pub fn install() -> Result<Metrics, MetricsError> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(installed) = &*installed {
        return Ok(installed.clone());
    }
    let seconds = Matcher::Suffix("_seconds".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &BUCKETS)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| MetricsError::Taken)?;
    describe();
    Ok(installed.insert(Metrics { handle }).clone())
}

impl Metrics {
    /// Everything, in the text format of Prometheus (version 0.0.4).
    #[must_use]
    pub fn render(&self) -> String {
        measure_process();
        self.handle.render()
    }

    /// Sorts what has been measured into the buckets; else it piles up until somebody looks.
    pub(crate) fn tidy(&self) {
        self.handle.run_upkeep();
    }
}

fn describe() {
    metrics::describe_histogram!(layer::DURATION, Unit::Seconds, "How long CSI calls took.");
    metrics::describe_gauge!("belay_jobs_running", "Operations that are going on.");
    metrics::describe_gauge!(
        START_TIME,
        Unit::Seconds,
        "When the process began, since 1970."
    );
    metrics::describe_gauge!(RESIDENT, Unit::Bytes, "Resident memory.");
    metrics::describe_gauge!(OPEN_FDS, "Open file descriptors.");
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    metrics::gauge!(START_TIME).set(since_1970.as_secs_f64());
}

// The names that all Prometheus clients use for these.
const START_TIME: &str = "process_start_time_seconds";
const RESIDENT: &str = "process_resident_memory_bytes";
const OPEN_FDS: &str = "process_open_fds";

/// Read when asked for. What cannot be read keeps its last value.
fn measure_process() {
    if let Some(bytes) = resident_bytes() {
        metrics::gauge!(RESIDENT).set(bytes);
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        // Less the one that reads the folder.
        let open = u32::try_from(fds.count())
            .unwrap_or(u32::MAX)
            .saturating_sub(1);
        metrics::gauge!(OPEN_FDS).set(open);
    }
}

/// The second field of /proc/self/statm, which counts pages (proc_pid_statm(5)).
fn resident_bytes() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split(' ').nth(1)?.parse().ok()?;
    let page_bytes = u32::try_from(rustix::param::page_size()).ok()?;
    Some(pages * f64::from(page_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_install_shows_what_the_first_one_measured() {
        let first = install().unwrap();
        metrics::histogram!("belay_test_seconds").record(0.000_15);
        let text = install().unwrap().render();
        assert_eq!(
            text.matches("belay_test_seconds_count 1").count(),
            1,
            "{text}"
        );
        assert!(
            text.contains("belay_test_seconds_bucket{le=\"0.0001\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("belay_test_seconds_bucket{le=\"0.0002\"} 1"),
            "{text}"
        );
        for name in [START_TIME, RESIDENT, OPEN_FDS] {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            assert!(
                value.unwrap().parse::<f64>().unwrap() > 0.0,
                "{name} in {text}"
            );
        }
        first.tidy();
    }
}
