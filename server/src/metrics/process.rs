//! What every Prometheus client tells of its process, under the names that all of them use. Read
//! when asked for; what cannot be read is left out.

use rustix::process::Resource;
use rustix::time::ClockId;
use std::fmt::Display;
use std::sync::OnceLock;

/// Writes all of it.
pub(super) fn write(page: &mut String) {
    if let Some(stat) = Stat::read() {
        let mut value = |name, kind, help, value| family(page, name, kind, help, value);
        value(
            "process_cpu_seconds_total",
            "counter",
            "Processor time used by the process, in its own code and in the kernel for it.",
            stat.cpu_seconds,
        );
        value(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory.",
            stat.resident_bytes,
        );
        value(
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory.",
            stat.virtual_bytes,
        );
        value(
            "process_start_time_seconds",
            "gauge",
            "When the process began, since 1970.",
            stat.start_time_seconds,
        );
        value("process_threads", "gauge", "Threads.", stat.threads);
    }
    if let Some(open) = open_fds() {
        let help = "Open file descriptors.";
        family(page, "process_open_fds", "gauge", help, open);
    }
    // Without a limit there is nothing to tell.
    if let Some(most) = rustix::process::getrlimit(Resource::Nofile).current {
        let help = "The most file descriptors that may be open.";
        family(page, "process_max_fds", "gauge", help, most);
    }
}

/// One value of a name of its own, in the text format of Prometheus (version 0.0.4).
fn family(page: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    let value = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    page.push_str(&value);
}

/// What /proc/self/stat says (proc_pid_stat(5)).
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
        // The name of the program comes second, in parentheses, and may have anything in it.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Stat {
            cpu_seconds: (field(14)? + field(15)?) / ticks_per_second(),
            threads: field(20)?,
            start_time_seconds: start_time_seconds(field(22)?),
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
        })
    }
}

/// When the process began. Worked out once, since the wall clock is set now and then.
fn start_time_seconds(ticks_after_boot: f64) -> f64 {
    static START: OnceLock<f64> = OnceLock::new();
    let now = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    *START.get_or_init(|| {
        now(ClockId::Realtime) - now(ClockId::Boottime) + ticks_after_boot / ticks_per_second()
    })
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn open_fds() -> Option<usize> {
    let fds = std::fs::read_dir("/proc/self/fd").ok()?;
    // Less the one that reads the folder.
    Some(fds.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn the_process_tells_what_the_kernel_knows_of_it() {
        let stat = Stat::read().unwrap();
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
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
