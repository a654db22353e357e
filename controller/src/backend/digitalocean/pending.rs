//! Changes of volumes that this process has requested. DigitalOcean's API does not list the running
//! actions of a volume. This module therefore records each action until the method that requested
//! the action reads the result. A restart of the controller drops these records, which is harmless:
//! the state of the volume and the cloud's errors provide the same information.

use super::wire::DoVolume;
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time for which the result of a change is kept until it is read.
const RESULT_AGE_MAX: Duration = Duration::from_secs(10);
/// The time for which a repeated attach reports the volume as new again. After this time, nodes no
/// longer accept the report that a volume is new.
const FIRST_AGE_MAX: Duration = Duration::from_secs(600);
/// Maximum time after the completion of an action until the change is visible in the volume.
const LAG_MAX: Duration = Duration::from_secs(10);
/// The interval between two reads of a running action, since the API limits the rate of calls. The
/// first read follows after [`PAUSE`].
const ASK: Duration = Duration::from_secs(5);
/// The pause before the second attempt to request a change. Each later pause is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum pause between two attempts to request a change.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// A requested change of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Attach(u64),
    Detach(u64),
    /// An expansion to this number of GiB.
    Resize(u64),
}

impl Change {
    /// Whether the change is visible in the volume.
    pub(super) fn is_done(self, volume: &DoVolume) -> bool {
        match self {
            Change::Attach(droplet) => volume.droplets().contains(&droplet),
            Change::Detach(droplet) => !volume.droplets().contains(&droplet),
            Change::Resize(gib) => volume.size_gigabytes >= gib,
        }
    }

    /// Describes the change in progress, for error messages.
    pub(super) fn word(self) -> String {
        match self {
            Change::Attach(droplet) => format!("being attached to droplet {droplet}"),
            Change::Detach(droplet) => format!("being detached from droplet {droplet}"),
            Change::Resize(gib) => format!("being expanded to {gib} GiB"),
        }
    }
}

/// A change that this process has requested.
#[derive(Debug)]
struct Entry {
    change: Change,
    /// The time at which the action began; see [`VolumeState::began`].
    began: Option<u64>,
    tries: u32,
    /// Whether the change is the first attach of the volume; see [`VolumeState::is_first`].
    is_first: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Running(Running),
    /// The cloud could not begin the change, or the response was lost. The change is requested
    /// again at this time.
    Waiting(Instant),
    /// The change is complete, must be requested again, or its action has failed.
    Ended(Instant, Outcome),
    /// The action has failed, and the volume is incomplete. No method reads the result.
    Broken(String),
}

/// An action that may be running.
#[derive(Debug)]
struct Running {
    action: u64,
    /// The time of the next read of the action.
    next: Instant,
    /// Whether the change was visible in the last read of the volume. The action may still be
    /// running, since a change may be visible as soon as the cloud accepts it.
    is_shown: bool,
    /// The time at which the action was first read as completed while the change was not yet
    /// visible in the volume; `None` before that time.
    completed: Option<Instant>,
}

impl Running {
    /// Updates the state after a read of the volume. `is_done` states whether the change is visible
    /// in the volume.
    fn seen(&mut self, change: Change, is_done: bool) -> ChangeStatus {
        let now = Instant::now();
        match self.completed {
            Some(since) if is_done || since.elapsed() >= LAG_MAX => return ChangeStatus::Ended,
            Some(_) => return ChangeStatus::Busy(change),
            None => {}
        }
        let was_shown = std::mem::replace(&mut self.is_shown, is_done);
        let is_new = is_done && !was_shown;
        if !is_new && now < self.next {
            return ChangeStatus::Busy(change);
        }
        self.next = now + ASK;
        ChangeStatus::Unknown(change, self.action)
    }
}

/// The result of a change: the state of the volume, in which the change may not be visible yet, or
/// the error of the failed action, which has changed nothing.
type Outcome = Result<VolumeState, String>;

/// The state of a volume after a change, or before the first attempt.
#[derive(Debug)]
pub(super) struct VolumeState {
    pub(super) volume: DoVolume,
    /// The time at which the action began, by the cloud's clock, in seconds since 1970; `None` if
    /// unknown.
    pub(super) began: Option<u64>,
    /// The number of attempts in which the cloud could not begin the change.
    pub(super) tries: u32,
    /// Whether the change was the first attach of the volume, according to the volume's list of
    /// actions.
    pub(super) is_first: bool,
}

