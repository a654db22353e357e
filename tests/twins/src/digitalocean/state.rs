//! The state of the cloud, and its changes over time.

use crate::time::utc;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// All objects of the account.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) droplets: BTreeMap<u64, Droplet>,
    pub(super) snapshots: BTreeMap<String, Snapshot>,
    pub(super) actions: BTreeMap<u64, Action>,
    /// For each tag in lower case, the spelling with which the tag was created.
    pub(super) tags: BTreeMap<String, String>,
    made: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) region: String,
    /// The size in GiB.
    pub(super) size: u64,
    pub(super) description: String,
    pub(super) filesystem: (String, String),
    pub(super) tags: Vec<String>,
    pub(super) droplet: Option<u64>,
    pub(super) created_at: String,
    pub(super) last_snapshot: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct Droplet {
    pub(super) name: String,
    pub(super) region: String,
    pub(super) is_on: bool,
    /// The time at which an event that another program has caused on the droplet ends.
    pub(super) foreign: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) name: String,
    pub(super) volume: String,
    pub(super) region: String,
    /// The size of the volume when the snapshot was created, in GiB.
    pub(super) size: u64,
    pub(super) tags: Vec<String>,
    pub(super) created_at: String,
}

#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) volume: String,
    pub(super) change: Change,
    pub(super) region: String,
    /// The time at which the action ends; `None` if it is unknown, or if the action never ends.
    pub(super) due: Option<Instant>,
    pub(super) fails: bool,
    pub(super) status: Status,
    pub(super) started_at: String,
    pub(super) completed_at: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Attach(u64),
    Detach(u64),
    Resize(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Running,
    Completed,
    Errored,
}

impl Change {
    pub(super) fn name(self) -> &'static str {
        match self {
            Change::Attach(_) => "attach_volume",
            Change::Detach(_) => "detach_volume",
            Change::Resize(_) => "resize_volume",
        }
    }

    pub(super) fn droplet(self) -> Option<u64> {
        match self {
            Change::Attach(droplet) | Change::Detach(droplet) => Some(droplet),
            Change::Resize(_) => None,
        }
    }
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Status::Running => "in-progress",
            Status::Completed => "completed",
            Status::Errored => "errored",
        }
    }
}

/// Returns the current time, as the API writes it.
pub(super) fn now() -> String {
    let time = utc(SystemTime::now());
    format!("{}Z", time.get(..19).unwrap_or(&time))
}

impl State {
    /// Returns a number that no other object has.
    pub(super) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// Returns an ID that no other object has.
    pub(super) fn uuid(&mut self) -> String {
        let number = self.number();
        format!("{number:08x}-d0d0-4000-8000-{number:012x}")
    }

    /// Whether [`Self::settle`] must apply an action that has ended.
    pub(super) fn is_due(&self) -> bool {
        self.actions.values().any(Action::is_due)
    }

    /// Applies the actions that have ended.
    pub(super) fn settle(&mut self) {
        for action in self.actions.values_mut().filter(|action| action.is_due()) {
            action.completed_at = Some(now());
            action.status = match action.fails {
                true => Status::Errored,
                false => Status::Completed,
            };
            let volume = self.volumes.get_mut(&action.volume);
            if let (Some(volume), false) = (volume, action.fails) {
                match action.change {
                    Change::Attach(droplet) => volume.droplet = Some(droplet),
                    Change::Detach(_) => volume.droplet = None,
                    Change::Resize(size) => volume.size = size,
                }
            }
        }
    }

    /// Returns the running action of a volume.
    pub(super) fn running(&self, volume: &str) -> Option<&Action> {
        let mut actions = self.actions.values();
        actions.find(|action| action.volume == volume && action.status == Status::Running)
    }

    /// Whether an action of a volume, or an event that another program has caused, is running on
    /// the droplet.
    pub(super) fn is_pending(&self, droplet: u64) -> bool {
        let foreign = self.droplets.get(&droplet).and_then(|it| it.foreign);
        let is_of = |action: &Action| action.change.droplet() == Some(droplet);
        let mut actions = self.actions.values();
        foreign.is_some_and(|until| Instant::now() < until)
            || actions.any(|action| is_of(action) && action.status == Status::Running)
    }

    /// Returns the number of volumes that are, or are being, attached to a droplet.
    pub(super) fn attached_to(&self, droplet: u64) -> usize {
        let on_it = |(id, volume): &(&String, &Volume)| {
            volume.droplet == Some(droplet)
                || self
                    .running(id)
                    .is_some_and(|action| action.change == Change::Attach(droplet))
        };
        self.volumes.iter().filter(on_it).count()
    }

    pub(super) fn tag(&mut self, tag: &str) -> String {
        let own = self.tags.entry(tag.to_lowercase());
        own.or_insert_with(|| tag.to_owned()).clone()
    }
}

impl Action {
    fn is_due(&self) -> bool {
        let has_ended = self.due.is_some_and(|due| due <= Instant::now());
        self.status == Status::Running && has_ended
    }
}

/// Returns the time at which a change that begins now and has this duration ends.
pub(super) fn after(delay: Duration) -> Option<Instant> {
    Instant::now().checked_add(delay)
}
