//! Creates objects for existing files: for volumes that a PersistentVolume has, and for snapshots
//! that a VolumeSnapshotContent has. The store of a disk creates no file for these objects, and
//! refuses them if it does not have the file. Other files without objects are only reported.

use super::Front;
use super::cache::Seen;
use super::disks::files;
use super::follow::Followed;
use super::item::{disk_of, object_name, wanted};
use super::permit::{disk, places};
use super::settle::Settled;
use crate::backend::local::id;
use crate::kubernetes::{
    Change, LocalDisk, LocalSnapshot, LocalVolume, Object, PersistentVolume, SPEC_VERSION,
    Selector, SnapshotContent, SnapshotSpec, UnlistedFile, VolumeSpec, Written,
};
use belay_contract::drivers::local::UNKNOWN_VOLUME;
use belay_server::call::{Failure, Kind};
use belay_server::request::Name;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The parts of the names that external-snapshotter gives to a content and to its snapshot.
const CONTENT: &str = "snapcontent-";
const SNAPSHOT: &str = "snapshot-";

/// A disk that is served and that has files without objects.
#[derive(Debug)]
struct Home {
    /// The name of the LocalDisk.
    name: String,
    place: String,
    node: String,
    disk: String,
    /// Some of the files.
    first: Vec<UnlistedFile>,
}

/// The results of earlier attempts.
#[derive(Default)]
struct Earlier {
    /// The number of files without objects, by the name of the LocalDisk.
    counts: HashMap<String, u64>,
    /// The IDs that a store has refused, and the names of the LocalDisks.
    refused: HashSet<(String, String)>,
}

/// An object for an existing file.
struct Adoption<R: Followed> {
    /// The PersistentVolume or VolumeSnapshotContent, for messages.
    claim: String,
    id: String,
    /// The name of the new object.
    name: String,
    /// The names of the LocalDisks that may have the file, and the spec for each disk.
    choices: Vec<(String, R::Spec)>,
}

impl Front {
    /// Adopts files until the task is aborted: at the start, at intervals, and when a disk has more
    /// files without objects than before. Several controllers begin at random times.
    pub(super) async fn adopt(self: Arc<Self>) {
        let mut changes = self.disks.changes();
        let (mut earlier, mut logged) = (Earlier::default(), None);
        let first = self.limits.check / 6;
        let mut retry = first;
        let mut due = Instant::now() + random(first);
        loop {
            changes.borrow_and_update();
            if self.has_more(&mut earlier) {
                due = due.min(Instant::now() + random(self.limits.check / 30));
            }
            if Instant::now() < due {
                // A timeout is seen at the start of the loop.
                drop(timeout_at(due, changes.changed()).await);
                continue;
            }
            let pause = match self.adopt_all(&mut earlier).await {
                Ok(()) => {
                    retry = first;
                    self.limits.adopt
                }
                Err(failure) => {
                    if logged.as_ref() != Some(&failure.message) {
                        tracing::warn!("not all files of volumes are adopted: {failure}");
                    }
                    logged = Some(failure.message);
                    // The account may not have the right to list contents.
                    let pause = retry;
                    retry = self.limits.check.min(retry * 2);
                    pause
                }
            };
            due = Instant::now() + pause + random(pause / 10);
        }
    }

    /// Whether a disk has more files without objects than before.
    fn has_more(&self, earlier: &mut Earlier) -> bool {
        let mut has_more = false;
        for seen in self.disks.all() {
            let name = &seen.object.metadata.name;
            let count = files(&seen.object).map_or(0, |files| files.count);
            if Some(count) > earlier.counts.insert(name.clone(), count).or(Some(0)) {
                earlier.refused.retain(|(_, disk)| disk != name);
                has_more = true;
            }
        }
        has_more
    }

    /// Returns the disks that may have files to adopt, by name.
    fn homes(&self) -> Vec<Home> {
        let home = |seen: &Seen<LocalDisk>| {
            let spec = seen.object.spec.known()?;
            let files = files(&seen.object)?;
            (files.count > 0 && self.usable(seen).is_ok()).then(|| Home {
                name: seen.object.metadata.name.clone(),
                place: spec.place.clone(),
                node: spec.node.clone(),
                disk: spec.disk.clone(),
                first: files.first.clone(),
            })
        };
        let mut homes: Vec<_> = self.disks.all().iter().filter_map(home).collect();
        homes.sort_by(|a, b| a.name.cmp(&b.name));
        homes
    }

