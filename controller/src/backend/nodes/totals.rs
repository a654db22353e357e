//! The totals of the volumes or snapshots on each disk. A cache keeps them up to date with its
//! objects, so that a creation does not walk over all objects. Makes no calls.

use super::item::{disk_of, wanted};
use super::meaning::{Meaning, is_growing, meaning};
use crate::kubernetes::{LocalSnapshot, LocalVolume, Object};
use std::collections::{BTreeSet, HashMap};

/// The part of an object in the total of its disk. It depends only on the object, so a cache adds
/// and subtracts the same share.
pub(super) struct Share {
    /// The name of the LocalDisk.
    disk: String,
    /// The number of bytes that count for the object; 0 if only its source has a size.
    bytes: u64,
    /// Whether no store has accepted the order, or only the source of the snapshot has a size.
    is_open: bool,
}

/// The totals, by the name of the LocalDisk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Totals(HashMap<String, Total>);

/// The total of a disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    /// The sum of the shares in bytes, which cannot overflow.
    pub(super) bytes: u128,
    /// The names of the open objects. Few are open at a time.
    pub(super) open: BTreeSet<String>,
}

impl Totals {
    pub(super) fn of(&self, disk: &str) -> Option<&Total> {
        self.0.get(disk)
    }

    /// Adds the share of the object with this name.
    pub(super) fn add(&mut self, name: &str, share: Share) {
        let total = self.0.entry(share.disk).or_default();
        total.bytes += u128::from(share.bytes);
        if share.is_open {
            total.open.insert(name.to_owned());
        }
    }

    /// Subtracts the share of an object, which was added.
    pub(super) fn subtract(&mut self, name: &str, share: &Share) {
        let Some(total) = self.0.get_mut(&share.disk) else {
            return;
        };
        total.bytes -= u128::from(share.bytes);
        total.open.remove(name);
        if *total == Total::default() {
            self.0.remove(&share.disk);
        }
    }
}

/// Returns the share of the volume; `None` if its disk is unknown.
pub(super) fn of_volume(volume: &Object<LocalVolume>) -> Option<Share> {
    Some(Share {
        disk: disk_of(&wanted(volume)?),
        bytes: bytes_of(volume),
        is_open: meaning(volume) == Meaning::Ordered,
    })
}

/// Returns the share of the snapshot; `None` if its disk is unknown.
pub(super) fn of_snapshot(snapshot: &Object<LocalSnapshot>) -> Option<Share> {
    let has_file = !matches!(meaning(snapshot), Meaning::Refused(_) | Meaning::Removed);
    let bytes = snapshot.known_status().and_then(|status| status.bytes);
    Some(Share {
        disk: disk_of(&wanted(snapshot)?),
        bytes: bytes.filter(|_| has_file).unwrap_or(0),
        is_open: has_file && bytes.is_none(),
    })
}

