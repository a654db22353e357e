//! The lifecycle of one volume with its snapshots and clones, call by call. Its user trusts all
//! responses, and repeats calls that got no response.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::Code;

use super::trial::Trial;
use crate::rig::{Caller, Chance, Op, Origin, Outcome, Records, Seen, Volume, least_bytes};

/// The growth of an expansion, in bytes.
const GROWTH: i64 = 16 << 20;
const GROWTHS_MAX: u32 = 4;
const SNAPSHOTS_MAX: usize = 2;
/// The target path.
const TARGET: &str = "a";

/// The lifecycle.
pub(crate) struct Life {
    trial: Arc<Trial>,
    caller: Caller,
    chance: Chance,
    kind: &'static str,
    names: u32,
    held: Option<Held>,
    snapshots: Vec<Snapshot>,
}

/// A volume, according to the responses.
#[derive(Clone)]
struct Held {
    volume: Volume,
    bytes: i64,
    growths: u32,
    records: Records,
    is_up: bool,
    /// Whether the filesystem's log may contain a growth. Linux 6.18 cannot replay the growth of an
    /// xfs, which stays in the log for half a minute: a filesystem that was copied or cloned
    /// meanwhile, or lost power, cannot be mounted later ("xfs_buf_map_verify: daddr out of
    /// range").
    has_just_grown: bool,
}

struct Snapshot {
    id: String,
    records: Records,
}

impl Life {
    pub(crate) fn new(
        trial: &Arc<Trial>,
        number: usize,
        kind: &'static str,
        chance: Chance,
    ) -> Self {
        Life {
            trial: Arc::clone(trial),
            caller: Caller {
                site: trial.site.clone(),
                journal: Arc::clone(&trial.journal),
                who: format!("life {number} ({kind})"),
            },
            chance,
            kind,
            names: 0,
            held: None,
            snapshots: Vec::new(),
        }
    }

    /// Performs one step. Afterwards, all responses are true.
    pub(crate) fn step(&mut self) {
        let Some(mut held) = self.held.take() else {
            let name = self.fresh();
            let made = self.create(name, Origin::Blank, Records::default());
            self.held = Some(self.up(made));
            return;
        };
        let can_copy = match held.is_up {
            true => self.trial.shares_blocks && !(self.kind == "xfs" && held.has_just_grown),
            false => true,
        };
        held = match (self.chance.below(12), held.is_up) {
            (0, _) if can_copy => self.cut(held),
            (1, _) if can_copy => self.clone(held),
            (2, _) => self.restore(held),
            (3, _) => self.discard(held),
            (4, _) => self.grow(held),
            (5, true) => self.down(held),
            (6, true) => self.verify(held),
            (_, true) => self.write(held),
            (5, false) => {
                self.delete(held);
                return;
            }
            (_, false) => self.up(held),
        };
        self.held = Some(held);
    }

