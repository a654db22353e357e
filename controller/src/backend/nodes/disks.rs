//! The disks: their free space, and whether their stores report. Makes no calls.

use super::Front;
use super::cache::Seen;
use super::follow::Followed;
use super::item::{Item, Wanted, disk_of, wanted};
use super::meaning::{Meaning, meaning};
use super::place::{Offer, Unusable};
use super::totals::bytes_of;
use crate::kubernetes::{LocalDisk, Object, Parsed, Unlisted};
use belay_contract::drivers::local::SILENT;
use belay_server::call::{Failure, Kind};
use tokio::time::Instant;

/// The promises for a disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Promised {
    /// The total size of the volumes and snapshots in bytes.
    pub(super) bytes: u64,
    /// The times at which this process first saw the orders that no store has accepted.
    pub(super) orders: Vec<Instant>,
}

/// Returns the reason for which the report of a disk excludes it, or the number of promisable
/// bytes.
fn promisable(disk: &Object<LocalDisk>) -> Result<u64, Unusable> {
    let problem = |why: &str| Err(Unusable::Problem(why.to_owned()));
    match &disk.status {
        None => problem("its store has not reported its state"),
        Some(Parsed::Unknown(why)) => problem(why),
        Some(Parsed::Known(status)) => match (&status.problem, status.read_only) {
            (Some(why), _) => problem(why),
            (None, Some(true)) => Err(Unusable::ReadOnly),
            (None, _) => Ok(status.promisable.unwrap_or(0)),
        },
    }
}

impl Front {
    /// Returns the time at which the store of the object's disk becomes silent, unless it reports
    /// before; the present if there is no such disk.
    pub(super) fn silent_at(&self, of: &Wanted<'_>) -> Instant {
        let disk = self.disks.named(&disk_of(of));
        disk.map_or_else(Instant::now, |disk| disk.changed + self.limits.silent)
    }

    /// Fails if the store of the object's disk is silent: it gets no orders.
    ///
    /// # Errors
    /// Returns `Unreachable`.
    pub(super) fn reporting<R: Item>(&self, object: &Object<R>) -> Result<(), Failure> {
        match wanted(object) {
            Some(wanted) if self.silent_at(&wanted) <= Instant::now() => {
                let why = silence(&wanted);
                Err(super::item::unreachable(object, &why))
            }
            _ => Ok(()),
        }
    }

    /// Records that an order for this disk was not accepted. Until its store reports again, the
    /// disk gets no orders.
    pub(super) fn withdrawn(&self, disk: String) {
        self.withdrawn.lock().insert(disk, Instant::now());
    }

    /// Returns the number of promisable bytes that the store of a disk reports, or the reason why
    /// its volumes cannot be changed.
    pub(super) fn reported(&self, disk: &Seen<LocalDisk>) -> Result<u64, Unusable> {
        match disk.changed.elapsed() >= self.limits.silent {
            true => Err(Unusable::Silent),
            false => promisable(&disk.object),
        }
    }

    /// Returns the number of promisable bytes of a disk, or the reason why it gets no orders.
    pub(super) fn usable(&self, disk: &Seen<LocalDisk>) -> Result<u64, Unusable> {
        let withdrawn = self.withdrawn.lock();
        let withdrawn = withdrawn.get(&disk.object.metadata.name);
        match withdrawn.is_some_and(|at| *at >= disk.changed) {
            true => Err(Unusable::Withdrawn),
            false => self.reported(disk),
        }
    }

    /// Returns the disks with this name, one for each node. The free space excludes all volumes and
    /// snapshots in the cache.
    pub(super) fn offers(&self, disk: &str) -> Vec<Offer> {
        let mut offers = Vec::new();
        for seen in self.disks.all() {
            let name = &seen.object.metadata.name;
            let Some(spec) = seen.object.spec.known().filter(|spec| spec.disk == disk) else {
                continue;
            };
            let promised = self.promised(name);
            let room = self.usable(&seen);
            let is_late = |since: &Instant| since.elapsed() >= self.limits.hold;
            offers.push(Offer {
                place: spec.place.clone(),
                node: spec.node.clone(),
                room: room.map(|bytes| bytes.saturating_sub(promised.bytes)),
                is_late: promised.orders.iter().any(is_late),
            });
        }
        offers.sort_by(|a, b| a.node.cmp(&b.node));
        offers
    }

    /// Whether no older order of this disk waits for its acceptance.
    pub(super) fn is_first(&self, disk: &str, since: Instant) -> bool {
        let orders = self.promised(disk).orders;
        !orders.iter().any(|seen| *seen < since)
    }