/// The first attach of a volume, made by this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) action: u64,
    /// The time at which the action began, by the cloud's clock, in seconds since 1970; `None` if
    /// unknown.
    pub(super) began: Option<u64>,
    seen: Instant,
}

/// The state of the change that a method must make.
#[derive(Debug)]
pub(super) enum ChangeLookup {
    /// No change is recorded. The method must read the volume.
    Nothing,
    /// This change, or another change of the volume, is in progress.
    Running,
    /// The change has ended. Contains the state of the volume, in which the change may not be
    /// visible.
    Ended(VolumeState),
}

/// The requested changes, by volume ID.
#[derive(Debug, Default)]
pub(super) struct Pending {
    entries: Lock<HashMap<VolumeId, Entry>>,
    firsts: Lock<HashMap<VolumeId, First>>,
}

impl Pending {
    /// Records that this action is the first attach of the volume.
    pub(super) fn record_first_attach(&self, id: &VolumeId, action: u64) {
        let began = match self.entries.lock().get_mut(id) {
            Some(entry) => {
                entry.is_first = true;
                entry.began
            }
            None => return,
        };
        let seen = Instant::now();
        let mut firsts = self.firsts.lock();
        firsts.retain(|_, first| first.seen.elapsed() < FIRST_AGE_MAX);
        firsts.insert(
            id.clone(),
            First {
                action,
                began,
                seen,
            },
        );
    }

    /// Returns the first attach of the volume; `None` if this process has not recently attached the
    /// volume for the first time.
    pub(super) fn first(&self, id: &VolumeId) -> Option<First> {
        let first = self.firsts.lock().get(id).copied();
        first.filter(|first| first.seen.elapsed() < FIRST_AGE_MAX)
    }

    /// Drops the record of the first attach, before the volume is detached.
    pub(super) fn forget_first(&self, id: &VolumeId) {
        self.firsts.lock().remove(id);
    }

    /// Returns the state of this change, and drops its record once the change has ended. The record
    /// of another change of the volume is dropped, too, if that change has ended; until then the
    /// volume may be in an intermediate state.
    ///
    /// # Errors
    /// Returns `Unreachable` if the action of the change has failed without effect.
    pub(super) fn take(&self, id: &VolumeId, change: Change) -> Result<ChangeLookup, Failure> {
        let mut all = self.entries.lock();
        let Some(entry) = all.get(id) else {
            return Ok(ChangeLookup::Nothing);
        };
        let is_same = entry.change == change;
        if matches!(entry.state, State::Running(_) | State::Waiting(_)) {
            return Ok(ChangeLookup::Running);
        }
        match all.remove(id).map(|entry| entry.state) {
            Some(State::Ended(at, outcome)) if is_same && at.elapsed() < RESULT_AGE_MAX => outcome
                .map(ChangeLookup::Ended)
                .map_err(|why| Failure::new(Kind::Unreachable, why)),
            _ => Ok(ChangeLookup::Nothing),
        }
    }

    /// Records an action that the cloud has begun for the change.
    pub(super) fn begin(&self, id: &VolumeId, change: Change, action: u64, began: Option<u64>) {
        let entry = Entry {
            change,
            began,
            state: State::Running(Running {
                action,
                next: Instant::now() + PAUSE,
                is_shown: false,
                completed: None,
            }),
            tries: 0,
            is_first: false,
        };
        self.entries.lock().insert(id.clone(), entry);
    }

    /// Records that the cloud could not begin the change, and sets the time of the next attempt.
    /// The pause doubles with each attempt.
    pub(super) fn wait(&self, id: &VolumeId, change: Change, tries: u32) {
        let pause = PAUSE.saturating_mul(1 << tries.min(8)).min(PAUSE_MAX);
        let entry = Entry {
            change,
            began: None,
            state: State::Waiting(Instant::now() + pause),
            tries: tries + 1,
            is_first: false,
        };
        self.entries.lock().insert(id.clone(), entry);
    }

    /// Drops all records of a deleted volume.
    pub(super) fn forget(&self, id: &VolumeId) {
        self.entries.lock().remove(id);
        self.forget_first(id);
    }

