//! Independent callers that make random calls about the same few volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::{Code, Status};

use super::scene::{Scene, impatience};
use crate::rig::{Caller, Chance, Op, Origin, Outcome, Volume, least_bytes, orders, until};

/// The volumes that the callers request, by name.
const BLANK: [(&str, &str); 8] = [
    ("blank 0", "ext4"),
    ("blank 1", "xfs"),
    ("blank 2", "btrfs"),
    ("blank 3", "block"),
    ("blank 4", "ext4"),
    ("blank 5", "xfs"),
    ("blank 6", "btrfs"),
    ("blank 7", "block"),
];
/// Volumes that are created from another volume or from a snapshot.
const COPIES: [(&str, &str); 4] = [
    ("copy 0", "ext4"),
    ("copy 1", "xfs"),
    ("copy 2", "btrfs"),
    ("copy 3", "block"),
];
/// Snapshots by name, each with the kind of its source volume: a copy keeps the filesystem.
const SNAPSHOTS: [(&str, &str); 4] = [
    ("snap 0", "ext4"),
    ("snap 1", "xfs"),
    ("snap 2", "btrfs"),
    ("snap 3", "block"),
];
/// The target paths; the last one is sometimes published read-only.
const TARGETS: [&str; 3] = ["a", "b", "c"];
/// A size that no volume reaches; the filesystems around the volumes are larger.
const TOO_MANY_BYTES: i64 = 1 << 30;
/// A volume that was seen in use is deleted once in this many attempts.
const DELETED_IN_USE: u64 = 32;
/// An ID that no volume and no snapshot has.
const NO_VOLUME: &str = "vol-00000000000000000000000000000000";
const NO_SNAPSHOT: &str = "snap-00000000000000000000000000000000";

/// The responses that any of the callers got, shared by all.
#[derive(Default)]
pub(crate) struct Shelf {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    volumes: BTreeMap<&'static str, Volume>,
    snapshots: BTreeMap<&'static str, String>,
    /// The IDs of all volumes that ever existed.
    ids: BTreeSet<String>,
}

impl Shelf {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A caller that failed has left the state consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller.
pub(crate) struct Stranger<'a> {
    scene: &'a Scene,
    shelf: &'a Shelf,
    caller: Caller,
    chance: Chance,
}

impl<'a> Stranger<'a> {
    pub(crate) fn new(scene: &'a Scene, shelf: &'a Shelf, number: usize, chance: Chance) -> Self {
        Stranger {
            scene,
            shelf,
            caller: scene.caller(format!("stranger {number}")),
            chance,
        }
    }

    /// Makes calls until the scene is over.
    pub(crate) fn run(&mut self) {
        while !self.scene.is_over() {
            let (name, kind) = match self.chance.below(4) {
                0 => *self.chance.pick(&COPIES),
                _ => *self.chance.pick(&BLANK),
            };
            let known = self.shelf.inner().volumes.get(name).cloned();
            let op = match known {
                None => self.making(name, kind),
                Some(volume) => self.choose(name, kind, volume),
            };
            let leaving = impatience(&mut self.chance);
            if let Ok(outcome) = self.scene.ask(&self.caller, &op, leaving) {
                self.tell(name, &op, outcome);
            }
        }
    }

    /// Records a response to one caller for all callers.
    fn tell(&self, name: &'static str, op: &Op, outcome: Outcome) {
        let mut inner = self.shelf.inner();
        match (op, outcome) {
            (Op::Create(..), Outcome::Volume(id, _))
                if inner.volumes.get(name).is_none_or(|known| known.id != id) =>
            {
                let site = &self.scene.site;
                let volume = Volume::made(&site.top, &site.volumes(), id.clone());
                inner.volumes.insert(name, volume);
                inner.ids.insert(id);
            }
            (Op::Stats(..), Outcome::Bytes(bytes)) if bytes >= TOO_MANY_BYTES => {
                drop(inner);
                let why = format!("reported another size: {bytes} bytes");
                self.scene.fail(op, &why);
            }
            (Op::Cut(cut, _), Outcome::Snapshot(id, _)) => {
                if let Some((name, _)) = SNAPSHOTS.iter().find(|(name, _)| name == cut) {
                    inner.snapshots.insert(name, id);
                }
            }
            _ => {}
        }
    }

    fn making(&mut self, name: &'static str, kind: &'static str) -> Op {
        if BLANK.contains(&(name, kind)) {
            return Op::Create(name.to_owned(), kind, Origin::Blank);
        }
        let inner = self.shelf.inner();
        let snapshots = SNAPSHOTS.iter().filter(|(_, of)| *of == kind);
        let snapshots = snapshots.filter_map(|(name, _)| inner.snapshots.get(name));
        let snapshots = snapshots.cloned().map(Origin::Snapshot);
        let volumes = BLANK.iter().filter(|(_, of)| *of == kind);
        let volumes = volumes.filter_map(|(name, _)| inner.volumes.get(name));
        let volumes = volumes.map(|volume| Origin::Volume(volume.id.clone()));
        let origins: Vec<_> = volumes.chain(snapshots).collect();
        drop(inner);
        if origins.is_empty() {
            return Op::List;
        }
        Op::Create(name.to_owned(), kind, self.chance.pick(&origins).clone())
    }

