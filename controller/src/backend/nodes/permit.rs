//! Permits stores to use empty directories as disks. An empty directory may be the mount point of a
//! disk that is not mounted, so there is no permission if anything names the disk.

use super::Front;
use super::item::{Item, wanted};
use super::{DEFAULT_DISK, DISK, KEY};
use crate::kubernetes::{
    Change, DiskSpec, List, LocalDisk, LocalSnapshot, LocalVolume, Object, PersistentVolume,
    Resource, Selector, WAITS, Written,
};
use belay_server::call::Failure;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The pause after a failure.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// An object that names a disk.
struct Named<'a> {
    kind: &'static str,
    name: &'a str,
    /// The place and the name of the disk; `None` if this release does not know the object, which
    /// may be on any disk.
    at: Option<(&'a str, &'a str)>,
}

/// Whether the store of the disk waits for the permission.
fn waits(disk: &Object<LocalDisk>) -> bool {
    let status = disk.known_status();
    let begin = disk.spec.known().map(|spec| spec.begin.as_ref());
    let is_new = begin.is_some_and(|begin| begin != Some(&disk.metadata.uid));
    let is_empty = |problem: &String| problem.contains(WAITS);
    is_new
        && status.is_some_and(|it| it.uuid.is_none() && it.problem.as_ref().is_some_and(is_empty))
}

/// Returns the first object that names the disk.
fn claim<'a>(disk: &DiskSpec, named: impl Iterator<Item = Named<'a>>) -> Option<String> {
    let here = (disk.place.as_str(), disk.disk.as_str());
    let mut claims = named.filter(|named| named.at.is_none_or(|at| at == here));
    claims.next().map(|it| format!("{} {}", it.kind, it.name))
}

fn of_items<R: Item>(list: &List<R>) -> impl Iterator<Item = Named<'_>> {
    list.items.iter().map(|object| Named {
        kind: R::KIND,
        name: &object.metadata.name,
        at: wanted(object).map(|it| (it.place, it.disk)),
    })
}

/// Returns the names of the disks other than the disk with this name.
fn of_disks<'a>(list: &'a List<LocalDisk>, but: &'a str) -> impl Iterator<Item = Named<'a>> {
    let others = list.items.iter().filter(move |it| it.metadata.name != but);
    others.map(|object| Named {
        kind: LocalDisk::KIND,
        name: &object.metadata.name,
        at: object.spec.known().map(|it| (&*it.place, &*it.disk)),
    })
}

fn of_volumes(volumes: &[PersistentVolume]) -> impl Iterator<Item = Named<'_>> {
    volumes.iter().flat_map(|volume| {
        places(volume).map(|place| Named {
            kind: "PersistentVolume",
            name: &volume.name,
            at: Some((place, disk(volume))),
        })
    })
}

/// Returns the places at which the volume can be.
pub(super) fn places(volume: &PersistentVolume) -> impl Iterator<Item = &str> {
    let labels = volume.labels.iter().filter(|(key, _)| key == KEY);
    labels.map(|(_, place)| place.as_str())
}

/// Returns the name of the volume's disk.
pub(super) fn disk(volume: &PersistentVolume) -> &str {
    volume
        .attributes
        .get(DISK)
        .map_or(DEFAULT_DISK, |disk| disk)
}

impl Front {
    /// Permits the use of each new disk that nothing names, until the task is aborted.
    pub(super) async fn permit(self: Arc<Self>) {
        let mut changes = self.disks.changes();
        let (mut known, mut logged) = (HashSet::new(), HashSet::new());
        let mut due = Instant::now();
        loop {
            changes.borrow_and_update();
            let disks = self.disks.all();
            let waiting = disks.iter().filter(|seen| waits(&seen.object));
            let waiting: HashSet<_> = waiting.map(|it| it.object.metadata.uid.clone()).collect();
            let is_new = !waiting.is_subset(&known);
            known = waiting;
            if !known.is_empty() && (is_new || Instant::now() >= due) {
                due = Instant::now() + self.limits.check;
                if let Err(failure) = self.permit_all(&mut logged).await {
                    tracing::warn!("no permission is given to use new disks: {failure}");
                    due = Instant::now() + RETRY;
                    sleep(RETRY).await;
                }
                continue;
            }
            // The sender is in the cache, which this task uses, so it cannot end. A timeout is seen
            // at the start of the loop.
            let wake = match known.is_empty() {
                true => Instant::now() + self.limits.check,
                false => due,
            };
            drop(timeout_at(wake, changes.changed()).await);
        }
    }

