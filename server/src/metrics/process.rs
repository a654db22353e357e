//! The standard process metrics of Prometheus clients, under their usual names. The values are read
//! when the metrics are requested, and values that cannot be read are omitted.

use rustix::process::Resource;
use std::fmt::Display;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes all process metrics.
pub(super) fn write(page: &mut String) {
    if let Some(stat) = Stat::read() {
        let mut value = |name, kind, help, value| family(page, name, kind, help, value);
        value(
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent.",
            stat.cpu_seconds,
        );
        value(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size.",
            stat.resident_bytes,
        );
        value(
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory size.",
            stat.virtual_bytes,
        );
        value(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since the Unix epoch.",
            stat.start_time_seconds,
        );
        value("process_threads", "gauge", "Threads.", stat.threads);
    }
    if let Some(open) = open_fds() {
        let help = "Number of open file descriptors.";
        family(page, "process_open_fds", "gauge", help, open);
    }
    // The metric is omitted if the process has no such limit.
    if let Some(most) = rustix::process::getrlimit(Resource::Nofile).current {
        let help = "Maximum number of open file descriptors.";
        family(page, "process_max_fds", "gauge", help, most);
    }
}

/// Writes a metric in the text format of Prometheus (version 0.0.4).
fn family(page: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    let value = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    page.push_str(&value);
}

/// The fields of /proc/self/stat (proc_pid_stat(5)).
struct Stat {
    cpu_seconds: f64,
    threads: f64,
    start_time_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The second field, the program's name in parentheses, may contain anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Stat {
            cpu_seconds: (field(14)? + field(15)?) / ticks_per_second(),
            threads: field(20)?,
            start_time_seconds: start_time_seconds(field(22)?)?,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
        })
    }
}

/// Returns the start time of the process, in seconds since the Unix epoch. The time is computed
/// only once, since the wall clock may be set later.
///
/// Does not use rustix's `clock_gettime`, which panics once if the vDSO has no such function, as in
/// User-mode Linux 7.
fn start_time_seconds(ticks_after_boot: f64) -> Option<f64> {
    static START: OnceLock<f64> = OnceLock::new();
    if let Some(start) = START.get() {
        return Some(*start);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let start = now.as_secs_f64() - uptime_seconds()? + ticks_after_boot / ticks_per_second();
    Some(*START.get_or_init(|| start))
}

/// Returns the time since the boot in seconds, with a resolution of 10 ms (proc_uptime(5)).
fn uptime_seconds() -> Option<f64> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    uptime.split(' ').next()?.parse().ok()
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn open_fds() -> Option<usize> {
    let fds = std::fs::read_dir("/proc/self/fd").ok()?;
    // Do not count the descriptor that reads the directory.
    Some(fds.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_reports_what_the_kernel_knows_of_it() {
        let stat = Stat::read().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - stat.start_time_seconds;
        assert!((-0.1..86_400.0).contains(&age), "{age} s old");
        assert!(stat.threads >= 1.0);
        assert!(stat.resident_bytes > 0.0 && stat.virtual_bytes > stat.resident_bytes);
        assert!(stat.cpu_seconds >= 0.0);
    }

    #[test]
    fn a_page_has_all_of_it() {
        let mut text = String::new();
        write(&mut text);
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_start_time_seconds",
            "process_threads",
            "process_open_fds",
            "process_max_fds",
        ] {
            for start in [format!("# HELP {name} "), format!("\n{name} ")] {
                assert!(text.contains(&start), "{start:?} in {text}");
            }
        }
    }
}