    /// Returns the state of the recorded change, after a read of the volume.
    pub(super) fn seen(&self, id: &VolumeId, volume: &DoVolume) -> ChangeStatus {
        let mut all = self.entries.lock();
        let Some(entry) = all.get_mut(id) else {
            return ChangeStatus::Idle;
        };
        let (change, is_done) = (entry.change, entry.change.is_done(volume));
        match &mut entry.state {
            State::Ended(..) => ChangeStatus::Idle,
            State::Broken(_) if is_done => ChangeStatus::Ended,
            State::Broken(why) => ChangeStatus::Broken(why.clone()),
            State::Waiting(until) if Instant::now() < *until => ChangeStatus::Busy(change),
            State::Waiting(until) if is_done => {
                *until = Instant::now() + ASK;
                ChangeStatus::Unsure(change)
            }
            State::Waiting(_) => ChangeStatus::Ended,
            State::Running(running) => running.seen(change, is_done),
        }
    }

    /// Records that the action is completed although the change is not yet visible in the volume.
    pub(super) fn completed(&self, id: &VolumeId) {
        if let Some(entry) = self.entries.lock().get_mut(id)
            && let State::Running(running) = &mut entry.state
        {
            running.completed.get_or_insert_with(Instant::now);
        }
    }

    /// Records that the change has ended or must be requested again, and stores the state of the
    /// volume for the method that requested the change. Drops the record of a completed detach: a
    /// detach needs no further step, and a later detach of the volume must not find the old result.
    pub(super) fn ended(&self, id: &VolumeId, volume: DoVolume) {
        let mut all = self.entries.lock();
        let Some(entry) = all.get_mut(id) else { return };
        if matches!(entry.change, Change::Detach(_)) && entry.change.is_done(&volume) {
            all.remove(id);
        } else {
            let look = VolumeState {
                volume,
                began: entry.began,
                tries: entry.tries,
                is_first: entry.is_first,
            };
            entry.state = State::Ended(Instant::now(), Ok(look));
        }
    }

    /// Records that the action that should have completed a new volume has failed.
    pub(super) fn broke(&self, id: &VolumeId, why: String) {
        if let Some(entry) = self.entries.lock().get_mut(id) {
            entry.state = State::Broken(why);
        }
    }

    pub(super) fn is_broken(&self, id: &VolumeId) -> bool {
        let all = self.entries.lock();
        all.get(id)
            .is_some_and(|entry| matches!(entry.state, State::Broken(_)))
    }

    /// Records that the action of the change has failed.
    pub(super) fn failed(&self, id: &VolumeId, why: String) {
        if let Some(entry) = self.entries.lock().get_mut(id) {
            entry.state = State::Ended(Instant::now(), Err(why));
        }
    }
}

