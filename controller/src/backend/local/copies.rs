//! The copies of data that are in progress or have failed. A volume cannot be staged or deleted
//! while its data is being copied. After the copy has failed, the volume can be staged and deleted
//! again. The list of copies is kept only in memory, because a single process uses the state
//! directory. At start, the controller adds the unfinished copies from the ledger again.

use super::files::Backing;
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

/// The name of the gauge that counts copies, by the label `state`.
pub(super) const COPIES: &str = "belay_controller_copies";

/// All copies, by the ID of the target volume or snapshot.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: Lock<All>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct All {
    by_target: BTreeMap<String, Copy>,
    closed: bool,
}

#[derive(Debug)]
struct Copy {
    source: String,
    stage: Stage,
    cancelled: bool,
    /// The lock on the source, which prevents the node from binding it to a loop device. `None` if
    /// the copy needs no lock, or has not locked its source yet.
    lock: Option<Arc<Backing>>,
}

#[derive(Debug)]
enum Stage {
    /// The copy waits for the copier, the thread that makes copies in the background.
    Queued,
    Running,
    /// The copy has failed, for this reason.
    Failed(Failure),
}

impl Copy {
    fn new(source: &str, lock: Option<Arc<Backing>>, stage: Stage) -> Self {
        Self {
            source: source.to_owned(),
            stage,
            cancelled: false,
            lock,
        }
    }
}

impl All {
    /// Returns the target of the unfinished copy of this volume or snapshot; `None` if there is no
    /// such copy.
    fn reading(&self, source: &str) -> Option<&str> {
        let mut copies = self.by_target.iter();
        let found = copies
            .find(|(_, copy)| copy.source == source && !matches!(copy.stage, Stage::Failed(_)));
        found.map(|(target, _)| target.as_str())
    }

    fn show(&self) {
        let (mut queued, mut running, mut failed) = (0, 0, 0);
        for copy in self.by_target.values() {
            match copy.stage {
                Stage::Queued => queued += 1,
                Stage::Running => running += 1,
                Stage::Failed(_) => failed += 1,
            }
        }
        for (state, count) in [("queued", queued), ("running", running), ("failed", failed)] {
            metrics::gauge!(COPIES, "state" => state).set(count);
        }
    }
}

impl Copies {
    /// Adds a copy that the caller makes itself.
    pub(super) fn begin(&self, target: &str, source: &str, lock: Option<Arc<Backing>>) {
        self.enter(target, source, lock, Stage::Running);
    }

    /// Adds a copy that the caller makes itself. The caller must then call [`Self::keep_lock`].
    /// Refuses the copy if the source is already being copied.
    ///
    /// # Errors
    /// Returns the ID of the other copy's target.
    pub(super) fn begin_alone(&self, target: &str, source: &str) -> Result<(), String> {
        let mut all = self.all.lock();
        if let Some(other) = all.reading(source) {
            return Err(other.to_owned());
        }
        all.by_target
            .insert(target.to_owned(), Copy::new(source, None, Stage::Running));
        self.tell(&all);
        Ok(())
    }

    /// Adds a copy for the copier, the thread that makes copies in the background.
    pub(super) fn queue(&self, target: &str, source: &str, lock: Option<Arc<Backing>>) {
        self.enter(target, source, lock, Stage::Queued);
    }

    /// Adds a copy for the copier, unless the target already has a copy.
    pub(super) fn resume(&self, target: &str, source: &str) {
        if !self.all.lock().by_target.contains_key(target) {
            self.queue(target, source, None);
        }
    }

    fn enter(&self, target: &str, source: &str, lock: Option<Arc<Backing>>, stage: Stage) {
        let copy = Copy::new(source, lock, stage);
        let mut all = self.all.lock();
        all.by_target.insert(target.to_owned(), copy);
        self.tell(&all);
    }

    /// Returns the target of the unfinished copy of this volume or snapshot; `None` if there is no
    /// such copy.
    pub(super) fn reading(&self, source: &str) -> Option<String> {
        self.all.lock().reading(source).map(str::to_owned)
    }

    /// Returns the lock that a copy holds on its source; `None` if it holds no lock, e.g. after a
    /// restart.
    pub(super) fn lock(&self, target: &str) -> Option<Arc<Backing>> {
        let all = self.all.lock();
        all.by_target.get(target)?.lock.clone()
    }

    /// Stores the lock on the source of a copy that was added without the lock.
    pub(super) fn keep_lock(&self, target: &str, lock: Arc<Backing>) {
        if let Some(copy) = self.all.lock().by_target.get_mut(target) {
            copy.lock = Some(lock);
        }
    }

