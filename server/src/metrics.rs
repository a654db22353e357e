//! The metrics of this process in Prometheus' text form. Whoever measures something declares it
//! where it happens; here is only where it all ends up.

mod process;

use crate::config::ProcessArgs;
use crate::identity::DriverName;
use crate::{call, log, work};
use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::{Mutex, PoisonError};

/// Upper bounds of the histograms, in seconds: from a call answered out of the kernel's memory to
/// a mkfs of a large volume.
const BOUNDS: [f64; 22] = [
    0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];

/// The recorder is one a process, as that of the `metrics` crate is.
static INSTALLED: Mutex<Option<Metrics>> = Mutex::new(None);

/// What is measured only when somebody asks.
static WHEN_ASKED: Mutex<Vec<Box<dyn Fn() + Send>>> = Mutex::new(Vec::new());

/// Sets gauges by `measure` whenever the metrics are asked for, for as long as the process lives.
pub fn when_asked(measure: impl Fn() + Send + 'static) {
    let mut all = WHEN_ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Box::new(measure));
}

/// What has been measured so far.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
}

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The list of bounds is not in order.
    #[error("cannot set up the histograms")]
    Bounds(#[from] metrics_exporter_prometheus::BuildError),
    /// Somebody else's.
    #[error("another metrics recorder is installed already")]
    Taken,
}

/// Begins to measure if it is to be shown, and says what runs: program `version` for the drivers.
/// To be called before there is anything to measure.
///
/// # Errors
/// See [`MetricsError`].
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
    metrics::describe_gauge!(BUILD_INFO, "What runs: always 1, the labels tell.");
    for driver in drivers {
        metrics::gauge!(BUILD_INFO, "version" => version, "driver" => driver.to_string()).set(1);
    }
    Ok(())
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
        .set_buckets_for_metric(seconds, &BOUNDS)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| MetricsError::Taken)?;
    metrics::describe_histogram!(call::DURATION, Unit::Seconds, "How long CSI calls took.");
    work::describe();
    log::describe();
    Ok(installed.insert(Metrics { handle }).clone())
}

impl Metrics {
    /// Everything, in the text format of Prometheus (version 0.0.4).
    #[must_use]
    pub fn render(&self) -> String {
        work::measure();
        log::measure();
        let all = WHEN_ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|measure| measure());
        drop(all);
        let mut page = self.handle.render();
        process::write(&mut page);
        page
    }

    /// Sorts what has been measured into the buckets; else it piles up until somebody looks.
    pub(crate) fn tidy(&self) {
        self.handle.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