    /// Returns the promises for the disk with this LocalDisk.
    pub(super) fn promised(&self, disk: &str) -> Promised {
        fn orders<R: Item>(open: &[Seen<R>]) -> impl Iterator<Item = Instant> {
            let orders = open.iter();
            let orders = orders.filter(|seen| meaning(&seen.object) == Meaning::Ordered);
            orders.map(|seen| seen.since)
        }
        let (of_volumes, volumes) = self.volumes.total(disk);
        let (of_snapshots, snapshots) = self.snapshots.total(disk);
        // The size of an open snapshot is the size of its volume.
        let of_sources = snapshots.iter().filter_map(|seen| {
            let volume = self.volumes.identified(&seen.object.spec.known()?.volume)?;
            Some(u128::from(bytes_of(&volume.object)))
        });
        let bytes = of_volumes + of_snapshots + of_sources.sum::<u128>();
        Promised {
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            orders: orders(&volumes).chain(orders(&snapshots)).collect(),
        }
    }

    /// Fails if a disk has or may have a file with this ID, which has no object. A gone disk does
    /// not count. A file that a PersistentVolume or a VolumeSnapshotContent names may be on a disk
    /// whose store does not report all its files.
    ///
    /// # Errors
    /// Returns `Unreachable`, naming the disk, and the errors of listing the claims.
    pub(super) async fn absent<R: Followed>(&self, id: &str) -> Result<(), Failure> {
        self.disks.ready().await?;
        let disks = self.disks.all();
        let refuse = |why: String| {
            let why = format!("{} {id}: has no object; {why}", R::WHAT);
            Err(Failure::new(Kind::Unreachable, why))
        };
        for seen in &disks {
            if files(&seen.object).is_some_and(|it| it.first.iter().any(|file| file.id == id)) {
                return refuse(format!("its file is on disk {}", seen.object.metadata.name));
            }
        }
        let Some(home) = R::home(self, id).await? else {
            return Ok(());
        };
        let mut here = disks.iter().filter(|seen| {
            let spec = seen.object.spec.known();
            let at = home.as_ref();
            spec.is_none_or(|spec| {
                at.is_none_or(|(place, disk)| spec.place == *place && spec.disk == *disk)
            })
        });
        let is_complete = |seen: &&Seen<LocalDisk>| {
            let all = files(&seen.object).filter(|it| it.count == it.first.len() as u64);
            self.reported(seen).is_ok() && all.is_some()
        };
        match (here.clone().next(), here.find(|seen| !is_complete(seen))) {
            (None, _) if self.disks.is_whole(self.limits.silent) => Ok(()),
            (None, _) => refuse("no store reports the disk that its claim names".to_owned()),
            (_, Some(seen)) => refuse(format!(
                "disk {} does not report all its files, and may have the file",
                seen.object.metadata.name
            )),
            (Some(_), None) => Ok(()),
        }
    }
}

/// Returns the files of the disk without an object, as its store last reported them.
pub(super) fn files(disk: &Object<LocalDisk>) -> Option<&Unlisted> {
    let status = disk.known_status();
    status.and_then(|status| status.unlisted.as_ref())
}

/// Returns the reason why a disk gets no orders.
pub(super) fn silence(of: &Wanted<'_>) -> String {
    format!(
        "disk {}: {SILENT}; check its pod, and repeat the call; if the node never returns: \
         belayctl local forget {}",
        disk_of(of),
        of.node
    )
}

#[cfg(test)]
mod tests {
    use super::super::examples::{ID, changed, disk, nodes, snapshot, unused, volume};
    use super::super::{Limits, Nodes};
    use super::*;
    use crate::http::tests::Act;
    use crate::kubernetes::{Event, FINALIZER, LocalVolume};
    use belay_contract::drivers::LOCAL;
    use serde_json::json;
    use std::time::Duration;
    use tokio::time::advance;

    const READY: &str = r#"{"phase": "Ready", "bytes": 2}"#;

    fn report(nodes: &Nodes, status: &str) {
        nodes.front.disks.apply(Ok(Event::Changed(disk(status))));
    }