    /// Adopts the files of all volumes and snapshots that have no object.
    ///
    /// # Errors
    /// Returns the errors of the lists, and a failure of one file after all others were tried.
    async fn adopt_all(&self, earlier: &mut Earlier) -> Result<(), Failure> {
        let homes = self.homes();
        if homes.is_empty() {
            return Ok(());
        }
        let mut persistent = self.client.persistent_volumes(&self.driver).await?;
        self.keep_unknown::<LocalVolume, _>(&mut persistent, |it| &it.handle)
            .await?;
        let mut result = Ok(());
        for volume in &persistent {
            let adopted = self.adopt_one(of_volume(volume, &homes), earlier).await;
            match adopted {
                Ok(Some(object)) => result = result.and(self.correct_size(&object).await),
                Ok(None) => {}
                Err(failure) => result = Err(failure),
            }
        }
        let mut contents = self.client.snapshot_contents(&self.driver).await?;
        self.keep_unknown::<LocalSnapshot, _>(&mut contents, |it| &it.handle)
            .await?;
        for content in &contents {
            let volume = content.volume.as_ref();
            let volume = volume.and_then(|id| self.volumes.identified(id));
            let near = volume.and_then(|seen| wanted(&seen.object).map(|it| disk_of(&it)));
            let adoption = of_content(content, near.as_deref(), &homes);
            let adopted = self.adopt_one(adoption, earlier).await;
            result = result.and(adopted.map(drop));
        }
        result
    }

    /// Removes the claims whose IDs have objects, or are not IDs of this backend.
    async fn keep_unknown<R: Followed, C>(
        &self,
        claims: &mut Vec<C>,
        id: impl Fn(&C) -> &str,
    ) -> Result<(), Failure> {
        R::cache(self).current()?;
        claims.retain(|it| R::cache(self).identified(id(it)).is_none());
        if claims.is_empty() {
            return Ok(());
        }
        let list = self.client.list::<R>(&Selector::all()).await?;
        let wanted = list.items.iter().filter_map(wanted);
        let mut known: HashSet<_> = wanted.map(|it| it.id.to_owned()).collect();
        // The first of several claims with one ID has the file.
        claims.retain(|it| known.insert(id(it).to_owned()));
        Ok(())
    }

    /// Creates an object for each possible disk in turn, until a store has the file. A store's
    /// refusal is logged, and not asked for again until its disk has more files.
    ///
    /// # Errors
    /// Returns a failure after which another attempt may succeed.
    async fn adopt_one<R: Followed>(
        &self,
        adoption: Option<Adoption<R>>,
        earlier: &mut Earlier,
    ) -> Result<Option<Arc<Object<R>>>, Failure> {
        let Some(Adoption {
            claim,
            id,
            name,
            choices,
        }) = adoption
        else {
            return Ok(None);
        };
        let mut refusal = None;
        for (disk, spec) in choices {
            let seen = self.disks.named(&disk);
            let attempt = (id.clone(), disk);
            let is_usable = seen.is_some_and(|seen| self.usable(&seen).is_ok());
            if !is_usable || earlier.refused.contains(&attempt) {
                continue;
            }
            let settled = match self.client.create::<R>(&name, &spec).await {
                Ok(Written::Done(object)) => self.settle(Arc::new(object), self.until()).await?,
                // Another controller adopts the file, or another file has the name.
                Ok(Written::Conflict | Written::Missing) => return Ok(None),
                Err(failure) if failure.kind == Kind::Precondition => Settled::Refused(failure),
                Err(failure) => return Err(failure),
            };
            match settled {
                Settled::Usable(object) => {
                    tracing::info!("{} {id}: adopted from {} for {claim}", R::WHAT, attempt.1);
                    return Ok(Some(object));
                }
                Settled::Refused(failure) => {
                    earlier.refused.insert(attempt);
                    refusal = Some(failure);
                }
                // The disk is not usable until its store reports again.
                Settled::Withdrawn => {}
                Settled::Lost(_) | Settled::Gone => return Ok(None),
            }
        }
        if let Some(refusal) = refusal {
            let what = R::WHAT;
            tracing::warn!("{what} {id}: {claim} has it, but it is not adopted: {refusal}");
        }
        Ok(None)
    }

