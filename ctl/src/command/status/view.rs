//! A row of `belayctl status`: the current state of one driver.

use std::collections::BTreeSet;
use std::path::Path;

use crate::drivers::DriverSocket;
use crate::machine::device::Device;
use crate::machine::mounts::Mount;
use crate::machine::pages::{Page, quantile, whole};
use crate::machine::process;
use crate::render::Cell;

const CALLS: &str = "belay_rpc_duration_seconds";

/// All columns. A narrow table has the first [`NARROW`] columns, which fit into 80 characters.
pub(super) const COLUMNS: [&str; 14] = [
    "driver",
    "serves",
    "ready",
    "staged",
    "hung",
    "unhealthy",
    "p99_us",
    "failed",
    "p50_us",
    "registered",
    "oldest_s",
    "free_bytes",
    "socket",
    "trouble",
];
pub(super) const NARROW: usize = 7;
/// Maximum length of a socket's path in the column for the driver's name, so that the other columns
/// fit.
const NAME: usize = 25;

/// A driver in the table.
pub(super) struct Driver {
    /// Whether the driver is ready and has no hung calls and no unhealthy volumes.
    pub(super) is_good: bool,
    /// The reasons why the driver is not ready or healthy, for a line below the table; `None` if
    /// none is known.
    pub(super) note: Option<String>,
    /// The values in the order of [`COLUMNS`].
    pub(super) cells: Vec<Cell>,
}

impl Driver {
    /// Describes a driver by its socket, its metrics, and the number of its staged volumes. Each
    /// displayed latency is the upper bound of a bucket of the histogram of call durations.
    pub(super) fn new(found: &DriverSocket, page: &Page, staged: Option<i64>) -> Self {
        let label = ("driver", found.driver.as_str());
        let own = |name: &str| page.sum(name, Some(label)).map(whole);
        let all = |name: &str| page.sum(name, None).map(whole);
        let calls = page.histogram(CALLS, label);
        let count = format!("{CALLS}_count");
        let failed = page
            .of(&count, Some(label))
            .filter(|sample| sample.labels.get("code").is_some_and(|code| code != "OK"));
        let failed: f64 = failed.map(|sample| sample.value).sum();
        let latency = |part| {
            let seconds = quantile(&calls, part);
            seconds.map_or(Cell::Unknown, |it| Cell::Micros(whole(it * 1e6)))
        };
        let (hung, unhealthy) = (all("belay_jobs_hung"), own("belay_volumes_unhealthy"));
        let registered = own("belay_kubelet_registered").map(|value| value == 1);
        let free = own("belay_storage_free_bytes");
        let name = match found.driver.as_str() {
            "" => end_of(&found.socket),
            name => name.to_owned(),
        };
        let none = |count: Option<i64>| count.unwrap_or(0) == 0;
        let is_good = found.trouble.is_empty()
            && found.ready != Some(false)
            && none(hung)
            && none(unhealthy)
            && registered != Some(false);
        let trouble = [found.trouble.clone(), unhealthy_by_reason(found, page)];
        let trouble: Vec<_> = trouble.into_iter().filter(|it| !it.is_empty()).collect();
        let trouble = trouble.join("; ");
        let note = (!trouble.is_empty()).then(|| {
            let words = std::iter::once(&name).chain(&found.serves);
            let words: Vec<_> = words.map(String::as_str).collect();
            format!("{}: {trouble}", words.join(" "))
        });
        let cells = vec![
            Cell::Text(name),
            Cell::List(found.serves.clone()),
            Cell::Flag(found.ready == Some(true)),
            Cell::number(staged),
            Cell::number(hung),
            Cell::number(unhealthy),
            latency(0.99),
            Cell::number((!calls.is_empty()).then(|| whole(failed))),
            latency(0.5),
            registered.map_or(Cell::Unknown, Cell::Flag),
            Cell::number(all("belay_jobs_oldest_age_seconds")),
            free.map_or(Cell::Unknown, Cell::Bytes),
            Cell::Text(found.socket.display().to_string()),
            Cell::Text(trouble),
        ];
        Self {
            is_good,
            note,
            cells,
        }
    }
}

