//! The metrics of this process in Prometheus' text format. Each metric is declared in the module
//! that measures it.

mod calls;
mod process;

pub(crate) use calls::Calls;

use crate::config::ProcessArgs;
use crate::identity::DriverName;
use crate::lock::Lock;
use crate::{call, log, work};
use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeMap;

/// Upper bounds of the histograms, in seconds: from a call that needs no I/O to a mkfs of a large
/// volume.
const BOUNDS: [f64; 22] = [
    0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];

/// The metrics of the process; `None` until they are installed. The crate `metrics` also allows
/// only one recorder per process.
static INSTALLED: Lock<Option<Metrics>> = Lock::new(None);

/// Functions that take measurements whenever the metrics are read.
static WHEN_ASKED: Lock<Vec<Box<dyn Fn() + Send>>> = Lock::new(Vec::new());

/// Runs `measure` whenever the metrics are read, for as long as the process runs.
pub fn when_asked(measure: impl Fn() + Send + 'static) {
    let mut all = WHEN_ASKED.lock();
    all.push(Box::new(measure));
}

/// A handle to all metrics of the process.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
}

/// The reason why metrics cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The bounds of the histograms are not in ascending order.
    #[error("cannot set up the histograms")]
    Bounds(#[from] metrics_exporter_prometheus::BuildError),
    /// Another recorder is installed.
    #[error("another metrics recorder is installed already")]
    Taken,
}

/// Starts measuring if an HTTP address is configured, and reports the program's `version` and
/// drivers. Call this function before anything is measured.
///
/// # Errors
/// Returns a [`MetricsError`] if the metrics cannot be set up.
pub fn begin<'a>(
    process: &ProcessArgs,
    drivers: impl IntoIterator<Item = &'a DriverName>,
    version: &'static str,
) -> Result<(), MetricsError> {
    const BUILD_INFO: &str = "belay_build_info";
    if process.http_endpoint.is_none() {
        return Ok(());
    }
    install()?;
    metrics::describe_gauge!(
        BUILD_INFO,
        "Version, revision and drivers of this program, as labels; always 1."
    );
    // Only release builds set the revision; otherwise each commit would recompile every program.
    let revision = option_env!("BELAY_REVISION").unwrap_or_default();
    for driver in drivers {
        let labels = [
            ("version", version.to_owned()),
            ("revision", revision.to_owned()),
            ("driver", driver.to_string()),
        ];
        metrics::gauge!(BUILD_INFO, &labels).set(1);
    }
    Ok(())
}

/// Installs the recorder of the metrics; earlier measurements are lost. A second call does nothing.
///
/// # Errors
/// Returns a [`MetricsError`] if the metrics cannot be set up.
pub fn install() -> Result<Metrics, MetricsError> {
    let mut installed = INSTALLED.lock();
    if let Some(installed) = &*installed {
        return Ok(installed.clone());
    }
    let seconds = Matcher::Suffix("_seconds".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &BOUNDS)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| MetricsError::Taken)?;
    metrics::describe_histogram!(call::DURATION, Unit::Seconds, "Duration of CSI calls.");
    work::describe();
    log::describe();
    Ok(installed.insert(Metrics { handle }).clone())
}

impl Metrics {
    /// Returns all metrics in the text format of Prometheus (version 0.0.4), always in the same
    /// order.
    #[must_use]
    pub fn render(&self) -> String {
        work::measure();
        log::measure();
        let all = WHEN_ASKED.lock();
        all.iter().for_each(|measure| measure());
        drop(all);
        let mut page = sorted(&self.handle.render());
        process::write(&mut page);
        page
    }
}

/// Sorts a page of metrics by name and labels. The recorder's order differs from process to
/// process.
fn sorted(page: &str) -> String {
    let families = page
        .split("\n\n")
        .filter(|family| !family.trim().is_empty());
    let mut families: Vec<&str> = families.collect();
    families.sort_by_key(|family| family.split(' ').nth(2));
    let mut text = String::with_capacity(page.len());
    for family in families {
        let (comments, mut samples): (Vec<_>, Vec<_>) =
            family.lines().partition(|line| line.starts_with('#'));
        // The sort is stable, so that the buckets of a histogram keep their order, followed by the
        // sum and the count.
        samples.sort_by_key(|sample| series(sample));
        for line in comments.iter().chain(&samples) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Returns the labels of a sample, without the bound of a bucket, which is the last label.
fn series(sample: &str) -> &str {
    let labels = sample.split_once('{').map_or("", |(_, labels)| labels);
    let labels = labels.rsplit_once('}').map_or("", |(labels, _)| labels);
    match labels.rsplit_once("le=\"") {
        Some((others, _)) => others.trim_end_matches(','),
        None => labels,
    }
}

/// Returns the statistics of the calls since the process started, by driver and RPC. The map is
/// empty if metrics are off.
pub(crate) fn calls() -> BTreeMap<(String, String), Calls> {
    let installed = INSTALLED.lock();
    let handle = installed.as_ref().map(|metrics| metrics.handle.clone());
    drop(installed);
    handle.map_or_else(BTreeMap::new, |handle| calls::calls(&handle.render()))
}

/// Moves pending measurements into the buckets of their histograms. If this function is not called,
/// the measurements accumulate in memory until the metrics are read.
pub(crate) fn tidy() {
    let installed = INSTALLED.lock();
    let handle = installed.as_ref().map(|metrics| metrics.handle.clone());
    drop(installed);
    if let Some(handle) = handle {
        handle.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_sorted_and_the_buckets_stay_in_order() {
        let page = "# TYPE b gauge\nb{x=\"2\"} 1\nb{x=\"1\"} 2\n\n\
            # HELP a Help.\n# TYPE a histogram\n\
            a_bucket{x=\"2\",le=\"9\"} 0\na_bucket{x=\"2\",le=\"10\"} 1\na_sum{x=\"2\"} 9\n\
            a_count{x=\"2\"} 1\na_bucket{x=\"1\",le=\"9\"} 1\na_count{x=\"1\"} 1\n\n";
        let expected = "# HELP a Help.\n# TYPE a histogram\n\
            a_bucket{x=\"1\",le=\"9\"} 1\na_count{x=\"1\"} 1\n\
            a_bucket{x=\"2\",le=\"9\"} 0\na_bucket{x=\"2\",le=\"10\"} 1\na_sum{x=\"2\"} 9\n\
            a_count{x=\"2\"} 1\n# TYPE b gauge\nb{x=\"1\"} 2\nb{x=\"2\"} 1\n";
        assert_eq!(sorted(page), expected);
    }

    #[test]
    fn a_second_install_shows_what_the_first_one_measured() {
        install().unwrap();
        metrics::histogram!("belay_test_seconds").record(0.000_15);
        let text = install().unwrap().render();
        let count = text.matches("belay_test_seconds_count 1").count();
        assert_eq!(count, 1, "{text}");
        assert!(text.contains("\nprocess_open_fds "), "{text}");
    }
}