/// Returns the number of bytes that count for a volume; 0 if the volume has no file.
pub(super) fn bytes_of(volume: &Object<LocalVolume>) -> u64 {
    if matches!(meaning(volume), Meaning::Refused(_) | Meaning::Removed) {
        return 0;
    }
    let asked = volume.spec.known().map_or(0, |spec| spec.bytes);
    let status = volume.known_status();
    match status.and_then(|status| status.bytes) {
        Some(now) if !is_growing(volume) => now,
        now => asked.max(now.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::disks::Promised;
    use super::super::examples::{changed, snapshot, unused, volume};
    use super::super::item::Item;
    use super::super::{Front, follow::Followed};
    use super::*;
    use crate::kubernetes::{Event, FINALIZER};
    use belay_bed::chance::Chance;
    use belay_server::call::Failure;
    use std::time::Duration;
    use tokio::time::advance;

    const NODES: [&str; 2] = ["node1", "node2"];
    const STATES: [&str; 9] = [
        "null",
        r#"{"phase": "Making"}"#,
        r#"{"phase": "Ready", "bytes": 5}"#,
        r#"{"phase": "Ready", "bytes": 5, "observedGeneration": 3}"#,
        r#"{"phase": "Ready", "bytes": 18446744073709551615}"#,
        r#"{"phase": "Removing", "bytes": 7}"#,
        r#"{"phase": "Refused"}"#,
        r#"{"phase": "Lost"}"#,
        r#"{"phase": "OfANewerRelease"}"#,
    ];

    /// Returns the object with random fields, as number `number` of its kind.
    fn random<R: Item>(chance: &mut Chance, of: &Object<R>, number: u64) -> Object<R> {
        let (node, uid) = (chance.pick(&NODES), chance.below(2));
        let finalizers = chance.pick(&["[]", r#"["belay.dev/store"]"#]);
        let metadata = format!(
            r#"{{"name": "o-{number}", "uid": "{number}-{uid}", "finalizers": {finalizers}}}"#
        );
        let of = changed(of, "metadata", &metadata);
        let of = changed(
            &of,
            "spec",
            &format!(r#"{{"id": "i-{number}", "node": "{node}"}}"#),
        );
        let mut of = match chance.below(8) {
            0 => changed(&of, "spec", r#"{"remove": 3}"#),
            1 => changed(&of, "spec", r#"{"encrypted": true}"#),
            _ => of,
        };
        let status = *chance.pick::<&str>(&STATES);
        of.status = serde_json::from_str(status).unwrap();
        of
    }

    fn random_volume(chance: &mut Chance) -> Object<LocalVolume> {
        let of = volume(&[], "null");
        let bytes = format!(r#"{{"bytes": {}}}"#, chance.below(10));
        let number = chance.below(5);
        random(chance, &changed(&of, "spec", &bytes), number)
    }

    fn random_snapshot(chance: &mut Chance) -> Object<LocalSnapshot> {
        let of = snapshot("null");
        let source = format!(r#"{{"volume": "i-{}"}}"#, chance.below(6));
        let number = chance.below(5);
        random(chance, &changed(&of, "spec", &source), number)
    }

    fn apply<R: Followed>(
        front: &Front,
        chance: &mut Chance,
        one: impl Fn(&mut Chance) -> Object<R>,
    ) {
        R::cache(front).apply(match chance.below(10) {
            0 => Err(Failure::bug("down")),
            1 => {
                let all = (0..chance.below(6)).map(|_| one(chance));
                Ok(Event::Listed(all.collect()))
            }
            2..=4 => Ok(Event::Deleted(one(chance))),
            _ => Ok(Event::Changed(one(chance))),
        });
    }

    /// Returns the totals of a disk from all objects.
    fn walked(front: &Front, disk: &str) -> Promised {
        let (mut bytes, mut orders) = (0, Vec::new());
        let mut sizes = HashMap::new();
        for seen in front.volumes.all() {
            let Some(wanted) = wanted(&seen.object) else {
                continue;
            };
            let own = u128::from(bytes_of(&seen.object));
            sizes.insert(wanted.id.to_owned(), own);
            if disk_of(&wanted) == disk {
                bytes += own;
                orders.extend((meaning(&seen.object) == Meaning::Ordered).then_some(seen.since));
            }
        }
        for seen in front.snapshots.all() {
            if wanted(&seen.object).is_none_or(|it| disk_of(&it) != disk) {
                continue;
            }
            let state = meaning(&seen.object);
            let source = seen.object.spec.known().unwrap().volume.clone();
            let of_source = sizes.get(&source).copied().unwrap_or(0);
            let reported = seen.object.known_status().and_then(|status| status.bytes);
            if !matches!(state, Meaning::Refused(_) | Meaning::Removed) {
                bytes += reported.map_or(of_source, u128::from);
            }
            orders.extend((state == Meaning::Ordered).then_some(seen.since));
        }
        orders.sort();
        Promised {
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            orders,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_totals_are_the_same_as_of_a_walk_over_all_objects() {
        let mut chance = Chance::new("the_totals_are_the_same_as_of_a_walk_over_all_objects");
        let (nodes, _dir) = unused();
        let front = &nodes.front;
        let mut seen = BTreeSet::new();
        for step in 0..5000 {
            match chance.below(2) {
                0 => apply(front, &mut chance, random_volume),
                _ => apply(front, &mut chance, random_snapshot),
            }
            for node in NODES {
                let disk = format!("{node}.default");
                let mut kept = front.promised(&disk);
                kept.orders.sort();
                assert_eq!(kept, walked(front, &disk), "{disk} after {step}");
                seen.insert((kept.bytes, kept.orders.len()));
            }
            advance(Duration::from_millis(1)).await;
        }
        assert!(seen.len() > 20, "few states: {seen:?}");
    }

    #[test]
    fn a_disk_without_shares_has_no_total() {
        let mut totals = Totals::default();
        let of = || of_volume(&volume(&[FINALIZER], STATES[2])).unwrap();
        totals.add("pvc-1", of());
        assert_eq!(totals.of("node1.default").unwrap().bytes, 5);
        totals.subtract("pvc-1", &of());
        assert_eq!(totals, Totals::default());
    }
}