    fn room(nodes: &Nodes) -> Result<u64, Unusable> {
        let offers = nodes.front.offers("default");
        assert_eq!(nodes.front.offers("fast"), []);
        assert_eq!(offers.len(), 1);
        offers[0].room.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_has_room_while_its_store_reports_no_problem() {
        let (nodes, _dir) = unused();
        let silent = Limits::default().silent;
        report(&nodes, r#"{"promisable": 9}"#);
        assert_eq!(room(&nodes), Ok(9));
        advance(silent - Duration::from_millis(1)).await;
        report(&nodes, r#"{"promisable": 9}"#);
        assert_eq!(room(&nodes), Ok(9));
        advance(Duration::from_millis(1)).await;
        assert_eq!(room(&nodes), Err(Unusable::Silent));
        for (status, why) in [
            (r#"{"promisable": 9, "readOnly": true}"#, Unusable::ReadOnly),
            (
                r#"{"promisable": 9, "problem": "no"}"#,
                Unusable::Problem("no".to_owned()),
            ),
        ] {
            report(&nodes, status);
            assert_eq!(room(&nodes), Err(why));
        }

        report(&nodes, r#"{"promisable": 9, "reported": "1"}"#);
        nodes.front.withdrawn("node1.default".to_owned());
        assert_eq!(room(&nodes), Err(Unusable::Withdrawn));
        advance(Duration::from_millis(1)).await;
        report(&nodes, r#"{"promisable": 9, "reported": "2"}"#);
        assert_eq!(room(&nodes), Ok(9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_gets_no_orders_while_one_is_not_accepted() {
        let (nodes, _dir) = unused();
        report(&nodes, r#"{"promisable": 9}"#);
        let shows = |volume| nodes.front.volumes.apply(Ok(Event::Changed(volume)));
        shows(volume(&[], "null"));
        let is_late = || nodes.front.offers("default")[0].is_late;
        advance(Limits::default().hold - Duration::from_millis(1)).await;
        assert!(!is_late());
        advance(Duration::from_millis(1)).await;
        assert!(is_late());
        // The order may still be accepted, so the free space is the same.
        assert_eq!(room(&nodes), Ok(7));
        shows(volume(&[FINALIZER], "null"));
        assert!(!is_late());
    }

    #[tokio::test]
    async fn all_objects_with_files_count_and_a_growth_only_while_it_runs() {
        let (nodes, _dir) = unused();
        report(&nodes, r#"{"promisable": 100}"#);
        let growing = changed(&volume(&[FINALIZER], READY), "spec", r#"{"bytes": 40}"#);
        let refusal = r#"{"observedGeneration": 3, "failure": {"kind": "Quota",
            "certainty": "RolledBack", "message": "no room"}}"#;
        for (volume, used) in [
            (volume(&[], "null"), 2),
            (volume(&[FINALIZER], r#"{"phase": "Making"}"#), 2),
            (volume(&[FINALIZER], READY), 2),
            (changed(&growing, "status", refusal), 2),
            (changed(&growing, "status", r#"{"bytes": 50}"#), 50),
            (volume(&[], r#"{"phase": "Refused"}"#), 0),
            (growing, 40),
        ] {
            let event = Event::Changed(volume);
            nodes.front.volumes.apply(Ok(event));
            assert_eq!(room(&nodes), Ok(100 - used));
        }
        // The size of a snapshot is the size of its volume until its store reports it.
        for (status, used) in [("null", 40), (r#"{"phase": "Ready", "bytes": 5}"#, 5)] {
            let event = Event::Changed(snapshot(status));
            nodes.front.snapshots.apply(Ok(event));
            assert_eq!(room(&nodes), Ok(60 - used));
        }
    }

    #[tokio::test]
    async fn an_id_is_absent_only_if_no_disk_can_have_its_file() {
        let persistent = |place: &str| {
            let terms = json!([{"matchExpressions": [
                {"key": super::super::KEY, "operator": "In", "values": [place]},
            ]}]);
            let volume = json!({"metadata": {"name": "pv-1"}, "spec": {
                "csi": {"driver": LOCAL.name, "volumeHandle": ID},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            }});
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": [volume]});
            Act::answer("200 OK", &list.to_string())
        };
        let none = || {
            Act::answer(
                "200 OK",
                r#"{"metadata": {"resourceVersion": "1"}, "items": []}"#,
            )
        };
        let complete = r#"{"promisable": 9, "unlisted": {"count": 0, "first": []}}"#;
        let partial = r#"{"promisable": 9, "unlisted": {"count": 1, "first": []}}"#;
        let missing = r#"{"problem": "no", "unlisted": {"count": 0, "first": []}}"#;
        let file = format!(r#"{{"id": "{ID}", "bytes": 1}}"#);
        let listed =
            format!(r#"{{"promisable": 9, "unlisted": {{"count": 1, "first": [{file}]}}}}"#);
        for (act, status, refusal) in [
            (none(), partial, None),
            (none(), &*listed, Some("its file is on disk node1.default")),
            (persistent("place1"), complete, None),
            (
                persistent("place1"),
                partial,
                Some("node1.default does not report all"),
            ),
            (
                persistent("place1"),
                missing,
                Some("node1.default does not report all"),
            ),
            (
                persistent("place2"),
                complete,
                Some("no store reports the disk"),
            ),
        ] {
            let ready = volume(&[FINALIZER], READY);
            let (nodes, _server, _dir) = nodes(Limits::default(), ready, vec![act]).await;
            report(&nodes, status);
            let absent = nodes.front.absent::<LocalVolume>(ID).await;
            match refusal {
                None => absent.unwrap(),
                Some(why) => {
                    let failure = absent.unwrap_err();
                    assert!(failure.message.contains(why), "{failure}");
                    assert_eq!(failure.kind, Kind::Unreachable);
                }
            }
        }
    }
}
