//! Changes of volumes that this process has asked for. The API shows a volume as if no action ran,
//! so what runs is remembered here until the verb that has begun it reads the result. Nothing
//! depends on it after a restart: the volume and the refusals of the cloud then say the same.

use super::wire::DoVolume;
use belay_server::request::VolumeId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// For how long a result is that of the verb that comes to read it.
const RESULT_AGE_MAX: Duration = Duration::from_secs(10);
/// How long a volume may show a change later than its action does.
const LAG_MAX: Duration = Duration::from_secs(10);
/// Before a change is begun again that the cloud could not begin, at first and at most.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// What a volume is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Attach(u64),
    Detach(u64),
    /// To so many GiB.
    Resize(u64),
}

impl Change {
    /// Whether the volume is so.
    pub(super) fn is_done(self, volume: &DoVolume) -> bool {
        match self {
            Change::Attach(droplet) => volume.droplets().contains(&droplet),
            Change::Detach(droplet) => !volume.droplets().contains(&droplet),
            Change::Resize(gib) => volume.size_gigabytes >= gib,
        }
    }

    /// The word for a volume that is being changed so.
    pub(super) fn word(self) -> String {
        match self {
            Change::Attach(droplet) => format!("being attached to droplet {droplet}"),
            Change::Detach(droplet) => format!("being detached from droplet {droplet}"),
            Change::Resize(gib) => format!("being expanded to {gib} GiB"),
        }
    }
}

/// A change that was asked for.
#[derive(Debug)]
struct Entry {
    change: Change,
    /// See [`Look`].
    began: Option<u64>,
    tries: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The action runs; since when it is known to be completed, although the volume is not so yet.
    Running(u64, Option<Instant>),
    /// The cloud could not begin it, or its answer is lost; it is begun again then.
    Waiting(Instant),
    /// The volume is so; or the change has to be begun again; or the action has failed.
    Ended(Instant, Outcome),
}

/// How a change ended, for the verb that has begun it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The volume was seen. It may not be as it was asked for.
    Seen(Look),
    /// The action has failed, and has changed nothing.
    Failed(String),
}

/// A volume that was seen, for the verb that goes on from there.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) volume: DoVolume,
    /// When the action began, by the cloud's clock, in seconds since 1970.
    pub(super) began: Option<u64>,
    /// How often the change could not begin.
    pub(super) tries: u32,
}

/// What a verb finds of the change that it is to make.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing: it must look.
    Nothing,
    /// It goes on.
    Running,
    Ended(Outcome),
}

/// The changes, by volume.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<HashMap<VolumeId, Entry>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of that change; another change of the volume is forgotten.
    pub(super) fn take(&self, id: &VolumeId, change: Change) -> Found {
        let mut all = self.lock();
        let Some(entry) = all.get(id) else {
            return Found::Nothing;
        };
        let is_same = entry.change == change;
        if is_same && !matches!(entry.state, State::Ended(..)) {
            return Found::Running;
        }
        match all.remove(id).map(|entry| entry.state) {
            Some(State::Ended(at, outcome)) if is_same && at.elapsed() < RESULT_AGE_MAX => {
                Found::Ended(outcome)
            }
            _ => Found::Nothing,
        }
    }

    /// An action runs.
    pub(super) fn begin(&self, id: &VolumeId, change: Change, action: u64, began: Option<u64>) {
        let entry = Entry {
            change,
            began,
            state: State::Running(action, None),
            tries: 0,
        };
        self.lock().insert(id.clone(), entry);
    }

    /// The change could not begin: the next try is later each time.
    pub(super) fn wait(&self, id: &VolumeId, change: Change, tries: u32) {
        let pause = PAUSE.saturating_mul(1 << tries.min(8)).min(PAUSE_MAX);
        let entry = Entry {
            change,
            began: None,
            state: State::Waiting(Instant::now() + pause),
            tries: tries + 1,
        };
        self.lock().insert(id.clone(), entry);
    }

    /// What runs is no longer of interest: the volume is gone.
    pub(super) fn forget(&self, id: &VolumeId) {
        self.lock().remove(id);
    }

    /// How the change of a volume stands, now that it was seen.
    pub(super) fn seen(&self, id: &VolumeId, volume: &DoVolume) -> Seen {
        let all = self.lock();
        let Some(entry) = all.get(id) else {
            return Seen::Idle;
        };
        match entry.state {
            State::Ended(..) => Seen::Idle,
            _ if entry.change.is_done(volume) => Seen::Ended,
            State::Waiting(until) if Instant::now() < until => Seen::Busy(entry.change),
            State::Waiting(_) => Seen::Ended,
            State::Running(action, completed) => match completed {
                Some(since) if since.elapsed() >= LAG_MAX => Seen::Ended,
                Some(_) => Seen::Busy(entry.change),
                None => Seen::Unknown(entry.change, action),
            },
        }
    }

    /// The action is completed; the volume does not show it yet.
    pub(super) fn completed(&self, id: &VolumeId) {
        if let Some(entry) = self.lock().get_mut(id)
            && let State::Running(_, completed) = &mut entry.state
        {
            completed.get_or_insert_with(Instant::now);
        }
    }

    /// The change has ended, or must be begun again: the verb goes on from this volume.
    pub(super) fn ended(&self, id: &VolumeId, volume: DoVolume) {
        if let Some(entry) = self.lock().get_mut(id) {
            let look = Look {
                volume,
                began: entry.began,
                tries: entry.tries,
            };
            entry.state = State::Ended(Instant::now(), Outcome::Seen(look));
        }
    }

    /// The action has failed.
    pub(super) fn failed(&self, id: &VolumeId, why: String) {
        if let Some(entry) = self.lock().get_mut(id) {
            entry.state = State::Ended(Instant::now(), Outcome::Failed(why));
        }
    }
}

/// How the change of a volume stands.
#[derive(Debug)]
pub(super) enum Seen {
    /// None runs.
    Idle,
    Busy(Change),
    /// It is done, or must be begun again.
    Ended,
    /// Only the action says.
    Unknown(Change, u64),
}
