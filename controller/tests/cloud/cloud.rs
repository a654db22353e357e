//! A simulated cloud that differs from `local`: it accepts a name twice, responds before a change
//! is made, and stores neither the usage of a volume nor its context. It uses the clock of tokio.
//! Any request can have a bad fate.

use crate::fate::{Fate, Fates, Verb};
use crate::kept::Kept;
use belay_contract::topology::Topology;
use belay_controller::backend::{Attempt, Mark, Order, Phase, Volume};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Name, NodeId, VolumeId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub(crate) const GIB: u64 = 1 << 30;
/// The topology key of every volume's zone.
pub(crate) const ZONE: &str = "zone.example.org";

/// The cloud, shared by all its controllers.
pub(crate) struct Cloud {
    state: Mutex<State>,
    fates: Fates,
    /// The number of reads of single volumes by ID, and of pages.
    pub(crate) looks: AtomicUsize,
    pub(crate) pages: AtomicUsize,
    /// The duration of each change.
    pub(crate) delay: Duration,
}

#[derive(Default)]
pub(crate) struct State {
    held: Vec<Held>,
    pub(crate) kept: Vec<Kept>,
    /// The IDs that callers have received, and those whose deletion they have requested.
    pub(crate) answered: HashSet<String>,
    pub(crate) condemned: HashSet<String>,
    pub(crate) made: usize,
    pub(crate) broken: Vec<String>,
    /// The number of accepted changes of volumes.
    pub(crate) begun: usize,
    /// The number of further changes of volumes that are accepted but not made.
    pub(crate) drops: usize,
    /// Whether creations return another object, or an invalid ID.
    pub(crate) is_strange: bool,
    pub(crate) cause: Cause,
}

/// The cloud's explanation of a change that it has not made.
#[derive(Clone, Default)]
pub(crate) enum Cause {
    #[default]
    Unknown,
    Known(Failure),
    Refused,
    Silence,
}

struct Held {
    name: Name,
    /// The account whose list shows the volume; `None` if all lists do.
    account: Option<String>,
    attempt: Option<Attempt>,
    claim: Option<VolumeId>,
    volume: Volume,
    /// The next state and its time; a state of `None` means removal.
    next: Option<(Instant, Option<Volume>)>,
}

impl Held {
    fn seen(&self) -> Volume {
        let mark = match (&self.claim, &self.attempt) {
            (Some(id), _) if *id == self.volume.id => Mark::Claimed,
            (Some(_), _) => Mark::Copied,
            (None, Some(attempt)) => Mark::Open(attempt.clone()),
            (None, None) => Mark::None,
        };
        Volume {
            mark,
            name: Some(self.name.as_str().to_owned()),
            ..self.volume.clone()
        }
    }
}

impl Cloud {
    pub(crate) fn new(seconds: u64) -> Arc<Self> {
        Self::with(Duration::from_secs(seconds), Fates::good())
    }

