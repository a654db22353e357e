//! The state of one driver at one moment.

use crate::command::ls::DriverSocket;
use crate::machine::mounts::Mount;
use crate::machine::pages::{Page, quantile};
use crate::render::Cell;

const CALLS: &str = "belay_rpc_duration_seconds";

/// All columns; a narrow table has the first [`NARROW`] of them.
pub(super) const COLUMNS: [&str; 13] = [
    "driver",
    "serves",
    "ready",
    "staged",
    "hung",
    "unhealthy",
    "p50_ms",
    "p99_ms",
    "failed",
    "registered",
    "oldest_s",
    "free_bytes",
    "socket",
];
pub(super) const NARROW: usize = 9;

/// The state of a driver, from its socket, its metrics and the mounts.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    pub(super) found: DriverSocket,
    /// The number of the kubelet's staging mounts, which do not include staged raw devices.
    pub(super) staged: usize,
    pub(super) registered: Option<bool>,
    pub(super) hung: Option<i64>,
    pub(super) oldest: Option<i64>,
    pub(super) unhealthy: Option<i64>,
    pub(super) failed: Option<i64>,
    /// Quantiles of the latency in milliseconds: upper bounds of the histogram's buckets.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) free: Option<i64>,
}

impl Driver {
    pub(super) fn new(found: DriverSocket, page: &Page, mounts: &[Mount]) -> Self {
        let label = ("driver", found.driver.as_str());
        let own = |name: &str| page.sum(name, Some(label)).map(whole);
        let all = |name: &str| page.sum(name, None).map(whole);
        let calls = page.histogram(CALLS, label);
        let count = format!("{CALLS}_count");
        let failed = page
            .of(&count, Some(label))
            .filter(|sample| sample.labels.get("code").is_some_and(|code| code != "OK"));
        let failed: f64 = failed.map(|sample| sample.value).sum();
        let below = format!("/kubernetes.io/csi/{}/", found.driver);
        let staged = mounts.iter().filter(|mount| {
            let point = mount.point.to_string_lossy();
            point.contains(&below) && point.ends_with("/globalmount")
        });
        let is_node = found.serves.iter().any(|name| name == "node");
        Self {
            staged: if is_node { staged.count() } else { 0 },
            registered: own("belay_kubelet_registered").map(|value| value == 1),
            hung: all("belay_jobs_hung"),
            oldest: all("belay_jobs_oldest_age_seconds"),
            unhealthy: own("belay_volumes_unhealthy"),
            failed: (!calls.is_empty()).then(|| whole(failed)),
            p50: quantile(&calls, 0.5).map(|seconds| seconds * 1000.0),
            p99: quantile(&calls, 0.99).map(|seconds| seconds * 1000.0),
            free: own("belay_storage_free_bytes"),
            found,
        }
    }

    /// Whether the driver is ready, and nothing is hung or unhealthy.
    pub(super) fn is_good(&self) -> bool {
        let none = |count: Option<i64>| count.unwrap_or(0) == 0;
        self.found.trouble.is_empty()
            && self.found.ready != Some(false)
            && none(self.hung)
            && none(self.unhealthy)
            && self.registered != Some(false)
    }

    /// Returns `yes`, `no`, or the reason why the driver does not answer.
    pub(super) fn ready(&self) -> String {
        match self.found.ready {
            _ if !self.found.trouble.is_empty() => self.found.trouble.clone(),
            Some(true) => "yes".to_owned(),
            Some(false) => "no".to_owned(),
            None => String::new(),
        }
    }

    /// Returns the cells in the order of [`COLUMNS`].
    pub(super) fn cells(&self) -> Vec<Cell> {
        let number = |number: Option<i64>| number.map_or(Cell::Text(String::new()), Cell::Number);
        let time = |time: Option<f64>| Cell::Text(time.map(milliseconds).unwrap_or_default());
        let free = self.free.map_or(Cell::Text(String::new()), Cell::Bytes);
        let registered = self
            .registered
            .map_or(Cell::Text(String::new()), Cell::Flag);
        vec![
            Cell::Text(self.found.driver.clone()),
            Cell::List(self.found.serves.clone()),
            Cell::Text(self.ready()),
            Cell::Number(i64::try_from(self.staged).unwrap_or(i64::MAX)),
            number(self.hung),
            number(self.unhealthy),
            time(self.p50),
            time(self.p99),
            number(self.failed),
            registered,
            number(self.oldest),
            free,
            Cell::Text(self.found.socket.display().to_string()),
        ]
    }
}

/// Formats a latency: `0.5`, `25`, or `>10000` if it is above the last bound.
pub(super) fn milliseconds(time: f64) -> String {
    match time {
        time if time.is_infinite() => ">".to_owned(),
        time if time < 10.0 => format!("{time:.1}"),
        time => format!("{time:.0}"),
    }
}

/// Converts a metric that counts; it is far below 2^53, up to which an f64 is exact.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` saturates, which is what is shown"
)]
fn whole(value: f64) -> i64 {
    value as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(page: &str) -> Driver {
        let found = DriverSocket {
            driver: "d".to_owned(),
            ready: Some(true),
            ..DriverSocket::default()
        };
        Driver::new(found, &Page::parse(page), &[])
    }

    #[test]
    fn the_page_of_a_driver_is_read() {
        let driver = driver(
            "belay_jobs_hung 2\n\
             belay_volumes_unhealthy{driver=\"d\",reason=\"A\"} 1\n\
             belay_volumes_unhealthy{driver=\"e\",reason=\"A\"} 5\n\
             belay_rpc_duration_seconds_bucket{driver=\"d\",code=\"OK\",le=\"0.001\"} 3\n\
             belay_rpc_duration_seconds_bucket{driver=\"d\",code=\"OK\",le=\"+Inf\"} 3\n\
             belay_rpc_duration_seconds_count{driver=\"d\",code=\"OK\"} 3\n\
             belay_rpc_duration_seconds_count{driver=\"d\",code=\"NOT_FOUND\"} 1\n",
        );
        assert_eq!((driver.hung, driver.unhealthy), (Some(2), Some(1)));
        assert_eq!(driver.failed, Some(1));
        assert_eq!(driver.p99.map(milliseconds).as_deref(), Some("1.0"));
        assert!(!driver.is_good());
    }

    #[test]
    fn a_driver_without_metrics_is_good_if_it_is_ready() {
        assert!(driver("").is_good());
        assert_eq!(driver("").hung, None);
    }
}