    /// Requests the size that the file has, if the PersistentVolume is larger: nothing has
    /// requested an expansion.
    async fn correct_size(&self, volume: &Object<LocalVolume>) -> Result<(), Failure> {
        let asked = volume.spec.known().map_or(0, |spec| spec.bytes);
        let status = volume.known_status();
        match status.and_then(|status| status.bytes) {
            Some(bytes) if asked > bytes => {
                let change = Change::<LocalVolume>::Spec(json!({"bytes": bytes}));
                let patched = self.client.patch(&volume.metadata, change).await;
                patched.map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the object for the volume of a PersistentVolume; `None` if none of the disks is the
/// volume's.
fn of_volume(volume: &PersistentVolume, homes: &[Home]) -> Option<Adoption<LocalVolume>> {
    let mut places = places(volume);
    let place = places.next()?;
    if !id::is_ours(id::VOLUME, &volume.handle) || places.any(|other| other != place) {
        return None;
    }
    let name = named(&volume.name, &volume.handle)?;
    let bytes = volume.bytes?;
    let here = |home: &&Home| home.place == place && home.disk == disk(volume);
    let choice = |home: &Home| {
        let spec = VolumeSpec {
            version: SPEC_VERSION,
            id: volume.handle.clone(),
            name: name.as_str().to_owned(),
            place: home.place.clone(),
            disk: home.disk.clone(),
            node: home.node.clone(),
            bytes,
            usage: volume.usage.clone(),
            source: None,
            adopt: true,
            remove: None,
        };
        (home.name.clone(), spec)
    };
    Some(Adoption {
        claim: format!("PersistentVolume {}", volume.name),
        id: volume.handle.clone(),
        name: object_name(&name),
        choices: homes.iter().filter(here).map(choice).collect(),
    })
}

/// Returns the object for the snapshot of a VolumeSnapshotContent. `near` is the name of the
/// LocalDisk with the volume of the snapshot, if it is known: the disk is tried first, then
/// those that list the file.
fn of_content(
    content: &SnapshotContent,
    near: Option<&str>,
    homes: &[Home],
) -> Option<Adoption<LocalSnapshot>> {
    let id = &content.handle;
    if !id::is_ours(id::SNAPSHOT, id) {
        return None;
    }
    let listed = |home: &Home| home.first.iter().find(|file| file.id == *id).cloned();
    let mut homes: Vec<_> = homes.iter().collect();
    homes.sort_by_key(|home| (near != Some(home.name.as_str()), listed(home).is_none()));
    // All controllers choose the same name, so only one of them creates the object.
    let name = match content.name.strip_prefix(CONTENT) {
        Some(uid) => format!("{SNAPSHOT}{uid}"),
        None => content.name.clone(),
    };
    let name = named(&name, id)?;
    let volume = content.volume.as_deref();
    let volume = volume.filter(|id| id::is_ours(id::VOLUME, id));
    let choice = |home: &Home| {
        let spec = SnapshotSpec {
            version: SPEC_VERSION,
            id: id.clone(),
            name: name.as_str().to_owned(),
            place: home.place.clone(),
            disk: home.disk.clone(),
            node: home.node.clone(),
            volume: volume.unwrap_or(UNKNOWN_VOLUME).to_owned(),
            adopt: true,
            remove: None,
        };
        (home.name.clone(), spec)
    };
    Some(Adoption {
        claim: format!("VolumeSnapshotContent {}", content.name),
        id: id.clone(),
        name: object_name(&name),
        choices: homes.into_iter().map(choice).collect(),
    })
}

/// Returns the name, or the ID if no request can have the name.
fn named(name: &str, id: &str) -> Option<Name> {
    Name::new(name).or_else(|_| Name::new(id)).ok()
}

/// Returns a random duration of at most `max`.
fn random(max: Duration) -> Duration {
    let mut random = [0];
    match getrandom::fill(&mut random) {
        Ok(()) => max * u32::from(random[0]) / 255,
        Err(_) => max,
    }
}

#[cfg(test)]
mod tests {
    use super::super::KEY;
    use super::*;
    use crate::kubernetes::{Mode, Usage};
    use std::collections::BTreeMap;

    const VOLUME: &str = "vol-00000000000000000000000000000001";
    const ID: &str = "snap-00000000000000000000000000000001";

    fn home(node: &str, disk: &str, first: &[(&str, &str)]) -> Home {
        let first = first.iter().map(|(id, name)| UnlistedFile {
            id: (*id).to_owned(),
            name: Some((*name).to_owned()),
            bytes: 1,
        });
        Home {
            name: format!("{node}.{disk}"),
            place: format!("place of {node}"),
            node: node.to_owned(),
            disk: disk.to_owned(),
            first: first.collect(),
        }
    }

    fn persistent(places: &[&str], handle: &str) -> PersistentVolume {
        let label = |place: &&str| (KEY.to_owned(), format!("place of {place}"));
        PersistentVolume {
            name: "pvc-1".to_owned(),
            handle: handle.to_owned(),
            attributes: BTreeMap::new(),
            bytes: Some(7),
            usage: Usage {
                mode: Mode::Filesystem,
                filesystem: Some("xfs".to_owned()),
            },
            labels: places.iter().map(label).collect(),
        }
    }

    #[test]
    fn a_volume_is_adopted_at_its_place_and_disk_only() {
        let homes = [
            home("a", "default", &[]),
            home("b", "default", &[]),
            home("b", "fast", &[]),
        ];
        let adoption = of_volume(&persistent(&["b"], VOLUME), &homes).unwrap();
        assert_eq!((&*adoption.name, &*adoption.id), ("pvc-1", VOLUME));
        let [(disk, spec)] = adoption.choices.try_into().unwrap();
        assert_eq!(disk, "b.default");
        assert!(spec.adopt && spec.source.is_none() && spec.remove.is_none());
        assert_eq!(
            (&*spec.place, &*spec.node, spec.bytes),
            ("place of b", "b", 7)
        );
        assert_eq!(spec.usage.filesystem.as_deref(), Some("xfs"));

        let mut fast = persistent(&["b"], VOLUME);
        fast.attributes = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
        let adoption = of_volume(&fast, &homes).unwrap();
        assert_eq!(adoption.choices[0].0, "b.fast");
        let absent = of_volume(&persistent(&["c"], VOLUME), &homes).unwrap();
        assert!(absent.choices.is_empty());

        let strange = PersistentVolume {
            bytes: None,
            ..persistent(&["b"], VOLUME)
        };
        for none in [
            persistent(&[], VOLUME),
            persistent(&["a", "b"], VOLUME),
            persistent(&["b"], "other"),
            persistent(&["b"], ID),
            strange,
        ] {
            assert!(of_volume(&none, &homes).is_none(), "{none:?}");
        }
    }

    #[test]
    fn a_snapshot_is_tried_first_near_its_volume_and_then_on_the_disk_that_lists_it() {
        let content = SnapshotContent {
            name: "snapcontent-7".to_owned(),
            handle: ID.to_owned(),
            volume: Some(VOLUME.to_owned()),
        };
        let order = |content: &SnapshotContent, near, homes: &[Home]| {
            let adoption = of_content(content, near, homes).unwrap();
            let disks: Vec<_> = adoption
                .choices
                .iter()
                .map(|(disk, _)| disk.clone())
                .collect();
            (
                adoption.name,
                disks.join(" "),
                adoption.choices[0].1.volume.clone(),
            )
        };
        let plain = || {
            vec![
                home("a", "d", &[]),
                home("b", "d", &[]),
                home("c", "d", &[]),
            ]
        };
        let (name, disks, volume) = order(&content, None, &plain());
        assert_eq!(
            (&*name, &*disks, &*volume),
            ("snapshot-7", "a.d b.d c.d", VOLUME)
        );
        assert_eq!(order(&content, Some("b.d"), &plain()).1, "b.d a.d c.d");
        let mut homes = plain();
        homes[2] = home("c", "d", &[(ID, "recorded")]);
        let (name, disks, _) = order(&content, Some("b.d"), &homes);
        assert_eq!((&*name, &*disks), ("snapshot-7", "b.d c.d a.d"));

        let existing = SnapshotContent {
            name: "backup".to_owned(),
            volume: None,
            ..content.clone()
        };
        let (name, _, volume) = order(&existing, None, &plain());
        assert_eq!((&*name, &*volume), ("backup", UNKNOWN_VOLUME));
        let foreign = SnapshotContent {
            handle: "other".to_owned(),
            ..content
        };
        assert!(of_content(&foreign, None, &plain()).is_none());
    }

    #[test]
    fn a_name_that_no_request_can_have_is_replaced_by_the_id() {
        assert_eq!(named("pvc-1", VOLUME).unwrap().as_str(), "pvc-1");
        assert_eq!(named(&"a".repeat(200), VOLUME).unwrap().as_str(), VOLUME);
    }
}
