//! The copies in progress, with source and target. A volume that is being read can be neither
//! staged nor deleted; once the copy has failed, it can. The list is kept in memory only, because
//! a single process uses the state directory; the start adds the copies again from the ledger.

use super::files::Backing;
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

/// The gauge of copies, by `state`.
pub(super) const COPIES: &str = "belay_controller_copies";

/// All copies, by the ID of the target.
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
    /// The lock that prevents the node from binding the source; `None` if no process could bind it.
    lock: Option<Arc<Backing>>,
}

#[derive(Debug)]
enum Stage {
    /// The copy waits for the copier.
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
    /// Returns the target that is being copied from this volume or snapshot, if any.
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
    /// Adds a copy that the caller performs itself.
    pub(super) fn begin(&self, target: &str, source: &str, lock: Option<Arc<Backing>>) {
        self.enter(target, source, lock, Stage::Running);
    }

    /// Adds a copy that the caller performs itself, and whose lock is missing yet, unless there is
    /// another copy of this source.
    ///
    /// # Errors
    /// Returns the target of the other copy.
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

    /// Adds a copy for the copier.
    pub(super) fn queue(&self, target: &str, source: &str, lock: Option<Arc<Backing>>) {
        self.enter(target, source, lock, Stage::Queued);
    }

    /// Adds a copy for the copier, unless it is there.
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

    /// Returns the target that is being copied from this volume or snapshot, if any.
    pub(super) fn reading(&self, source: &str) -> Option<String> {
        self.all.lock().reading(source).map(str::to_owned)
    }

    /// Returns the lock that a copy holds; `None` if the copy began before this process.
    pub(super) fn lock(&self, target: &str) -> Option<Arc<Backing>> {
        let all = self.all.lock();
        all.by_target.get(target)?.lock.clone()
    }

    /// Sets the missing lock of a copy.
    pub(super) fn keep_lock(&self, target: &str, lock: Arc<Backing>) {
        if let Some(copy) = self.all.lock().by_target.get_mut(target) {
            copy.lock = Some(lock);
        }
    }

    /// Waits for the next queued copy; returns `None` once [`Self::close`] was called.
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

    /// Waits until the copy has ended, for at most `patience`.
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

    /// Whether the copy must be continued.
    pub(super) fn wanted(&self, target: &str) -> bool {
        let all = self.all.lock();
        let copy = all.by_target.get(target);
        !all.closed && copy.is_some_and(|copy| !copy.cancelled)
    }

    /// Removes a copy that has ended, and frees its source.
    pub(super) fn end(&self, target: &str) {
        let mut all = self.all.lock();
        all.by_target.remove(target);
        self.tell(&all);
    }

    /// Marks a copy as failed and releases its source, which must remain usable.
    pub(super) fn fail(&self, target: &str, failure: Failure) {
        let mut all = self.all.lock();
        if let Some(copy) = all.by_target.get_mut(target) {
            copy.stage = Stage::Failed(failure);
            copy.lock = None;
        }
        self.tell(&all);
    }

    /// Returns the reason why the copy has failed, if it has.
    pub(super) fn failure(&self, target: &str) -> Option<Failure> {
        match &self.all.lock().by_target.get(target)?.stage {
            Stage::Failed(failure) => Some(failure.clone()),
            Stage::Queued | Stage::Running => None,
        }
    }

    /// Cancels a copy, and waits until no thread is working on it, which takes at most one piece.
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

    /// Sets the gauges before the first copy.
    pub(super) fn show(&self) {
        self.all.lock().show();
    }

    /// Stops the copier, and running copies at their next piece. The next start resumes them.
    pub(super) fn close(&self) {
        self.all.lock().closed = true;
        self.changed.notify_all();
    }

    /// Sets the gauges and wakes all waiters.
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
