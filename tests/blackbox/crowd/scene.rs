//! The state that all callers of the crowd share: the sockets, the time limit, and the findings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::codes;
use crate::rig::{
    Answer, Caller, Chance, Journal, Leaving, Op, Outcome, PATIENCE, Site, has_left, mounts_of,
};
use crate::rig::{pause, shown, stacked};

/// The time after which a call must have succeeded, far longer than the slowest format.
const SUCCEEDS_WITHIN: Duration = PATIENCE.saturating_mul(2);

/// The scene.
pub(crate) struct Scene {
    /// The paths of both programs.
    pub(crate) site: Site,
    /// The record of all calls.
    pub(crate) journal: Arc<Journal>,
    /// The earliest end of the scene.
    end: Instant,
    is_over: AtomicBool,
    stacked: Mutex<Option<String>>,
}

impl Scene {
    /// Creates a scene of this length.
    pub(crate) fn new(site: Site, lasts: Duration) -> Self {
        Scene {
            site,
            journal: Arc::new(Journal::new()),
            end: Instant::now() + lasts,
            is_over: AtomicBool::new(false),
            stacked: Mutex::new(None),
        }
    }

    /// Whether the time is up and the calls have met in every way, or a caller has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the scene at once.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns a caller of the scene.
    pub(crate) fn caller(&self, who: String) -> Caller {
        Caller {
            site: self.site.clone(),
            journal: Arc::clone(&self.journal),
            who,
        }
    }

    /// Checks the mounts of this process until the scene is over. A busy machine makes few calls in
    /// a given time, so the scene lasts longer there.
    pub(crate) fn watch(&self, pid: u32) {
        let pid = pid.to_string();
        while !self.is_over() {
            let now = Instant::now();
            let is_time = now >= self.end && self.missing().is_empty();
            if is_time || now >= self.end + PATIENCE || !self.look(&pid) {
                self.end();
            }
            pause();
        }
    }

    /// Returns the outcomes that no call has had yet: each RPC must end with OK, and with a
    /// disconnected caller; and a stage must be refused while another call is pending.
    pub(crate) fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let each = codes::rpcs().flat_map(|rpc| [(rpc, "OK"), (rpc, "left")]);
        each.chain([("NodeStageVolume", "ABORTED")])
            .filter(|(rpc, code)| self.journal.count(rpc, code) == 0)
            .collect()
    }

    /// Whether no mount of that process is stacked on another.
    pub(crate) fn look(&self, pid: &str) -> bool {
        let stacked = stacked(&mounts_of(pid), &self.site.top);
        let Some(first) = stacked.first() else {
            return true;
        };
        let history = self.journal.about(&[&first.point.display().to_string()]);
        let mut found = self.stacked.lock().unwrap_or_else(PoisonError::into_inner);
        found.get_or_insert(format!("{stacked:#?}\n{history}"));
        false
    }

    /// Returns the stacked mounts that were found, if any.
    pub(crate) fn stacked(&self) -> Option<String> {
        let found = self.stacked.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    }

    /// Makes the call, and fails for a code that contention does not explain.
    #[track_caller]
    pub(crate) fn ask(
        &self,
        caller: &Caller,
        op: &Op,
        leaving: Option<Leaving>,
    ) -> Answer<Outcome> {
        let answer = caller.ask(op, leaving);
        if let Err(status) = &answer
            && !has_left(status)
            && !codes::may_end(op.rpc(), status.code())
        {
            self.fail(op, &format!("must not end with {}", shown(status)));
        }
        answer
    }

    /// Repeats the call until it ends with a code other than ABORTED and the caller is still
    /// connected.
    #[track_caller]
    pub(crate) fn insist(
        &self,
        caller: &Caller,
        op: &Op,
        mut leaving: impl FnMut() -> Option<Leaving>,
    ) -> Answer<Outcome> {
        let end = Instant::now() + SUCCEEDS_WITHIN;
        // A call that waits for a slot of mkfs is repeated instead of failing the test.
        let patient = || Some(Leaving::Connection(PATIENCE));
        while Instant::now() < end {
            match self.ask(caller, op, leaving().or_else(patient)) {
                Err(status) if has_left(&status) => {}
                Err(status) if status.code() == tonic::Code::Aborted => pause(),
                answer => return answer,
            }
        }
        self.fail(op, &format!("is still refused after {SUCCEEDS_WITHIN:?}"))
    }

    /// Repeats the call like [`Scene::insist`], without disconnecting; accepts only OK.
    #[track_caller]
    pub(crate) fn must(&self, caller: &Caller, op: &Op) -> Outcome {
        match self.insist(caller, op, || None) {
            Ok(outcome) => outcome,
            Err(status) => self.fail(op, &format!("must succeed now: {}", shown(&status))),
        }
    }

    /// Fails with everything that is known about the volume.
    #[track_caller]
    pub(crate) fn fail(&self, op: &Op, why: &str) -> ! {
        self.site.fail(&self.journal, op, why, &[])
    }
}

/// Selects whether and when a caller disconnects. Half of the callers may do so at a random
/// instant; a third of all calls are affected, since the other responses come earlier.
pub(crate) fn impatience(chance: &mut Chance) -> Option<Leaving> {
    if chance.below(2) == 0 {
        return None;
    }
    // Most calls take at most a millisecond; calls that wait or format take a hundred.
    let longest_us = *chance.pick(&[300, 3_000, 60_000]);
    let after = Duration::from_micros(chance.below(longest_us));
    Some(match chance.below(2) {
        0 => Leaving::Call(after),
        _ => Leaving::Connection(after),
    })
}