    pub(crate) fn with(delay: Duration, fates: Fates) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            fates,
            looks: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            delay,
        })
    }

    pub(crate) fn fates(&self) -> &Fates {
        &self.fates
    }

    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    /// Describes all volumes and snapshots, for messages.
    pub(crate) fn describe(&self) -> String {
        let state = self.state();
        let volumes = state.held.iter().map(|held| {
            let (name, seen) = (held.name.as_str(), held.seen());
            format!("{name}: {} {:?} {:?}\n", seen.id, seen.mark, seen.phase)
        });
        let snapshots = state.kept.iter().map(Kept::describe);
        volumes.chain(snapshots).collect()
    }

    /// Returns the IDs of all existing volumes and snapshots.
    pub(crate) fn ids(&self) -> Vec<String> {
        let state = self.state();
        let volumes = state.held.iter().map(|held| held.volume.id.to_string());
        volumes.chain(state.kept.iter().map(Kept::id)).collect()
    }

    /// Records that a caller has received the volume or snapshot.
    pub(crate) fn answered(&self, id: &str) {
        let mut state = self.state();
        let volumes = state.held.iter();
        let mut there = volumes
            .filter(|held| held.volume.id.as_str() == id)
            .map(|held| &held.volume.phase)
            .chain(state.kept.iter().filter_map(|kept| kept.phase_of(id)));
        let is_there = there.any(|phase| *phase != Phase::Deleting);
        if !is_there && !state.condemned.contains(id) {
            state
                .broken
                .push(format!("{id} was returned, but does not exist"));
        }
        state.answered.insert(id.to_owned());
    }

    /// Records that a caller requests the deletion of the volume or snapshot.
    pub(crate) fn condemn(&self, id: &str) {
        self.state().condemned.insert(id.to_owned());
    }

    /// Returns the violations so far.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    /// Adds a volume that another program has created and may have lost.
    pub(crate) fn leave(&self, id: &str, name: &str, phase: Phase) {
        let volume = Volume {
            phase,
            ..blank(VolumeId::new(id).unwrap())
        };
        self.state().held.push(Held {
            name: Name::new(name).unwrap(),
            account: None,
            attempt: None,
            claim: None,
            volume,
            next: None,
        });
    }

    /// Restores a backup of the first volume with this name, including its marks, as another
    /// program.
    pub(crate) fn copy(&self, name: &str, id: &str) {
        let mut state = self.state();
        let is_meant =
            |held: &&Held| held.name.as_str() == name && held.volume.phase == Phase::Ready;
        let Some(from) = state.held.iter().find(is_meant) else {
            return;
        };
        let copy = Held {
            name: from.name.clone(),
            account: from.account.clone(),
            attempt: from.attempt.clone(),
            claim: from.claim.clone(),
            volume: Volume {
                nodes: Vec::new(),
                id: VolumeId::new(id).unwrap(),
                ..from.volume.clone()
            },
            next: None,
        };
        state.held.push(copy);
    }

    /// Returns the current state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        state.held.retain_mut(|held| {
            let due = held.next.take_if(|(at, _)| *at <= now);
            match due {
                Some((_, None)) => return false,
                Some((_, Some(volume))) => held.volume = volume,
                None => {}
            }
            true
        });
        state.kept.retain_mut(|kept| kept.settle(now));
        state
    }

    /// Makes a request of a controller. The effect follows some time after the request, and the
    /// response some time after the effect, so its content is stale on arrival.
    pub(crate) async fn request<T: Send + 'static>(
        self: &Arc<Self>,
        verb: Verb,
        mut effect: impl FnMut(&mut State) -> Result<T, Failure> + Send + 'static,
    ) -> Ended<T> {
        let fate = self.fates.next(verb);
        sleep(self.fates.way()).await;
        let down = |what: &str| Failure::new(Kind::Unreachable, format!("the cloud: {what}"));
        let lost = || Ended::Answer(Err(down("connection reset").may_be_running()));
        let ended = match fate {
            Fate::Answered => Ended::Answer(effect(&mut self.state())),
            Fate::Refused => Ended::Answer(Err(down("503"))),
            Fate::Throttled => Ended::Answer(Err(Failure::busy("the cloud: 429"))),
            Fate::Lost => {
                drop(effect(&mut self.state()));
                lost()
            }
            Fate::Late(delay) => {
                let cloud = Arc::clone(self);
                tokio::spawn(async move {
                    sleep(delay).await;
                    drop(effect(&mut cloud.state()));
                });
                lost()
            }
            Fate::Twice => {
                drop(effect(&mut self.state()));
                Ended::Answer(effect(&mut self.state()))
            }
            Fate::Strange => {
                let mut state = self.state();
                state.is_strange = true;
                let ended = Ended::Answer(effect(&mut state));
                state.is_strange = false;
                ended
            }
            Fate::DeadBefore => Ended::Dead,
            Fate::DeadAfter => {
                drop(effect(&mut self.state()));
                Ended::Dead
            }
        };
        sleep(self.fates.way()).await;
        ended
    }
}

/// The result of a request.
pub(crate) enum Ended<T> {
    Answer(Result<T, Failure>),
    /// The controller has crashed meanwhile.
    Dead,
}

pub(crate) fn blank(id: VolumeId) -> Volume {
    Volume {
        id,
        name: None,
        phase: Phase::Ready,
        mark: Mark::None,
        bytes: GIB,
        usage: None,
        context: None,
        nodes: Vec::new(),
        source: None,
        place: None,
        content: None,
        attached_at: None,
        shares: false,
        parameters: Vec::new(),
    }
}

pub(crate) fn busy(what: &str) -> Phase {
    Phase::Busy(what.to_owned())
}

impl State {
    pub(crate) fn named(&self, name: &Name) -> Vec<Volume> {
        let named = self.held.iter().filter(|held| held.name == *name);
        named.map(Held::seen).collect()
    }

    /// Returns the volumes that an account can see; all if it is `None`.
    pub(crate) fn all(&self, account: Option<&str>) -> Vec<Volume> {
        let own = |held: &&Held| match (account, &held.account) {
            (Some(asks), Some(owns)) => asks == owns,
            _ => true,
        };
        self.held.iter().filter(own).map(Held::seen).collect()
    }

    pub(crate) fn get(&self, id: &VolumeId) -> Option<Volume> {
        let held = self.held.iter().find(|held| held.volume.id == *id);
        held.map(Held::seen)
    }

