//! The number and the duration of CSI calls, parsed from the metrics page for the status page.

use crate::call::DURATION;
use std::collections::BTreeMap;
use std::time::Duration;

/// The calls of one RPC of one driver since the process started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    /// Number of calls that returned OK.
    pub(crate) succeeded: u64,
    /// Number of calls that returned a code other than OK.
    pub(crate) failed: u64,
    /// Upper bounds of the histogram's buckets in seconds, each with the number of successful calls
    /// whose duration was at most the bound.
    buckets: Vec<(f64, u64)>,
}

impl Calls {
    /// Returns an upper bound of the duration of successful calls: the given share of them (from 0
    /// to 1) took at most this time. Returns `None` if no call succeeded, or if the duration
    /// exceeds the last finite bound.
    pub(crate) fn within(&self, share: f64) -> Option<Duration> {
        let wanted = self.succeeded as f64 * share;
        let mut reached = self.buckets.iter().filter(|(_, count)| *count > 0);
        let bound = reached.find(|(_, count)| *count as f64 >= wanted);
        bound.and_then(|(bound, _)| Duration::try_from_secs_f64(*bound).ok())
    }
}

/// Parses the statistics of calls, by driver and RPC, from `page` in the text format of Prometheus.
pub(crate) fn calls(page: &str) -> BTreeMap<(String, String), Calls> {
    let mut all: BTreeMap<_, Calls> = BTreeMap::new();
    for line in page.lines() {
        let sample = line.strip_prefix(DURATION).and_then(|rest| {
            let (kind, rest) = rest.split_once('{')?;
            let (labels, count) = rest.split_once("} ")?;
            Some((kind, labels, count.parse().ok()?))
        });
        let Some((kind, labels, count)) = sample else {
            continue;
        };
        let value = |name| label(labels, name).unwrap_or_default();
        let calls = all.entry((value("driver"), value("rpc"))).or_default();
        match (kind, value("code") == "OK") {
            ("_count", true) => calls.succeeded += count,
            ("_count", false) => calls.failed += count,
            ("_bucket", true) => {
                let bound = value("le").parse().unwrap_or(f64::INFINITY);
                calls.buckets.push((bound, count));
            }
            _ => {}
        }
    }
    all
}

/// Returns the value of a label. The value needs no unescaping, since the names of drivers, RPCs
/// and codes contain no escaped characters.
fn label(labels: &str, name: &str) -> Option<String> {
    let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_and_timed_by_driver_and_rpc() {
        let line = |kind: &str, driver: &str, code: &str, bound: &str, count: u64| {
            let labels = format!("driver=\"{driver}\",rpc=\"Probe\",code=\"{code}\"{bound}");
            format!("{DURATION}_{kind}{{{labels}}} {count}\n")
        };
        let page = [
            format!("# TYPE {DURATION} histogram\n"),
            line("bucket", "a", "OK", ",le=\"0.001\"", 98),
            line("bucket", "a", "OK", ",le=\"0.1\"", 100),
            line("bucket", "a", "OK", ",le=\"+Inf\"", 100),
            line("count", "a", "OK", "", 100),
            line("bucket", "a", "ABORTED", ",le=\"0.1\"", 2),
            line("count", "a", "ABORTED", "", 2),
            line("bucket", "b", "OK", ",le=\"0.1\"", 0),
            line("bucket", "b", "OK", ",le=\"+Inf\"", 1),
            line("count", "b", "OK", "", 1),
            "other{driver=\"c\"} 1\n".to_owned(),
        ];
        let all = calls(&page.concat());
        let of = |driver: &str| &all[&(driver.to_owned(), "Probe".to_owned())];
        assert_eq!(all.len(), 2);
        assert_eq!((of("a").succeeded, of("a").failed), (100, 2));
        assert_eq!(of("a").within(0.5), Some(Duration::from_millis(1)));
        assert_eq!(of("a").within(0.99), Some(Duration::from_millis(100)));
        assert_eq!(of("b").within(0.5), None, "longer than every bound");
        assert_eq!(Calls::default().within(0.5), None);
    }
}