    /// Waits for the next queued copy and returns its target; returns `None` after [`Self::close`].
    pub(super) fn next(&self) -> Option<String> {
        let mut all = self.all.lock();
        loop {
            if all.closed {
                return None;
            }
            let mut copies = all.by_target.iter_mut();
            if let Some((target, copy)) =
                copies.find(|(_, copy)| matches!(copy.stage, Stage::Queued))
            {
                copy.stage = Stage::Running;
                let target = target.clone();
                all.show();
                return Some(target);
            }
            let woken = self.changed.wait(all);
            all = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the copy has succeeded or failed, for at most `patience`.
    pub(super) fn await_end(&self, target: &str, patience: Duration) {
        let running = |all: &mut All| {
            let copy = all.by_target.get(target);
            copy.is_some_and(|copy| !matches!(copy.stage, Stage::Failed(_)))
        };
        drop(
            self.changed
                .wait_timeout_while(self.all.lock(), patience, running)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Whether the copy must continue, since it was not cancelled and the controller is not
    /// shutting down.
    pub(super) fn wanted(&self, target: &str) -> bool {
        let all = self.all.lock();
        let copy = all.by_target.get(target);
        !all.closed && copy.is_some_and(|copy| !copy.cancelled)
    }

    /// Removes a copy that has ended, and releases its source.
    pub(super) fn end(&self, target: &str) {
        let mut all = self.all.lock();
        all.by_target.remove(target);
        self.tell(&all);
    }

    /// Marks a copy as failed, and releases its source, so that the source can be used.
    pub(super) fn fail(&self, target: &str, failure: Failure) {
        let mut all = self.all.lock();
        if let Some(copy) = all.by_target.get_mut(target) {
            copy.stage = Stage::Failed(failure);
            copy.lock = None;
        }
        self.tell(&all);
    }

    /// Returns the failure of the copy; `None` if it has not failed.
    pub(super) fn failure(&self, target: &str) -> Option<Failure> {
        match &self.all.lock().by_target.get(target)?.stage {
            Stage::Failed(failure) => Some(failure.clone()),
            Stage::Queued | Stage::Running => None,
        }
    }

    /// Cancels a copy. Waits until no thread is working on the copy: at most until the current
    /// piece of data is copied.
    pub(super) fn cancel(&self, target: &str) {
        let mut all = self.all.lock();
        while let Some(copy) = all.by_target.get_mut(target) {
            if !matches!(copy.stage, Stage::Running) {
                all.by_target.remove(target);
                break;
            }
            copy.cancelled = true;
            let woken = self.changed.wait(all);
            all = woken.unwrap_or_else(PoisonError::into_inner);
        }
        self.tell(&all);
    }

    /// Sets the gauges to their initial values.
    pub(super) fn show(&self) {
        self.all.lock().show();
    }

    /// Stops the copier, the thread that makes copies in the background. Each running copy ends
    /// after its current piece of data. The next start resumes the copies.
    pub(super) fn close(&self) {
        self.all.lock().closed = true;
        self.changed.notify_all();
    }

    /// Sets the gauges, and wakes all waiting threads.
    fn tell(&self, all: &All) {
        all.show();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_cancelled_is_over_when_that_returns() {
        let copies = Copies::default();
        copies.queue("snap-1", "vol-1", None);
        assert_eq!(copies.next().as_deref(), Some("snap-1"));
        std::thread::scope(|threads| {
            let copier = threads.spawn(|| {
                while copies.wanted("snap-1") {
                    std::thread::yield_now();
                }
                copies.fail("snap-1", Failure::busy("ended"));
            });
            copies.cancel("snap-1");
            assert_eq!(copies.reading("vol-1"), None);
            copier.join().unwrap();
        });
    }

    #[test]
    fn a_failed_copy_lets_go_of_its_source() {
        let copies = Copies::default();
        copies.begin("snap-1", "vol-1", None);
        assert_eq!(copies.failure("snap-1"), None, "it is running");
        copies.fail("snap-1", Failure::busy("the disk"));
        copies.await_end("snap-1", Duration::MAX);
        assert_eq!(copies.reading("vol-1"), None);
        assert_eq!(copies.failure("snap-1"), Some(Failure::busy("the disk")));
    }

    #[test]
    fn a_source_has_one_copy_at_a_time() {
        let copies = Copies::default();
        assert_eq!(copies.begin_alone("snap-1", "vol-1"), Ok(()));
        let other = Err("snap-1".to_owned());
        assert_eq!(copies.begin_alone("snap-2", "vol-1"), other);
        assert_eq!(copies.begin_alone("snap-3", "vol-2"), Ok(()));
        copies.end("snap-1");
        assert_eq!(copies.begin_alone("snap-2", "vol-1"), Ok(()));
    }

    #[test]
    fn a_closed_copier_wants_nothing_more() {
        let copies = Copies::default();
        copies.queue("snap-1", "vol-1", None);
        copies.close();
        assert_eq!(copies.next(), None);
        assert!(!copies.wanted("snap-1"));
    }
}
