//! Expands a volume: records the new size in the ledger, enlarges the file, and records that the
//! expansion is complete. If a crash interrupts an expansion, the next start or the next expansion
//! of the volume completes it. A truncated file is never enlarged, since that would hide the loss
//! of data. A file is also not enlarged if it has replaced a file that is still in use.

use super::files::Backing;
use super::store::{Store, fits, ready, whole_bytes};
use belay_server::call::Failure;

/// An expansion that is recorded in the ledger.
pub(super) struct Promise {
    before: u64,
    growing_from_before: Option<u64>,
    /// The new size, in bytes, as recorded.
    pub(super) now: u64,
    /// Whether the file may have to be enlarged.
    unfinished: bool,
}

impl Store {
    pub(super) fn resize(&self, id: &str, bytes: u64) -> Result<u64, Failure> {
        let record = ready(id, self.ledger.get(id)?)?;
        let backing = self.backing(id)?;
        if bytes <= record.bytes && record.growing_from.is_none() {
            backing.refuse_truncated(record.bytes)?;
            return Ok(record.bytes);
        }
        self.follow(id, bytes, &backing)
    }

    /// Completes the interrupted expansion of the volume, if there is one.
    pub(super) fn finish_growth(&self, id: &str, backing: &Backing) -> Result<(), Failure> {
        self.follow(id, 0, backing).map(drop)
    }

    fn follow(&self, id: &str, bytes: u64, backing: &Backing) -> Result<u64, Failure> {
        self.refuse_replaced(id, backing, false)?;
        let promise = self.promise(id, bytes, backing)?;
        if !promise.unfinished {
            return Ok(promise.now);
        }
        match backing.grow(promise.now) {
            Ok(()) => self.fulfil(id, promise.now),
            Err(failure) => Err(self.settle(id, &promise, backing, failure)),
        }
    }

    /// Records the new size, before the file is enlarged. Changes nothing if the volume is already
    /// at least this large.
    ///
    /// # Errors
    /// Returns `Precondition` if the file was truncated, and `Quota` if there is not enough free
    /// space.
    pub(super) fn promise(
        &self,
        id: &str,
        bytes: u64,
        backing: &Backing,
    ) -> Result<Promise, Failure> {
        self.provision(|changes, limit| {
            let mut record = ready(id, changes.get(id)?)?;
            // A change of the file during a copy would make the copy fail permanently.
            self.refuse_while_copied(id)?;
            let least_bytes = whole_bytes(backing, &record)?;
            let (before, growing_from_before) = (record.bytes, record.growing_from);
            if before < bytes {
                fits(changes, limit, bytes - before)?;
                record.growing_from = Some(least_bytes);
                record.bytes = bytes;
                changes.put(id, &record)?;
            }
            Ok(Promise {
                before,
                growing_from_before,
                now: record.bytes,
                unfinished: record.growing_from.is_some(),
            })
        })
    }

    /// Records that the file has the new size.
    fn fulfil(&self, id: &str, bytes: u64) -> Result<u64, Failure> {
        let fulfilled = self.ledger.change(|changes| {
            let mut record = ready(id, changes.get(id)?)?;
            // Another call may have recorded a larger size meanwhile.
            if record.bytes == bytes && record.growing_from.take().is_some() {
                changes.put(id, &record)?;
            }
            Ok(bytes)
        });
        fulfilled.map_err(Failure::may_be_running)
    }

    /// Restores the old size in the record after enlarging the file has failed. If the file
    /// nevertheless has the new size, keeps the new size in the record, since callers may already
    /// have seen it. The new size may then not be on disk.
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
            // Another call may have recorded a larger size meanwhile.
            if record.bytes == promise.now {
                record.bytes = promise.before;
                record.growing_from = promise.growing_from_before;
                changes.put(id, &record)?;
            }
            Ok(())
        });
        match taken_back {
            Ok(()) => failure.rolled_back(),
            Err(also) => Failure {
                message: format!("{failure}; the rollback failed too: {also}"),
                ..failure.may_be_running()
            },
        }
    }
}