    /// Creates a volume, empty or from a source, and returns it in the state of being created.
    pub(crate) fn create(
        &mut self,
        order: &Order,
        source: Option<ContentSource>,
        at: Instant,
        id: u32,
    ) -> Volume {
        self.made += 1;
        let asked = order.topology.as_ref();
        let zone = asked.and_then(|asked| asked.requisite.first()?.get(ZONE));
        let zone = zone.map(|zone| Arc::new(Topology::new(ZONE, zone).unwrap()));
        // The last digits make IDs unique, and the first ones determine the order.
        let id = VolumeId::new(format!("id-{id:05}-{}", self.made)).unwrap();
        let begun = Volume {
            phase: busy("creating"),
            bytes: order.bytes,
            place: zone,
            source,
            ..blank(id)
        };
        let phase = match order.parameters.get("class") {
            Some("doomed") => Phase::Failed(Failure::quota("no host has room")),
            _ => Phase::Ready,
        };
        let next = Volume {
            phase,
            ..begun.clone()
        };
        self.held.push(Held {
            name: order.name.clone(),
            account: order.secrets.get("token").map(str::to_owned),
            attempt: Some(order.attempt.clone()),
            claim: None,
            volume: begun.clone(),
            next: Some((at, Some(next))),
        });
        if self.is_strange {
            let mut others = self.held.iter().filter(|held| held.name != order.name);
            return match others.next() {
                Some(other) => other.seen(),
                None => blank(VolumeId::new("../../account").unwrap()),
            };
        }
        Volume {
            mark: Mark::Open(order.attempt.clone()),
            name: Some(order.name.as_str().to_owned()),
            ..begun
        }
    }

    pub(crate) fn claim(&mut self, id: &VolumeId) -> Result<(), Failure> {
        self.held(id)?.claim = Some(id.clone());
        Ok(())
    }

    fn held(&mut self, id: &VolumeId) -> Result<&mut Held, Failure> {
        let held = self.held.iter_mut().find(|held| held.volume.id == *id);
        held.ok_or_else(|| Failure::not_found(format!("volume {id}: not found")))
    }

    /// Starts a change of a volume that is not being changed; returns whether there is anything to
    /// do.
    fn change(
        &mut self,
        id: &VolumeId,
        at: Instant,
        what: &str,
        change: impl FnOnce(&Volume) -> Option<Volume>,
    ) -> Result<bool, Failure> {
        let is_dropped = self.drops > 0;
        let held = self.held(id)?;
        if held.next.is_some() {
            return Err(Failure::busy(format!("volume {id}: the cloud says 409")));
        }
        let Some(next) = change(&held.volume) else {
            return Ok(false);
        };
        let next = if is_dropped {
            held.volume.clone()
        } else {
            next
        };
        held.volume.phase = busy(what);
        held.next = Some((at, Some(next)));
        self.begun();
        Ok(true)
    }

    fn begun(&mut self) {
        self.begun += 1;
        self.drops = self.drops.saturating_sub(1);
    }

    /// Whether a caller has received the object, and has not requested its deletion.
    pub(crate) fn is_wanted(&self, id: &str) -> bool {
        self.answered.contains(id) && !self.condemned.contains(id)
    }

    /// Starts a deletion; returns whether there is anything to delete.
    pub(crate) fn delete(&mut self, id: &VolumeId, at: Instant) -> Result<bool, Failure> {
        let is_wanted = self.is_wanted(id.as_str());
        let is_dropped = self.drops > 0;
        let Ok(held) = self.held(id) else {
            return Ok(false);
        };
        if held.volume.phase == Phase::Deleting {
            return Ok(true);
        }
        if held.next.is_some() || !held.volume.nodes.is_empty() {
            return Err(Failure::busy(format!("volume {id}: the cloud says 400")));
        }
        held.next = Some((at, is_dropped.then(|| held.volume.clone())));
        held.volume.phase = Phase::Deleting;
        self.begun();
        if is_wanted {
            self.broken
                .push(format!("{id} is deleted although it was returned"));
        }
        Ok(true)
    }

    /// Starts an attachment, which the cloud may drop after accepting it.
    pub(crate) fn attach(
        &mut self,
        id: &VolumeId,
        node: &NodeId,
        at: Instant,
        is_dropped: bool,
    ) -> Result<bool, Failure> {
        let attached = &self.held(id)?.volume.nodes;
        if attached.iter().any(|other| other != node) {
            return Err(Failure::precondition(format!(
                "volume {id}: attached elsewhere"
            )));
        }
        self.change(id, at, "attaching", |volume| {
            let nodes = vec![node.clone()];
            let phase = Phase::Ready;
            (volume.nodes != nodes).then(|| match is_dropped {
                true => volume.clone(),
                false => Volume {
                    phase,
                    nodes,
                    ..volume.clone()
                },
            })
        })
    }

    pub(crate) fn detach(
        &mut self,
        id: &VolumeId,
        node: &NodeId,
        at: Instant,
    ) -> Result<bool, Failure> {
        self.change(id, at, "detaching", |volume| {
            volume.nodes.contains(node).then(|| Volume {
                nodes: Vec::new(),
                ..volume.clone()
            })
        })
    }

    pub(crate) fn extend(
        &mut self,
        id: &VolumeId,
        bytes: u64,
        at: Instant,
    ) -> Result<bool, Failure> {
        self.change(id, at, "extending", |volume| {
            (volume.bytes < bytes).then(|| Volume {
                bytes,
                ..volume.clone()
            })
        })
    }
}
