//! Creates volumes and snapshots whose IDs the caller has chosen. The caller first records the
//! intent, and creates the file later, possibly after a restart: unlike the intents of
//! CreateVolume, these intents remain until the caller abandons them.

use super::create::give_up;
use super::delete::Removal;
use super::fault::unread;
use super::record::{Record, State};
use super::snapshot_record::{SnapshotRecord, SnapshotState};
use super::store::{Store, fits, ready};
use belay_server::call::Failure;
use belay_server::request::ContentSource;

impl Store {
    /// Records the intent to create a volume. Does nothing if there is a record with this ID. Other
    /// volumes may have the same name.
    ///
    /// # Errors
    /// Returns `Quota` if there is not enough free space.
    pub(super) fn intend_as(&self, id: &str, record: &Record) -> Result<(), Failure> {
        self.provision(|changes, limit| {
            if changes.get(id)?.is_some() {
                return Ok(());
            }
            fits(changes, limit, record.bytes)?;
            changes.put(id, record)
        })
        .map_err(unread)
    }

    /// Creates the volume of a recorded intent. Does nothing if the volume is complete.
    ///
    /// # Errors
    /// Returns the errors of creating the file. The record of the intent remains, without a file.
    pub(super) fn make_intended(
        &self,
        id: &str,
        source: Option<&ContentSource>,
    ) -> Result<(), Failure> {
        let record = self.ledger.get(id)?;
        let Some(record) = record.filter(|record| record.state == State::Creating) else {
            return Ok(());
        };
        if self.complete_whole(id, &record)?.is_some() {
            return Ok(());
        }
        self.remove_incomplete(id, &record)?;
        let file = self.files.begin(id)?;
        match self.make(id, &file, record.bytes, source) {
            Ok(()) => self.complete(id).map(drop),
            Err(failure) => {
                drop(file);
                Err(give_up(failure, self.remove_incomplete(id, &record)))
            }
        }
    }

    /// Removes the incomplete file and the record of an intent. Does nothing if there is no record.
    pub(super) fn abandon(&self, id: &str) -> Result<(), Failure> {
        match self.ledger.get(id)? {
            None => Ok(()),
            Some(record) if record.state == State::Ready => Err(Failure::bug(format!(
                "volume {id}: complete, so it cannot be abandoned"
            ))),
            Some(record) => self.clear(id, &record),
        }
    }

    /// Records the intent to take a snapshot of a volume. Does nothing if there is a record with
    /// this ID.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist, and `Quota` if there is not enough free
    /// space.
    pub(super) fn intend_snapshot_as(
        &self,
        id: &str,
        name: &str,
        source: &str,
    ) -> Result<(), Failure> {
        self.provision(|changes, limit| {
            if changes.snapshot(id)?.is_some() {
                return Ok(());
            }
            let volume = ready(source, changes.get(source)?)?;
            fits(changes, limit, volume.bytes)?;
            changes.put_snapshot(id, &SnapshotRecord::cutting(name, source, &volume))
        })
        .map_err(unread)
    }

    /// Takes the snapshot of a recorded intent. Does nothing if the snapshot is taken. A copy may
    /// still fill its file when this method returns.
    ///
    /// # Errors
    /// Returns the errors of taking a snapshot. The record of the intent remains, without a file.
    pub(super) fn make_intended_snapshot(&self, id: &str, source: &str) -> Result<(), Failure> {
        let record = self.ledger.snapshot(id)?;
        if record.is_none_or(|record| record.state != SnapshotState::Cutting) {
            return Ok(());
        }
        if self.complete_whole_snapshot(id)?.is_some() {
            return Ok(());
        }
        // Another copy of the volume may take long, and each attempt would write its file to disk.
        self.refuse_while_copied(source)?;
        self.snapshots.remove(id)?;
        let taken = self.fill_snapshot(id, source);
        taken
            .map(drop)
            .map_err(|failure| give_up(failure, self.remove_untaken(id)))
    }

    /// Removes the file of a snapshot that could not be taken. Keeps the file if the snapshot was
    /// taken nevertheless: the last write of its record may have failed after it had reached the
    /// disk.
    fn remove_untaken(&self, id: &str) -> Result<(), Failure> {
        let record = self.ledger.snapshot(id)?;
        if record.is_some_and(|record| record.state == SnapshotState::Cutting) {
            self.snapshots.remove(id)?;
            self.end_claim(id)?;
        }
        Ok(())
    }

    /// Removes the incomplete file and the record of a snapshot. Does nothing if there is no
    /// record.
    ///
    /// # Errors
    /// Returns `Bug` if a caller may have received the snapshot.
    pub(super) fn abandon_snapshot(&self, id: &str) -> Result<(), Failure> {
        let Some(record) = self.ledger.snapshot(id)? else {
            return Ok(());
        };
        let is_incomplete = match record.state {
            SnapshotState::Cutting | SnapshotState::Deleting => true,
            SnapshotState::Copying => self.copies.failure(id).is_some(),
            SnapshotState::Ready => false,
        };
        match is_incomplete {
            true => self.finish_discard(id),
            false => Err(Failure::bug(format!(
                "snapshot {id}: was taken already, so it cannot be abandoned"
            ))),
        }
    }

    /// Checks that a snapshot can be removed now.
    ///
    /// # Errors
    /// Returns `Precondition` while a volume is being copied from the snapshot, or if its file has
    /// another name.
    pub(super) fn reserve_snapshot(&self, id: &str) -> Result<Removal, Failure> {
        self.refuse_linked_snapshot(id)?;
        self.refuse_read_snapshot(id)?;
        Ok(Removal::Begun)
    }

    /// Removes the file of an interrupted creation. The record remains.
    ///
    /// # Errors
    /// Returns `Precondition` if the file contains data that may exist nowhere else.
    pub(super) fn remove_incomplete(&self, id: &str, record: &Record) -> Result<(), Failure> {
        self.refuse_unknown_data(id, record)?;
        self.files.remove(id)
    }
}