    fn choose(&mut self, name: &'static str, kind: &'static str, volume: Volume) -> Op {
        let id = volume.id.clone();
        let target_name = *self.chance.pick(&TARGETS);
        let target = volume.target(target_name);
        let least = i64::try_from(least_bytes(kind)).expect("a size");
        let grown = least + (i64::try_from(self.chance.below(8)).expect("small") << 20);
        match self.chance.below(34) {
            0..3 => self.making(name, kind),
            3..9 => Op::Stage(volume, kind),
            9..14 if target_name == TARGETS[2] && self.chance.below(2) == 0 => {
                Op::PublishReadOnly(volume, kind, target)
            }
            9..14 => Op::Publish(volume, kind, target),
            14..16 => Op::Stats(volume, target),
            16 => {
                let path = volume.staging.clone();
                Op::Stats(volume, path)
            }
            17 => {
                let path = volume.staging.clone();
                Op::Expand(volume, kind, path, least)
            }
            18..23 => Op::Unpublish(volume, target),
            23..26 => Op::Unstage(volume),
            26 if self.may_delete(&id) => Op::Delete(id),
            27 => Op::Grow(id, grown),
            28 | 29 => {
                let fits = |(_, of): &&(&str, &str)| *of == kind;
                let (name, _) = SNAPSHOTS.iter().find(fits).expect("one of each kind");
                Op::Cut((*name).to_owned(), id)
            }
            30 => self.discarding(),
            26 | 31 => Op::Get(id),
            32 => Op::List,
            _ => Op::ListSnapshots,
        }
    }

    /// Whether to delete a volume now: seldom if it is in use, since the refusal takes 5 seconds,
    /// during which no other change of the volume is possible.
    fn may_delete(&mut self, id: &str) -> bool {
        self.scene.site.see(id).loops == 0 || self.chance.below(DELETED_IN_USE) == 0
    }

    fn discarding(&mut self) -> Op {
        let (name, _) = *self.chance.pick(&SNAPSHOTS);
        match self.shelf.inner().snapshots.get(name) {
            Some(id) => Op::Discard(id.clone()),
            None => Op::ListSnapshots,
        }
    }
}

/// Waits until none of the crowd's calls is in progress, since abandoned calls continue. For each
/// object, makes another call that changes nothing; it returns ABORTED as long as a call is in
/// progress.
pub(crate) fn settle(scene: &Scene, shelf: &Shelf) {
    let node = scene.site.node();
    let controller = scene.site.controller();
    let settled = |ask: &dyn Fn() -> Result<(), Status>| {
        until("no call is under way", || {
            !ask().is_err_and(|status| status.code() == Code::Aborted)
        });
    };
    for (name, kind) in BLANK.iter().chain(&COPIES) {
        settled(&|| {
            controller
                .create(orders::restore(name, kind, NO_SNAPSHOT))
                .map(drop)
        });
    }
    for (name, _) in SNAPSHOTS {
        settled(&|| controller.cut(orders::cut(name, NO_VOLUME)).map(drop));
    }
    let (ids, snapshots) = {
        let inner = shelf.inner();
        (inner.ids.clone(), inner.snapshots.clone())
    };
    for id in snapshots.values() {
        settled(&|| controller.discard(orders::discard(id)).map(drop));
    }
    for id in ids {
        settled(&|| controller.expand(orders::grow(&id, 1)).map(drop));
        let volume = Volume::made(&scene.site.top, &scene.site.volumes(), id);
        let never = volume.unpublish(&volume.target("never"));
        settled(&|| node.unpublish(never.clone()).map(drop));
    }
}

/// Brings up every blank volume, call by call, without interference: each call must succeed, and
/// its response must be true.
pub(crate) fn bring_up(scene: &Scene, shelf: &Shelf) {
    let caller = scene.caller("the end".to_owned());
    for (name, kind) in BLANK {
        let create = Op::Create(name.to_owned(), kind, Origin::Blank);
        let Outcome::Volume(id, bytes) = scene.must(&caller, &create) else {
            unreachable!("a volume")
        };
        let volume = Volume::made(&scene.site.top, &scene.site.volumes(), id.clone());
        scene.must(&caller, &Op::Stage(volume.clone(), kind));
        let target = volume.target("a");
        let publish = Op::Publish(volume.clone(), kind, target.clone());
        scene.must(&caller, &publish);
        let staged = match kind {
            "block" => volume.device(),
            _ => volume.staging.clone(),
        };
        let seen = scene.site.see(&id);
        let is_true = seen.loops == 1
            && seen.bytes == u64::try_from(bytes).ok()
            && seen.mounts.contains(&target)
            && seen.mounts.contains(&staged);
        if !is_true {
            scene.fail(
                &publish,
                &format!("of {bytes} bytes is not true: {seen:#?}"),
            );
        }
        shelf.inner().ids.insert(id);
    }
}

/// Takes down everything in the ledger.
pub(crate) fn take_down(scene: &Scene, volumes: &BTreeSet<String>, snapshots: &BTreeSet<String>) {
    let caller = scene.caller("the end".to_owned());
    for id in volumes {
        let volume = Volume::made(&scene.site.top, &scene.site.volumes(), id.clone());
        for target in TARGETS {
            let target = volume.target(target);
            scene.must(&caller, &Op::Unpublish(volume.clone(), target));
        }
        scene.must(&caller, &Op::Unstage(volume));
        scene.must(&caller, &Op::Delete(id.clone()));
    }
    for id in snapshots {
        scene.must(&caller, &Op::Discard(id.clone()));
    }
}
