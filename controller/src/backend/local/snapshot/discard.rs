//! Deletes a snapshot: marks it as being deleted in the ledger, unlinks its file, and removes its
//! record. Volumes that were restored from the snapshot are not affected.

use super::SnapshotState;
use crate::backend::local::store::Store;
use belay_contract::drivers::local::Claim;
use belay_server::call::{Failure, Kind};

impl Store {
    pub(in crate::backend::local) fn discard(&self, id: &str) -> Result<(), Failure> {
        match self.ledger.snapshot(id)?.map(|record| record.state) {
            None => return Ok(()),
            Some(SnapshotState::Cutting) => {
                return Err(Failure::busy(format!("snapshot {id}: still being created")));
            }
            Some(_) => {}
        }
        self.finish_discard(id)
    }

    /// Marks the snapshot as being deleted, unlinks its file and removes its record. Continues a
    /// deletion that was interrupted between these steps.
    ///
    /// # Errors
    /// Returns `Precondition`, and changes nothing, if the file may also belong to a volume or
    /// another snapshot.
    pub(in crate::backend::local) fn finish_discard(&self, id: &str) -> Result<(), Failure> {
        self.refuse_linked_snapshot(id)?;
        self.begin_discard(id)?;
        self.copies.cancel(id);
        self.end_claim(id)?;
        let bytes = self.snapshots.allocated(id);
        self.snapshots.remove(id).map_err(Failure::may_be_running)?;
        self.ceiling.freed(bytes);
        self.ledger
            .change(|changes| changes.forget_snapshot(id))
            .map_err(Failure::may_be_running)
    }

    /// Refuses to delete a snapshot whose file may also belong to a volume or another snapshot.
    ///
    /// # Errors
    /// Returns `Precondition` if the file has another name.
    pub(in crate::backend::local) fn refuse_linked_snapshot(
        &self,
        id: &str,
    ) -> Result<(), Failure> {
        let named = self.snapshots.named(id)?;
        match named.linked(&self.snapshots.path_of(id)) {
            Some(linked) => Err(Failure::precondition(linked)),
            None => Ok(()),
        }
    }

    /// Refuses to delete a snapshot while a volume is being copied from it.
    ///
    /// # Errors
    /// Returns `Precondition` during such a copy.
    pub(in crate::backend::local) fn refuse_read_snapshot(&self, id: &str) -> Result<(), Failure> {
        let Some(target) = self.copies.reading(id) else {
            return Ok(());
        };
        Err(Failure::precondition(format!(
            "snapshot {id}: volume {target} is being copied from it; delete it when {target} is \
             ready"
        )))
    }

    /// Removes the claim that a copy to this snapshot has set on the source volume's file.
    pub(in crate::backend::local) fn end_claim(&self, id: &str) -> Result<(), Failure> {
        let Some(record) = self.ledger.snapshot(id)? else {
            return Ok(());
        };
        match self.files.find(&record.source) {
            Ok(Some(source)) => {
                source.end_claim(&Claim::Copy(id.to_owned()))?;
                source.sync()
            }
            Ok(None) => Ok(()),
            // The object with the name of the file is not a regular file, so it has no claim.
            Err(failure) if failure.kind == Kind::Precondition => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Marks the snapshot as being deleted. From then on, no lookup returns the snapshot.
    pub(in crate::backend::local) fn begin_discard(&self, id: &str) -> Result<(), Failure> {
        self.ledger.change(|changes| {
            let Some(mut record) = changes.snapshot(id)? else {
                return Ok(());
            };
            self.refuse_read_snapshot(id)?;
            record.state = SnapshotState::Deleting;
            changes.put_snapshot(id, &record)
        })
    }
}