    /// Permits the use of all disks that wait for it and that nothing names. `logged` contains the
    /// disks for which the log already contains the reason.
    ///
    /// # Errors
    /// Returns the errors of the lists and changes; another attempt may then succeed.
    async fn permit_all(&self, logged: &mut HashSet<String>) -> Result<(), Failure> {
        let client = &self.client;
        // The permission is conditional on this version of the disk, which is older than the lists.
        let disks = client.list::<LocalDisk>(&Selector::all()).await?;
        let persistent = client.persistent_volumes(&self.driver).await?;
        let volumes = client.list::<LocalVolume>(&Selector::all()).await?;
        let snapshots = client.list::<LocalSnapshot>(&Selector::all()).await?;
        for object in disks.items.iter().filter(|disk| waits(disk)) {
            let (name, Some(spec)) = (&object.metadata.name, object.spec.known()) else {
                continue;
            };
            let named = of_volumes(&persistent)
                .chain(of_items(&volumes))
                .chain(of_items(&snapshots))
                .chain(of_disks(&disks, name));
            if let Some(claim) = claim(spec, named) {
                if logged.insert(object.metadata.uid.clone()) {
                    tracing::warn!(
                        "LocalDisk {name}: its directory is empty, but {claim} is on this disk; \
                         mount the disk"
                    );
                }
                continue;
            }
            let change = Change::<LocalDisk>::Spec(json!({"begin": object.metadata.uid}));
            match client.patch(&object.metadata, change).await? {
                Written::Done(_) => {
                    tracing::info!(
                        "LocalDisk {name}: nothing names this disk; its store may use it"
                    );
                }
                Written::Conflict => {
                    let why = format!("LocalDisk {name}: was changed at the same time");
                    return Err(Failure::busy(why));
                }
                Written::Missing => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{changed, disk as example, snapshot, volume};
    use super::*;
    use crate::kubernetes::{Mode, Usage};
    use std::collections::BTreeMap;

    #[test]
    fn only_a_new_disk_with_an_empty_directory_waits() {
        let waiting = example(r#"{"problem": "empty; waiting for the controller's permission"}"#);
        assert!(waits(&waiting));
        // A copy of an object does not have its permission.
        let copied = changed(&waiting, "spec", r#"{"begin": "other"}"#);
        assert!(waits(&copied));
        let begun = changed(&waiting, "spec", r#"{"begin": "uid-d"}"#);
        let known = changed(&waiting, "status", r#"{"uuid": "a"}"#);
        let missing = example(r#"{"problem": "does not exist"}"#);
        let served = example(r#"{"promisable": 1}"#);
        for disk in [begun, known, missing, served, example("null")] {
            assert!(!waits(&disk), "{:?}", disk.status);
        }
    }

    fn persistent(place: (&str, &str), disk: Option<&str>) -> PersistentVolume {
        let disk = disk.map(|disk| (DISK.to_owned(), disk.to_owned()));
        PersistentVolume {
            name: "pv-1".to_owned(),
            handle: "vol-1".to_owned(),
            attributes: BTreeMap::from_iter(disk),
            bytes: Some(1),
            usage: Usage {
                mode: Mode::Block,
                filesystem: None,
            },
            labels: vec![(place.0.to_owned(), place.1.to_owned())],
        }
    }

    fn list<R: Resource>(items: Vec<Object<R>>) -> List<R> {
        List {
            items,
            version: String::new(),
        }
    }

    #[test]
    fn a_disk_is_claimed_by_each_object_that_names_its_place_and_disk() {
        let of = |place: &str, disk: &str| DiskSpec {
            node: "node1".to_owned(),
            place: place.to_owned(),
            disk: disk.to_owned(),
            begin: None,
        };
        let here = of("place1", "default");
        let elsewhere = [of("place2", "default"), of("place1", "fast")];

        let pv = |place, disk| {
            let all = [persistent(place, disk)];
            let claims = |of: &DiskSpec| claim(of, of_volumes(&all));
            (claims(&here), claims(&elsewhere[0]), claims(&elsewhere[1]))
        };
        let claims = Some("PersistentVolume pv-1".to_owned());
        let default = (claims.clone(), None, None);
        assert_eq!(pv((KEY, "place1"), None), default);
        assert_eq!(pv((KEY, "place1"), Some("default")), default);
        assert_eq!(pv((KEY, "place1"), Some("fast")), (None, None, claims));
        assert_eq!(pv(("other", "place1"), None), (None, None, None));

        let volumes = list(vec![volume(&[], "null")]);
        let snapshots = list(vec![snapshot("null")]);
        let disks = list(vec![example("null")]);
        let claims = |of: &DiskSpec, but| {
            [
                claim(of, of_items(&volumes)),
                claim(of, of_items(&snapshots)),
                claim(of, of_disks(&disks, but)),
            ]
        };
        let all = [
            "LocalVolume pvc-1",
            "LocalSnapshot snap-1",
            "LocalDisk node1.default",
        ];
        assert_eq!(
            claims(&here, "node2.default"),
            all.map(|it| Some(it.to_owned()))
        );
        for other in &elsewhere {
            assert_eq!(claims(other, "node2.default"), [None, None, None]);
        }
        // A disk is not in its own way.
        assert_eq!(claims(&here, "node1.default")[2], None);

        // An object of another release may be on any disk.
        let newer = list(vec![changed(
            &volume(&[], "null"),
            "spec",
            r#"{"newer": 1}"#,
        )]);
        for any in elsewhere.iter().chain([&here]) {
            assert!(claim(any, of_items(&newer)).is_some());
        }
    }
}
