//! Parses the `/metrics` of a program.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use belay_bed::scrape::{get, sample};

use crate::trouble::Trouble;

/// The latency metric of the call layer.
const LATENCY: &str = "belay_rpc_duration_seconds";
/// The metric for the phases of the node agent's operations.
const PHASES: &str = "belay_operation_phase_duration_seconds";

/// The calls of one RPC, all codes together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    pub(crate) count: f64,
    pub(crate) seconds: f64,
}

impl Calls {
    /// The mean of one call.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / self.count.max(1.0))
    }
}

/// The text of `/metrics`.
///
/// # Errors
/// The program does not answer, or not with 200.
pub(crate) fn metrics(http: SocketAddr) -> Result<String, Trouble> {
    let what = format!("http://{http}/metrics");
    match get(http, "/metrics").map_err(|error| Trouble::own(&what, error))? {
        (200, page) => Ok(page),
        (status, _) => Err(Trouble::Untrue(format!("{what} answered {status}"))),
    }
}

/// Calls by RPC.
pub(crate) fn by_rpc(metrics: &str) -> BTreeMap<String, Calls> {
    totals(metrics, LATENCY, |labels| {
        label(labels, "rpc").map(ToOwned::to_owned)
    })
}

/// The phases of each operation, by total time, the longest first.
pub(crate) fn by_operation(metrics: &str) -> BTreeMap<String, Vec<(String, Calls)>> {
    let both = totals(metrics, PHASES, |labels| {
        let [operation, phase] = ["operation", "phase"].map(|name| label(labels, name));
        Some((operation?.to_owned(), phase?.to_owned()))
    });
    let mut operations: BTreeMap<String, Vec<(String, Calls)>> = BTreeMap::new();
    for ((operation, phase), calls) in both {
        operations
            .entry(operation)
            .or_default()
            .push((phase, calls));
    }
    for phases in operations.values_mut() {
        phases.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    }
    operations
}

/// The samples of a histogram, added up by the selected labels.
fn totals<K: Ord>(
    metrics: &str,
    histogram: &str,
    key: impl Fn(&str) -> Option<K>,
) -> BTreeMap<K, Calls> {
    let mut all: BTreeMap<K, Calls> = BTreeMap::new();
    for (name, labels, value) in metrics.lines().filter_map(sample) {
        let Some(key) = key(labels) else {
            continue;
        };
        match name.strip_prefix(histogram) {
            Some("_count") => all.entry(key).or_default().count += value,
            Some("_sum") => all.entry(key).or_default().seconds += value,
            _ => {}
        }
    }
    all
}

/// Every other sample of Belay, as name with labels, and value.
pub(crate) fn others(metrics: &str) -> Vec<(String, f64)> {
    let reported = |name: &str| name.starts_with(LATENCY) || name.starts_with(PHASES);
    let ours = |name: &str| name.starts_with("belay_") && !reported(name);
    // For histograms, only count and sum.
    let brief = |name: &str| !name.ends_with("_bucket");
    metrics
        .lines()
        .filter_map(sample)
        .filter(|(name, labels, _)| {
            ours(name) && brief(name) && label(labels, "quantile").is_none()
        })
        .map(|(name, labels, value)| match labels {
            "" => (name.to_owned(), value),
            labels => (format!("{name}{{{labels}}}"), value),
        })
        .collect()
}

/// The value of one label.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|pair| {
        pair.strip_prefix(name)?
            .strip_prefix("=\"")?
            .strip_suffix('"')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE belay_rpc_duration_seconds histogram
belay_rpc_duration_seconds_bucket{rpc=\"NodeStageVolume\",code=\"OK\",le=\"0.1\"} 4
belay_rpc_duration_seconds_sum{rpc=\"NodeStageVolume\",code=\"OK\"} 0.5
belay_rpc_duration_seconds_count{rpc=\"NodeStageVolume\",code=\"OK\"} 4
belay_rpc_duration_seconds_sum{rpc=\"NodeStageVolume\",code=\"ABORTED\"} 0.25
belay_rpc_duration_seconds_count{rpc=\"NodeStageVolume\",code=\"ABORTED\"} 1
belay_operation_phase_duration_seconds_sum{operation=\"stage\",phase=\"look\"} 0.5
belay_operation_phase_duration_seconds_count{operation=\"stage\",phase=\"look\"} 2
belay_operation_phase_duration_seconds_sum{operation=\"stage\",phase=\"mount\"} 4
belay_operation_phase_duration_seconds_count{operation=\"stage\",phase=\"mount\"} 1
belay_formats_total{fs=\"ext4\"} 3
belay_jobs_running 0
process_cpu_seconds 7
";

    #[test]
    fn calls_of_one_rpc_are_added_up_over_its_codes() {
        let calls = by_rpc(TEXT);
        assert_eq!(calls.len(), 1);
        assert_eq!(
            calls["NodeStageVolume"],
            Calls {
                count: 5.0,
                seconds: 0.75
            }
        );
    }

    #[test]
    fn the_phase_that_took_longest_in_all_comes_first() {
        let operations = by_operation(TEXT);
        assert_eq!(operations.len(), 1);
        let phases: Vec<_> = operations["stage"].iter().map(|(name, _)| name).collect();
        assert_eq!(phases, ["mount", "look"]);
        assert!((operations["stage"][1].1.mean().as_secs_f64() - 0.25).abs() < 1e-9);
    }

    #[test]
    fn other_metrics_of_ours_are_kept_and_strangers_are_not() {
        let expected = [
            ("belay_formats_total{fs=\"ext4\"}".to_owned(), 3.0),
            ("belay_jobs_running".to_owned(), 0.0),
        ];
        assert_eq!(others(TEXT), expected);
    }
}
