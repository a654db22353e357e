//! The state that all lifecycles share: the sockets, the times of kills, and when the lifecycles
//! must pause.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::rig::{Caller, Journal, Op, Outcome, PATIENCE, Site, pause, shown};

/// The time after which a call to a running process must have succeeded, far longer than a mkfs
/// outlives its agent.
const SUCCEEDS_WITHIN: Duration = PATIENCE.saturating_mul(2);

/// Maximum number of transient refusals of a call ([`may_pass`]).
const REFUSALS_MAX: u32 = 5;

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    NodeAgent,
    Controller,
}

/// The trial.
pub(crate) struct Trial {
    /// The paths of both programs.
    pub(crate) site: Site,
    /// The record of all calls.
    pub(crate) journal: Arc<Journal>,
    /// Whether volumes in use can be snapshotted and cloned.
    pub(crate) shares_blocks: bool,
    /// Counters that are incremented before a kill and after the restart.
    epochs: [AtomicU64; 2],
    is_over: AtomicBool,
    has_failed: AtomicBool,
    truce: RwLock<()>,
    interrupted: Mutex<BTreeMap<&'static str, u32>>,
}

impl Trial {
    pub(crate) fn new(site: Site, shares_blocks: bool) -> Self {
        Trial {
            site,
            journal: Arc::new(Journal::new()),
            shares_blocks,
            epochs: [AtomicU64::new(0), AtomicU64::new(0)],
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            truce: RwLock::new(()),
            interrupted: Mutex::default(),
        }
    }

    /// Whether no more kills follow, or a lifecycle has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Ends the trial.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Ends the trial, since a lifecycle has failed.
    pub(crate) fn fail_all(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
        self.end();
    }

    /// Whether a lifecycle has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Must be called before a program is killed, and after it was started again.
    pub(crate) fn turn(&self, binary: Binary) {
        let epoch = self.epochs[binary as usize].fetch_add(1, Ordering::SeqCst);
        let what = if epoch.is_multiple_of(2) {
            "is killed"
        } else {
            "runs again"
        };
        self.journal.note(&format!("{binary:?} {what}"));
    }

    /// While this is held, [`Trial::hold_still`] waits, and vice versa.
    pub(crate) fn step(&self) -> RwLockReadGuard<'_, ()> {
        self.truce.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all lifecycles are between two steps, and keeps them there.
    pub(crate) fn hold_still(&self) -> RwLockWriteGuard<'_, ()> {
        self.truce.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns, for each RPC, how often a call found its process killed.
    pub(crate) fn interrupted(&self) -> BTreeMap<&'static str, u32> {
        let interrupted = self.interrupted.lock();
        interrupted.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Repeats the call until it succeeds, or until a running process refuses it.
    pub(crate) fn insist(&self, caller: &Caller, op: &Op) -> Result<Outcome, Status> {
        let binary = if op.is_of_node() {
            Binary::NodeAgent
        } else {
            Binary::Controller
        };
        let epoch = || self.epochs[binary as usize].load(Ordering::SeqCst);
        let (mut end, mut refusals) = (Instant::now() + SUCCEEDS_WITHIN, 0);
        while Instant::now() < end {
            let before = epoch();
            let status = match caller.ask(op, None) {
                // A repetition of the call reports when the snapshot is ready.
                Ok(Outcome::Snapshot(_, false)) => Status::aborted("not ready yet"),
                Ok(outcome) => return Ok(outcome),
                Err(status) => status,
            };
            let is_killed = epoch() != before;
            if is_killed && before.is_multiple_of(2) {
                let interrupted = self.interrupted.lock();
                let mut interrupted = interrupted.unwrap_or_else(PoisonError::into_inner);
                *interrupted.entry(op.rpc()).or_default() += 1;
            }
            let is_excused = is_killed || !before.is_multiple_of(2);
            if !is_excused && status.code() != Code::Aborted {
                if refusals == REFUSALS_MAX || !may_pass(op, &status) {
                    return Err(status);
                }
                refusals += 1;
            }
            if is_excused {
                end = Instant::now() + SUCCEEDS_WITHIN;
            }
            pause();
        }
        self.fail(op, &format!("is still refused after {SUCCEEDS_WITHIN:?}"))
    }

    /// Repeats the call like [`Trial::insist`], and accepts only OK.
    pub(crate) fn must(&self, caller: &Caller, op: &Op) -> Outcome {
        match self.insist(caller, op) {
            Ok(outcome) => outcome,
            Err(status) => {
                let why = format!("was refused: {}", shown(&status));
                self.fail(op, &why)
            }
        }
    }

    /// Fails with everything that is known about the volume.
    #[track_caller]
    pub(crate) fn fail(&self, op: &Op, why: &str) -> ! {
        self.site
            .fail(&self.journal, op, why, &["is killed", "runs again"])
    }
}

/// Whether a refused call may succeed when repeated. The kernel remembers each device with a btrfs
/// by its number, and may (Linux 6.18) refuse a mount once because of another volume's content
/// under that number ("metadata uuid of fs_devices"). Nothing is mounted then, and the next try
/// succeeds.
fn may_pass(op: &Op, status: &Status) -> bool {
    matches!(op, Op::Stage(_, "btrfs")) && status.code() == Code::Internal
}
