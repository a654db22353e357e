//! The metrics of disks, volumes and snapshots. Each controller exports the same figures.

use super::Front;
use super::disks::files;
use super::follow::Followed;
use super::meaning::{Meaning, meaning};
use crate::kubernetes::{LocalSnapshot, LocalVolume};
use metrics::{Unit, describe_gauge, gauge};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::sleep;

const OBJECTS: &str = "belay_controller_troubled_objects";
const DISK_BYTES: &str = "belay_controller_disk_bytes";
const DISK_UNLISTED: &str = "belay_controller_disk_unlisted_files";
const DISK_UNUSABLE: &str = "belay_controller_disk_unusable";

/// Describes the metrics.
pub(super) fn describe() {
    describe_gauge!(
        OBJECTS,
        "Volumes and snapshots that are lost or unclaimed, or whose disk is gone, by kind and \
         trouble."
    );
    describe_gauge!(
        DISK_BYTES,
        Unit::Bytes,
        "Size that volumes and snapshots of a disk may have in total, and have, by state."
    );
    describe_gauge!(DISK_UNLISTED, "Files of a disk that have no object.");
    describe_gauge!(
        DISK_UNUSABLE,
        "Whether a disk gets no new volumes: silent, read-only or with a problem."
    );
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Sets the number of objects of a kind with this trouble.
pub(super) fn show_troubled<R: Followed>(trouble: &'static str, count: usize) {
    gauge!(OBJECTS, "kind" => R::WHAT, "trouble" => trouble).set(float(count as u64));
}

impl Front {
    /// Sets the gauges until the task is aborted.
    pub(super) async fn show_figures(self: Arc<Self>) {
        let mut shown = HashSet::new();
        loop {
            self.show_once(&mut shown);
            sleep(self.limits.check / 6).await;
        }
    }

    /// Sets the gauges. `shown` has the names of all disks that have gauges.
    fn show_once(&self, shown: &mut HashSet<String>) {
        self.show_objects::<LocalVolume>();
        self.show_objects::<LocalSnapshot>();
        if self.disks.current().is_err() {
            return;
        }
        // A gauge cannot be removed, so those of a forgotten disk become 0.
        let mut forgotten = std::mem::take(shown);
        for seen in self.disks.all() {
            let disk = seen.object.metadata.name.clone();
            let usable = self.usable(&seen);
            let status = seen.object.known_status();
            let promisable = status.and_then(|status| status.promisable);
            forgotten.remove(&disk);
            show_disk(
                &disk,
                promisable.unwrap_or(0),
                self.promised(&disk).bytes,
                files(&seen.object).map_or(0, |files| files.count),
                usable.is_err(),
            );
            shown.insert(disk);
        }
        for disk in forgotten {
            show_disk(&disk, 0, 0, 0, false);
        }
    }

    fn show_objects<R: Followed>(&self) {
        if R::cache(self).current().is_err() {
            return;
        }
        let (mut lost, mut gone) = (0, 0);
        for seen in R::cache(self).all() {
            lost += usize::from(meaning(&seen.object) == Meaning::Lost);
            gone += usize::from(self.is_gone(&seen.object));
        }
        show_troubled::<R>("lost", lost);
        show_troubled::<R>("gone", gone);
    }
}

fn show_disk(disk: &str, promisable: u64, promised: u64, unlisted: u64, is_unusable: bool) {
    for (state, bytes) in [("promisable", promisable), ("promised", promised)] {
        gauge!(DISK_BYTES, "disk" => disk.to_owned(), "state" => state).set(float(bytes));
    }
    gauge!(DISK_UNLISTED, "disk" => disk.to_owned()).set(float(unlisted));
    gauge!(DISK_UNUSABLE, "disk" => disk.to_owned()).set(f64::from(u8::from(is_unusable)));
}

#[cfg(test)]
mod tests {
    use super::super::examples::{ID, disk, unused, volume};
    use super::*;
    use crate::kubernetes::{Event, FINALIZER};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_disk_has_figures_until_it_is_gone_and_its_volumes_are_in_trouble() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let (nodes, _dir) = unused();
        let front = &nodes.front;
        let mut shown = HashSet::new();
        let mut shows = |lines: &[&str]| {
            front.show_once(&mut shown);
            let page = recorder.handle().render();
            for line in lines {
                assert!(page.contains(&format!("{line}\n")), "{line}: {page}");
            }
        };
        let file = format!(r#"{{"id": "{ID}", "bytes": 1}}"#);
        let status =
            format!(r#"{{"promisable": 9, "unlisted": {{"count": 3, "first": [{file}]}}}}"#);
        let lost = volume(&[FINALIZER], r#"{"phase": "Lost", "bytes": 2}"#);
        front.volumes.apply(Ok(Event::Listed(vec![lost])));
        front.disks.apply(Ok(Event::Listed(vec![disk(&status)])));
        shows(&[
            r#"belay_controller_disk_bytes{disk="node1.default",state="promisable"} 9"#,
            r#"belay_controller_disk_bytes{disk="node1.default",state="promised"} 2"#,
            r#"belay_controller_disk_unlisted_files{disk="node1.default"} 3"#,
            r#"belay_controller_disk_unusable{disk="node1.default"} 0"#,
            r#"belay_controller_troubled_objects{kind="volume",trouble="lost"} 1"#,
            r#"belay_controller_troubled_objects{kind="volume",trouble="gone"} 0"#,
        ]);
        advance(front.limits.silent).await;
        shows(&[r#"belay_controller_disk_unusable{disk="node1.default"} 1"#]);
        front.disks.apply(Ok(Event::Deleted(disk(&status))));
        advance(front.limits.silent).await;
        shows(&[
            r#"belay_controller_disk_bytes{disk="node1.default",state="promisable"} 0"#,
            r#"belay_controller_disk_unusable{disk="node1.default"} 0"#,
            r#"belay_controller_troubled_objects{kind="volume",trouble="gone"} 1"#,
        ]);
    }
}