/// The state of a recorded change, after a read of its volume.
#[derive(Debug)]
pub(super) enum ChangeStatus {
    /// No change is in progress.
    Idle,
    Busy(Change),
    /// The change is complete, or must be requested again.
    Ended,
    /// The state of the change does not follow from the volume. The action with this ID must be
    /// read.
    Unknown(Change, u64),
    /// The change is visible in the volume, but a running action of another process may undo the
    /// change.
    Unsure(Change),
    /// The volume remains incomplete. Contains the reason.
    Broken(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "00000000-0000-4000-8000-000000000000";
    const ATTACH: Change = Change::Attach(1);
    const DETACH: Change = Change::Detach(1);

    fn id() -> VolumeId {
        VolumeId::new(ID).unwrap()
    }

    fn volume(droplets: &[u64]) -> DoVolume {
        let region = json!({ "slug": "nyc1" });
        let volume = json!({
            "id": ID, "name": "pvc-1", "region": region, "size_gigabytes": 1,
            "droplet_ids": droplets,
        });
        serde_json::from_value(volume).unwrap()
    }

    fn take(pending: &Pending, change: Change) -> ChangeLookup {
        pending.take(&id(), change).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_that_runs_is_asked_at_first_when_it_shows_and_rarely() {
        let pending = Pending::default();
        pending.begin(&id(), ATTACH, 7, None);
        let (mut asked, mut polls) = (0, Vec::new());
        for second in 0..60 {
            let droplets: &[u64] = if second < 30 { &[] } else { &[1] };
            match pending.seen(&id(), &volume(droplets)) {
                ChangeStatus::Unknown(..) => {
                    asked += 1;
                    polls.push(second);
                }
                ChangeStatus::Busy(_) => {}
                other => panic!("{other:?}"),
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((polls[0], polls[1]), (1, 6), "{polls:?}");
        assert!(polls.contains(&30), "{polls:?}");
        assert!(asked <= 13, "{polls:?}");
        pending.completed(&id());
        assert!(matches!(
            pending.seen(&id(), &volume(&[1])),
            ChangeStatus::Ended
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_verb_waits_for_another_change_of_its_volume_that_runs() {
        let pending = Pending::default();
        pending.begin(&id(), DETACH, 7, None);
        assert!(matches!(take(&pending, ATTACH), ChangeLookup::Running));
        pending.failed(&id(), "no".to_owned());
        assert!(matches!(take(&pending, ATTACH), ChangeLookup::Nothing));
    }

    #[tokio::test(start_paused = true)]
    async fn a_detach_that_has_ended_is_no_answer_to_a_later_one() {
        let pending = Pending::default();
        pending.begin(&id(), DETACH, 7, None);
        pending.ended(&id(), volume(&[]));
        assert!(matches!(take(&pending, DETACH), ChangeLookup::Nothing));
        pending.begin(&id(), ATTACH, 8, None);
        pending.ended(&id(), volume(&[1]));
        assert!(matches!(take(&pending, ATTACH), ChangeLookup::Ended(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attach_that_has_ended_is_an_answer_for_a_while() {
        for (age, is_answer) in [
            (RESULT_AGE_MAX - Duration::from_millis(1), true),
            (RESULT_AGE_MAX, false),
        ] {
            let pending = Pending::default();
            pending.begin(&id(), ATTACH, 8, None);
            pending.ended(&id(), volume(&[1]));
            tokio::time::advance(age).await;
            let found = take(&pending, ATTACH);
            assert_eq!(
                matches!(found, ChangeLookup::Ended(_)),
                is_answer,
                "{age:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_of_a_change_whose_answer_is_lost_when_it_shows() {
        let pending = Pending::default();
        pending.wait(&id(), ATTACH, 0);
        tokio::time::advance(PAUSE).await;
        assert!(matches!(
            pending.seen(&id(), &volume(&[1])),
            ChangeStatus::Unsure(ATTACH)
        ));
    }
    #[test]
    fn a_change_is_done_when_the_volume_shows_it_and_has_a_word_until_then() {
        for (change, droplets, is_done, word) in [
            (ATTACH, &[1, 2][..], true, "being attached to droplet 1"),
            (ATTACH, &[2][..], false, "being attached to droplet 1"),
            (DETACH, &[2][..], true, "being detached from droplet 1"),
            (DETACH, &[2, 1][..], false, "being detached from droplet 1"),
            (Change::Resize(1), &[][..], true, "being expanded to 1 GiB"),
            (Change::Resize(2), &[][..], false, "being expanded to 2 GiB"),
        ] {
            assert_eq!(change.is_done(&volume(droplets)), is_done, "{change:?}");
            assert_eq!(change.word(), word);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_try_that_could_not_begin_is_repeated_later_than_the_one_before() {
        let short = Duration::from_millis(1);
        for (tries, seconds) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (100, 8)] {
            let pending = Pending::default();
            pending.wait(&id(), ATTACH, tries);
            assert!(matches!(take(&pending, ATTACH), ChangeLookup::Running));
            tokio::time::advance(Duration::from_secs(seconds) - short).await;
            let seen = pending.seen(&id(), &volume(&[]));
            assert!(
                matches!(seen, ChangeStatus::Busy(ATTACH)),
                "{tries}: {seen:?}"
            );
            tokio::time::advance(short).await;
            let seen = pending.seen(&id(), &volume(&[]));
            assert!(matches!(seen, ChangeStatus::Ended), "{tries}: {seen:?}");
            pending.ended(&id(), volume(&[]));
            let ChangeLookup::Ended(look) = take(&pending, ATTACH) else {
                panic!("{tries}: no result");
            };
            assert_eq!(
                (look.tries, look.began, look.is_first),
                (tries + 1, None, false)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_that_may_run_unknown_is_looked_for_rarely() {
        let pending = Pending::default();
        pending.wait(&id(), ATTACH, 0);
        tokio::time::advance(PAUSE).await;
        for _ in 0..2 {
            let seen = pending.seen(&id(), &volume(&[1]));
            assert!(matches!(seen, ChangeStatus::Unsure(ATTACH)), "{seen:?}");
            tokio::time::advance(ASK - Duration::from_millis(1)).await;
            let seen = pending.seen(&id(), &volume(&[1]));
            assert!(matches!(seen, ChangeStatus::Busy(ATTACH)), "{seen:?}");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_may_show_a_change_some_time_after_its_action() {
        let pending = Pending::default();
        assert!(matches!(
            pending.seen(&id(), &volume(&[])),
            ChangeStatus::Idle
        ));
        pending.completed(&id());
        pending.begin(&id(), ATTACH, 7, Some(5));
        pending.completed(&id());
        tokio::time::advance(LAG_MAX - Duration::from_millis(1)).await;
        // The time is measured from the first call of `completed`.
        pending.completed(&id());
        let seen = pending.seen(&id(), &volume(&[]));
        assert!(matches!(seen, ChangeStatus::Busy(ATTACH)), "{seen:?}");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(matches!(
            pending.seen(&id(), &volume(&[])),
            ChangeStatus::Ended
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_attach_is_known_for_a_while_unless_the_volume_leaves_its_droplet() {
        let pending = Pending::default();
        pending.record_first_attach(&id(), 7);
        assert!(pending.first(&id()).is_none(), "no action of this process");
        pending.begin(&id(), ATTACH, 7, Some(5));
        pending.record_first_attach(&id(), 7);
        let first = pending.first(&id()).unwrap();
        assert_eq!((first.action, first.began), (7, Some(5)));
        pending.ended(&id(), volume(&[1]));
        let ChangeLookup::Ended(look) = take(&pending, ATTACH) else {
            panic!("no result");
        };
        assert_eq!((look.is_first, look.began, look.tries), (true, Some(5), 0));
        tokio::time::advance(FIRST_AGE_MAX - Duration::from_millis(1)).await;
        assert!(pending.first(&id()).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(pending.first(&id()).is_none());

        for forget in [Pending::forget, Pending::forget_first] {
            pending.begin(&id(), ATTACH, 8, None);
            pending.record_first_attach(&id(), 8);
            assert_eq!(
                pending.firsts.lock().len(),
                1,
                "the one that was too old is dropped"
            );
            forget(&pending, &id());
            assert!(pending.first(&id()).is_none());
        }
        pending.forget(&id());
        assert!(matches!(take(&pending, ATTACH), ChangeLookup::Nothing));
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_stays_incomplete_says_why_until_it_is_complete() {
        let pending = Pending::default();
        let grow = Change::Resize(2);
        assert!(!pending.is_broken(&id()));
        pending.begin(&id(), grow, 7, None);
        assert!(!pending.is_broken(&id()));
        pending.broke(&id(), "the reason".to_owned());
        assert!(pending.is_broken(&id()));
        let seen = pending.seen(&id(), &volume(&[]));
        assert!(
            matches!(&seen, ChangeStatus::Broken(why) if why == "the reason"),
            "{seen:?}"
        );
        let mut grown = volume(&[]);
        grown.size_gigabytes = 2;
        assert!(matches!(pending.seen(&id(), &grown), ChangeStatus::Ended));
    }

    #[tokio::test(start_paused = true)]
    async fn the_reason_of_a_failed_action_is_that_of_the_verb_that_has_begun_it() {
        let pending = Pending::default();
        pending.begin(&id(), ATTACH, 7, None);
        pending.failed(&id(), "the reason".to_owned());
        assert!(matches!(
            pending.seen(&id(), &volume(&[])),
            ChangeStatus::Idle
        ));
        let failed = pending.take(&id(), ATTACH).unwrap_err();
        assert_eq!(failed, Failure::new(Kind::Unreachable, "the reason"));
        assert!(matches!(take(&pending, ATTACH), ChangeLookup::Nothing));
    }
}
