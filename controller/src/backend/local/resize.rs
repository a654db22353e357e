//! Growing a volume: the new size is promised in the ledger, then the file follows. After a death
//! in between, recovery lets it follow.

use super::files::Backing;
use super::store::{Store, fits, ready};
use belay_server::failure::Failure;

/// A size before and after.
pub(super) struct Promise {
    pub(super) before: u64,
    pub(super) now: u64,
}

impl Store {
    pub(super) fn resize(&self, id: &str, bytes: u64) -> Result<u64, Failure> {
        ready(id, self.ledger.get(id)?)?;
        let backing = self.backing(id)?;
        // Until the file has followed, its size is nobody's fault.
        let _growing = self.growing.begin(id);
        let promise = self.promise(id, bytes)?;
        match backing.grow(promise.now) {
            Ok(()) => Ok(promise.now),
            Err(failure) => Err(self.settle(id, &promise, &backing, failure)),
        }
    }

    /// The first step. A volume that is large enough stays as it is.
    pub(super) fn promise(&self, id: &str, bytes: u64) -> Result<Promise, Failure> {
        let ceiling = self.ceiling()?;
        self.ledger.change(|changes| {
            let mut record = ready(id, changes.get(id)?)?;
            let before = record.bytes;
            if before < bytes {
                fits(changes, ceiling, bytes - before)?;
                record.bytes = bytes;
                changes.put(id, &record)?;
            }
            Ok(Promise {
                before,
                now: record.bytes,
            })
        })
    }

    /// What a failure to follow means for the promise: a file that is large enough all the same, if
    /// perhaps not on disk, may have been seen already.
    pub(super) fn settle(
        &self,
        id: &str,
        promise: &Promise,
        backing: &Backing,
        failure: Failure,
    ) -> Failure {
        match backing.bytes() {
            Ok(bytes) if bytes < promise.now => self.take_back(id, promise, failure),
            _ => failure.may_be_running(),
        }
    }

    fn take_back(&self, id: &str, promise: &Promise, failure: Failure) -> Failure {
        let taken_back = self.ledger.change(|changes| {
            let mut record = ready(id, changes.get(id)?)?;
            // Another call may have promised more meanwhile.
            if record.bytes == promise.now {
                record.bytes = promise.before;
                changes.put(id, &record)?;
            }
            Ok(())
        });
        match taken_back {
            Ok(()) => failure.rolled_back(),
            Err(also) => Failure {
                message: format!("{failure}; and taking the promise back: {also}"),
                ..failure.may_be_running()
            },
        }
    }
}