    fn must(&self, op: &Op) -> Outcome {
        self.trial.must(&self.caller, op)
    }

    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("{}, {}", self.caller.who, self.names)
    }

    fn create(&self, name: String, origin: Origin, records: Records) -> Held {
        let op = Op::Create(name, self.kind, origin);
        let Outcome::Volume(id, bytes) = self.must(&op) else {
            unreachable!("a volume")
        };
        let site = &self.trial.site;
        Held {
            volume: Volume::made(&site.top, &site.volumes(), id),
            has_just_grown: u64::try_from(bytes) != Ok(least_bytes(self.kind)),
            bytes,
            growths: 0,
            records,
            is_up: false,
        }
    }

    /// Stages and publishes a volume, and checks all data that was ever written to it.
    fn up(&self, mut held: Held) -> Held {
        self.must(&Op::Stage(held.volume.clone(), self.kind));
        let target = held.volume.target(TARGET);
        self.must(&Op::Publish(held.volume.clone(), self.kind, target));
        held.is_up = true;
        self.verify(held)
    }

    fn verify(&self, held: Held) -> Held {
        let target = held.volume.target(TARGET);
        if let Some(damage) = held.records.damage(self.kind, &target) {
            self.trial.fail(&Op::Stats(held.volume, target), &damage);
        }
        held
    }

    fn write(&mut self, mut held: Held) -> Held {
        let target = held.volume.target(TARGET);
        held.records.write(self.kind, &target, &mut self.chance);
        held
    }

    fn down(&self, mut held: Held) -> Held {
        let volume = held.volume.clone();
        let target = volume.target(TARGET);
        self.must(&Op::Unpublish(volume.clone(), target));
        self.must(&Op::Unstage(volume));
        held.is_up = false;
        held.has_just_grown = false;
        held
    }

    fn delete(&self, held: Held) {
        let held = self.down(held);
        self.must(&Op::Delete(held.volume.id));
    }

    fn cut(&mut self, held: Held) -> Held {
        if self.snapshots.len() == SNAPSHOTS_MAX {
            return held;
        }
        let op = Op::Cut(self.fresh(), held.volume.id.clone());
        let Outcome::Snapshot(id, _) = self.must(&op) else {
            unreachable!("a snapshot")
        };
        let records = held.records.clone();
        self.snapshots.push(Snapshot { id, records });
        held
    }

    fn discard(&mut self, held: Held) -> Held {
        if let Some(snapshot) = self.snapshots.pop() {
            self.must(&Op::Discard(snapshot.id));
        }
        held
    }

    fn restore(&mut self, held: Held) -> Held {
        let Some(snapshot) = self.snapshots.first() else {
            return held;
        };
        let (origin, records) = (snapshot.id.clone(), snapshot.records.clone());
        self.copy(held, Origin::Snapshot(origin), records)
    }

    fn clone(&mut self, held: Held) -> Held {
        let origin = Origin::Volume(held.volume.id.clone());
        let records = held.records.clone();
        self.copy(held, origin, records)
    }

    /// Creates another volume; then deletes one of the two, and keeps the other.
    fn copy(&mut self, held: Held, origin: Origin, records: Records) -> Held {
        let name = self.fresh();
        let copy = self.create(name, origin, records);
        let copy = self.up(copy);
        let copy = self.write(copy);
        let copy = self.verify(copy);
        let (kept, given_up) = match self.chance.below(2) {
            0 => (held, copy),
            _ => (copy, held),
        };
        self.delete(given_up);
        if kept.is_up { self.verify(kept) } else { kept }
    }

    fn grow(&self, mut held: Held) -> Held {
        if held.growths == GROWTHS_MAX {
            return held;
        }
        held.growths += 1;
        held.bytes += GROWTH;
        held.has_just_grown = true;
        let (volume, bytes) = (held.volume.clone(), held.bytes);
        self.must(&Op::Grow(volume.id.clone(), bytes));
        if !held.is_up {
            return held;
        }
        let path = volume.target(TARGET);
        let op = Op::Expand(volume, self.kind, path, bytes);
        match self.trial.insist(&self.caller, &op) {
            Ok(Outcome::Bytes(reported)) if reported == bytes => {}
            // This machine may not grant CAP_SYS_RESOURCE.
            Err(status) if self.kind == "ext4" && status.code() == Code::FailedPrecondition => {}
            other => self.trial.fail(&op, &format!("ended with {other:?}")),
        }
        held
    }

    /// Compares all responses with the actual state. No other calls may run meanwhile.
    pub(crate) fn check(&self) {
        let Some(held) = &self.held else { return };
        let staged = match self.kind {
            "block" => held.volume.device(),
            _ => held.volume.staging.clone(),
        };
        let mounts = [staged, held.volume.target(TARGET)];
        let reported = Seen {
            mounts: mounts.into_iter().filter(|_| held.is_up).collect(),
            loops: usize::from(held.is_up),
            bytes: u64::try_from(held.bytes).ok(),
        };
        let seen = self.trial.site.see(&held.volume.id);
        if seen != reported {
            let why = format!(
                "{} was answered {reported:#?}, and sees {seen:#?}",
                self.caller.who
            );
            self.trial.fail(&Op::Get(held.volume.id.clone()), &why);
        }
        if held.is_up {
            self.verify(held.clone());
        }
    }

    /// Returns the IDs of the volume and of its snapshots.
    pub(crate) fn ids(&self) -> [BTreeSet<String>; 2] {
        let volume = self.held.iter().map(|held| held.volume.id.clone());
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.id.clone());
        [volume.collect(), snapshots.collect()]
    }

    /// Takes everything down.
    pub(crate) fn leave(&mut self) {
        if let Some(held) = self.held.take() {
            // A volume that is down is brought up again: it must hold all data.
            let held = if held.is_up { held } else { self.up(held) };
            let held = self.verify(held);
            self.delete(held);
        }
        while let Some(snapshot) = self.snapshots.pop() {
            self.must(&Op::Discard(snapshot.id));
        }
    }
}