/// Describes the unhealthy volumes of a driver, with the command that lists them. Returns an empty
/// text if there are none.
fn unhealthy_by_reason(found: &DriverSocket, page: &Page) -> String {
    let label = ("driver", found.driver.as_str());
    let samples = page.of("belay_volumes_unhealthy", Some(label));
    let counts = samples.filter(|sample| sample.value > 0.0).map(|sample| {
        let reason = sample.labels.get("reason").map_or("", String::as_str);
        format!("{} {reason}", whole(sample.value))
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    let command = match found.has("controller") {
        true => "volume health-list",
        false => "node health VOLUME_ID",
    };
    match counts.as_str() {
        "" => counts,
        _ => format!("unhealthy volumes: {counts} (`belayctl {command}`)"),
    }
}

/// Returns the end of a socket's path, cut to the width of the column for the driver's name.
fn end_of(path: &Path) -> String {
    let path = path.to_string_lossy();
    match path.char_indices().nth_back(NAME - 2) {
        Some((at, _)) if at > 0 => format!("\u{2026}{}", &path[at..]),
        _ => path.into_owned(),
    }
}

/// Counts the mounted volumes of a driver. Recognizes a volume by Belay's name of the device, by
/// the kubelet's staging path, or by the file behind a loop device. The directory of the file must
/// be in the arguments or environment of the driver's process.
pub(super) fn staged(found: &DriverSocket, mounts: &[Mount], devices: &[Device]) -> i64 {
    let driver = &found.driver;
    let words = found.pid.map(process::words).unwrap_or_default();
    let is_own = |file: &&Path| {
        words
            .iter()
            .any(|word| file.parent() == Some(Path::new(word)))
    };
    let volume = |mount: &Mount| {
        if let Some((its, volume)) = mount.volume() {
            return (its == *driver).then(|| volume.to_owned());
        }
        let device = devices.iter().find(|device| device.is_on(mount));
        if let Some(file) = device.and_then(Device::file).filter(is_own) {
            return Some(file.file_name()?.to_string_lossy().into_owned());
        }
        let point = mount.point.to_str()?;
        let is_staging = point.contains(&format!("/kubernetes.io/csi/{driver}/"));
        (is_staging && point.ends_with("/globalmount")).then(|| point.to_owned())
    };
    let volumes: BTreeSet<_> = mounts.iter().filter_map(volume).collect();
    i64::try_from(volumes.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::render::{Answer, Output, Rows};

    fn driver(page: &str) -> Driver {
        let found = DriverSocket {
            driver: "d".to_owned(),
            ready: Some(true),
            ..DriverSocket::default()
        };
        Driver::new(&found, &Page::parse(page), None)
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
        let shown: Vec<_> = driver.cells[3..9]
            .iter()
            .map(|it| it.shown(false))
            .collect();
        assert_eq!(shown, ["-", "2", "1", "1ms", "1", "1ms"]);
        assert!(!driver.is_good);
    }

    #[test]
    fn a_note_names_the_reason_why_a_driver_is_not_good() {
        let page = "belay_volumes_unhealthy{driver=\"d\",reason=\"A\"} 2\n\
                    belay_volumes_unhealthy{driver=\"d\",reason=\"B\"} 0\n\
                    belay_volumes_unhealthy{driver=\"e\",reason=\"C\"} 5\n";
        let found = DriverSocket {
            driver: "d".to_owned(),
            serves: vec!["controller".to_owned()],
            trouble: "the cloud refuses the key".to_owned(),
            ..DriverSocket::default()
        };
        let driver = Driver::new(&found, &Page::parse(page), None);
        let note = "d controller: the cloud refuses the key; unhealthy volumes: 2 A (`belayctl \
                    volume health-list`)";
        assert_eq!(driver.note.as_deref(), Some(note));
        assert_eq!(
            driver.cells.last(),
            Some(&Cell::Text(note[14..].to_owned()))
        );
        assert_eq!(
            Driver::new(&DriverSocket::default(), &Page::default(), None).note,
            None
        );
    }

    #[test]
    fn a_driver_without_metrics_is_good_if_it_is_ready() {
        assert!(driver("").is_good);
        assert_eq!(driver("").cells[4], Cell::Unknown);
    }

    #[test]
    fn each_mounted_volume_of_the_driver_counts_once() {
        let mount = |dev: &str, root: &str, point: &str, source: &str| Mount {
            dev: dev.to_owned(),
            root: root.to_owned(),
            point: point.into(),
            is_readonly: false,
            is_shared: false,
            fs_type: if dev == "0:6" { "devtmpfs" } else { "ext4" }.to_owned(),
            source: source.to_owned(),
        };
        let device = Device::bound;
        let csi = "/k/plugins/kubernetes.io/csi";
        let mounts = [
            mount("7:0", "/", "/staging", "/dev/loop0"),
            mount("7:0", "/", "/mnt", "/dev/loop0"),
            mount("7:1", "/", "/others", "/dev/loop1"),
            mount("0:6", "/belay/d/vol-2@22/loop2", "/raw", "devtmpfs"),
            mount(
                "8:0",
                "/",
                &format!("{csi}/d/1/globalmount"),
                "/dev/belay/d/vol-3@9",
            ),
            mount("8:1", "/", "/other", "/dev/belay/e/vol-4@9"),
            mount(
                "0:50",
                "/",
                &format!("{csi}/d/2/globalmount"),
                "server:/share",
            ),
            mount(
                "0:51",
                "/",
                &format!("{csi}/e/3/globalmount"),
                "server:/share",
            ),
        ];
        // Use a word from this process's own arguments as the directory of the volumes' files.
        let own = process::words(std::process::id()).swap_remove(0);
        let devices = [
            device("loop0", "7:0", &format!("{own}/vol-1")),
            device("loop1", "7:1", "/others/vol-9"),
        ];
        let found = DriverSocket {
            driver: "d".to_owned(),
            pid: Some(std::process::id()),
            ..DriverSocket::default()
        };
        assert_eq!(staged(&found, &mounts, &devices), 4);
    }

    #[test]
    fn the_table_fits_into_80_columns_whatever_does_not_answer() {
        let dead = DriverSocket {
            socket: "/var/lib/kubelet/plugins/cinder.csi.openstack.org/csi.sock".into(),
            trouble: "no answer in 2 s".to_owned(),
            ..DriverSocket::default()
        };
        let found = DriverSocket {
            driver: "dobs.csi.digitalocean.com".to_owned(),
            serves: vec!["controller".to_owned()],
            ..dead.clone()
        };
        let rows = [dead, found].map(|it| Driver::new(&it, &Page::default(), None).cells);
        let rows = Rows {
            narrow: NARROW,
            ..Rows::new("drivers", &COLUMNS, rows)
        };
        let text = Answer::Rows(rows).text(Output::Table);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(
            text.contains("UNHEALTHY") && text.contains("openstack.org/csi.sock"),
            "{text}"
        );
    }
}
