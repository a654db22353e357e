//! The snapshots of the simulated cloud, which accepts their names twice, too.

use crate::cloud::{Cloud, GIB, State, busy};
use belay_controller::backend::{Attempt, Mark, Phase, Snapshot, SnapshotOrder};
use belay_server::call::Failure;
use belay_server::request::{Name, SnapshotId, VolumeId};
use std::time::SystemTime;
use tokio::time::Instant;

pub(crate) struct Kept {
    name: Name,
    attempt: Option<Attempt>,
    claim: Option<SnapshotId>,
    snapshot: Snapshot,
    /// Whether the cloud accepts the deletion but keeps the snapshot.
    is_needed: bool,
    /// The next phase and its time; a phase of `None` means removal.
    next: Option<(Instant, Option<Phase>)>,
}

impl Kept {
    pub(crate) fn id(&self) -> String {
        self.snapshot.id.to_string()
    }

    pub(crate) fn describe(&self) -> String {
        let (name, seen) = (self.name.as_str(), self.seen());
        format!("{name}: {} {:?} {:?}\n", seen.id, seen.mark, seen.phase)
    }

    pub(crate) fn phase_of(&self, id: &str) -> Option<&Phase> {
        (self.snapshot.id.as_str() == id).then_some(&self.snapshot.phase)
    }

    /// Whether it still exists.
    pub(crate) fn settle(&mut self, now: Instant) -> bool {
        match self.next.take_if(|(at, _)| *at <= now) {
            Some((_, None)) => return false,
            Some((_, Some(phase))) => {
                self.snapshot.ready = phase == Phase::Ready;
                self.snapshot.phase = phase;
            }
            None => {}
        }
        true
    }

    fn seen(&self) -> Snapshot {
        let mark = match (&self.claim, &self.attempt) {
            (Some(id), _) if *id == self.snapshot.id => Mark::Claimed,
            (Some(_), _) => Mark::Copied,
            (None, Some(attempt)) => Mark::Open(attempt.clone()),
            (None, None) => Mark::None,
        };
        Snapshot {
            mark,
            name: Some(self.name.as_str().to_owned()),
            ..self.snapshot.clone()
        }
    }
}

fn ready(id: SnapshotId, source: VolumeId) -> Snapshot {
    Snapshot {
        id,
        name: None,
        phase: Phase::Ready,
        mark: Mark::None,
        source,
        bytes: 4 * GIB,
        created: SystemTime::UNIX_EPOCH,
        ready: true,
        damage: None,
    }
}

impl Cloud {
    /// Adds a snapshot that another program has cut.
    pub(crate) fn leave_snapshot(&self, id: &str, name: &str, of: &str) {
        let id = SnapshotId::new(id).unwrap();
        self.state().kept.push(Kept {
            name: Name::new(name).unwrap(),
            attempt: None,
            claim: None,
            snapshot: ready(id, VolumeId::new(of).unwrap()),
            is_needed: false,
            next: None,
        });
    }

    /// Copies the first snapshot with this name, including its marks, as another program.
    pub(crate) fn copy_snapshot(&self, name: &str, id: &str) {
        let mut state = self.state();
        let mut named = state.kept.iter().filter(|kept| kept.name.as_str() == name);
        let Some(from) = named.find(|kept| kept.snapshot.ready) else {
            return;
        };
        let copy = Kept {
            name: from.name.clone(),
            attempt: from.attempt.clone(),
            claim: from.claim.clone(),
            snapshot: Snapshot {
                id: SnapshotId::new(id).unwrap(),
                ..from.snapshot.clone()
            },
            is_needed: false,
            next: None,
        };
        state.kept.push(copy);
    }
}

impl State {
    pub(crate) fn snapshots_named(&self, name: &Name) -> Vec<Snapshot> {
        let named = self.kept.iter().filter(|kept| kept.name == *name);
        named.map(Kept::seen).collect()
    }

    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.kept.iter().map(Kept::seen).collect()
    }

    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Option<Snapshot> {
        self.snapshots().into_iter().find(|kept| kept.id == *id)
    }

    /// Creates a snapshot, and returns it in the state of being cut.
    pub(crate) fn cut(
        &mut self,
        order: &SnapshotOrder,
        at: Instant,
        id: u32,
    ) -> Result<Snapshot, Failure> {
        let Some(of) = self.get(&order.source) else {
            let id = &order.source;
            return Err(Failure::not_found(format!("volume {id}: not found")));
        };
        if of.phase != Phase::Ready {
            return Err(Failure::busy(format!(
                "volume {}: the cloud says 400",
                of.id
            )));
        }
        self.made += 1;
        let id = SnapshotId::new(format!("snap-{id:05}-{}", self.made)).unwrap();
        let begun = Snapshot {
            phase: busy("creating"),
            ready: false,
            bytes: of.bytes,
            ..ready(id, of.id)
        };
        let next = match order.parameters.get("class") {
            Some("doomed") => Phase::Failed(Failure::quota("no host has room")),
            _ => Phase::Ready,
        };
        self.kept.push(Kept {
            name: order.name.clone(),
            attempt: Some(order.attempt.clone()),
            claim: None,
            snapshot: begun.clone(),
            is_needed: order.parameters.get("class") == Some("needed"),
            next: Some((at, Some(next))),
        });
        if self.is_strange {
            let mut others = self.kept.iter().filter(|kept| kept.name != order.name);
            let nothing = || ready(SnapshotId::new("../../account").unwrap(), begun.source);
            return Ok(others.next().map_or_else(nothing, Kept::seen));
        }
        Ok(Snapshot {
            mark: Mark::Open(order.attempt.clone()),
            name: Some(order.name.as_str().to_owned()),
            ..begun
        })
    }

    pub(crate) fn claim_snapshot(&mut self, id: &SnapshotId) -> Result<(), Failure> {
        let mut all = self.kept.iter_mut();
        let kept = all.find(|kept| kept.snapshot.id == *id);
        let missing = || Failure::not_found(format!("snapshot {id}: not found"));
        kept.ok_or_else(missing)?.claim = Some(id.clone());
        Ok(())
    }

    /// Starts a deletion; returns whether there is anything to delete.
    pub(crate) fn discard(&mut self, id: &SnapshotId, at: Instant) -> Result<bool, Failure> {
        let is_wanted = self.is_wanted(id.as_str());
        let mut all = self.kept.iter_mut();
        let Some(kept) = all.find(|kept| kept.snapshot.id == *id) else {
            return Ok(false);
        };
        if kept.snapshot.phase == Phase::Deleting {
            return Ok(true);
        }
        if kept.next.is_some() {
            return Err(Failure::busy(format!("snapshot {id}: the cloud says 400")));
        }
        kept.snapshot.phase = Phase::Deleting;
        kept.snapshot.ready = false;
        kept.next = Some((at, kept.is_needed.then_some(Phase::Ready)));
        if is_wanted {
            self.broken
                .push(format!("{id} is deleted although it was returned"));
        }
        Ok(true)
    }
}
