//! Crash recovery at start. If the creation of a volume was interrupted, no caller has received the
//! volume. Recovery therefore deletes the volume, unless its file is marked as complete: such a
//! volume becomes ready. Interrupted deletions are completed. Interrupted expansions are completed,
//! too, unless the file was truncated meanwhile. The file of an interrupted creation is kept if it
//! contains data. Files that belong to no volume are not changed.

use super::files::Backing;
use super::record::{Record, State};
use super::store::{Store, whole_bytes};
use belay_contract::drivers::local::Claim;
use belay_server::call::Failure;
use std::collections::HashSet;

/// The counters of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// The number of interrupted creations that were completed, because their files were complete.
    pub(super) completed: usize,
    /// The number of interrupted creations that were rolled back.
    pub(super) undone: usize,
    /// The number of interrupted deletions that were completed.
    pub(super) deleted: usize,
    /// The number of interrupted expansions that were completed.
    pub(super) grown: usize,
    /// The number of interrupted copies that were queued again.
    pub(super) resumed: usize,
    /// The number of volumes whose files btrfs copies on write, so that they may need more space
    /// than their size.
    pub(super) copy_on_write: usize,
    /// The number of problems that an operator must solve. Each problem is logged.
    pub(super) troubles: usize,
}

impl Recovered {
    /// Logs and counts a record that cannot be read.
    pub(super) fn report(&mut self, id: &str, failure: &Failure) {
        tracing::error!(id, "recovery: {failure}");
        self.troubles += 1;
    }
}

impl Store {
    /// Recovers all volumes and snapshots. A problem with one volume or snapshot does not prevent
    /// the use of the others.
    ///
    /// # Errors
    /// Fails only if the ledger or a directory cannot be read.
    pub(super) fn recover(&self) -> Result<Recovered, Failure> {
        let mut done = Recovered::default();
        let (mut volumes, mut known) = (Vec::new(), HashSet::new());
        self.ledger.scan(None, |id, record| {
            known.insert(id.to_owned());
            match record {
                Ok(record) => volumes.push((id.to_owned(), record)),
                Err(failure) => done.report(id, &failure),
            }
            Ok(true)
        })?;
        for (id, record) in &volumes {
            if let Err(failure) = self.recover_volume(id, record, &mut done) {
                if self.ledger.is_suspect() {
                    return Err(failure);
                }
                tracing::error!(volume = id, state = ?record.state, "recovery: {failure}");
                done.troubles += 1;
            }
        }
        self.files.each(|name, bytes| {
            if !known.contains(name) {
                tracing::warn!(
                    file = name,
                    bytes,
                    "recovery: the file belongs to no volume; kept"
                );
                done.troubles += 1;
            }
        })?;
        self.recover_snapshots(&mut done)?;
        let totals = self.ledger.totals()?;
        totals.show();
        self.ceiling()?;
        if done.copy_on_write > 0 {
            tracing::warn!(
                volumes = done.copy_on_write,
                "volumes on btrfs without NOCOW, which may need more space than their size; see \
                 docs/operations.md"
            );
        }
        tracing::info!(
            volumes = totals.volumes,
            snapshots = totals.snapshots,
            provisioned_bytes = totals.bytes,
            completed = done.completed,
            undone = done.undone,
            deleted = done.deleted,
            grown = done.grown,
            resumed = done.resumed,
            copy_on_write = done.copy_on_write,
            troubles = done.troubles,
            "state recovered"
        );
        Ok(done)
    }

    fn recover_volume(
        &self,
        id: &str,
        record: &Record,
        done: &mut Recovered,
    ) -> Result<(), Failure> {
        match record.state {
            State::Creating if self.complete_whole(id, record)?.is_some() => {
                tracing::info!(
                    volume = id,
                    "recovery: its file was complete, so it is ready"
                );
                done.completed += 1;
            }
            State::Creating => {
                match self.keeps_intents {
                    true => self.remove_incomplete(id, record)?,
                    false => self.clear(id, record)?,
                }
                done.undone += 1;
            }
            State::Deleting => {
                self.clear(id, record)?;
                done.deleted += 1;
            }
            State::Ready => {
                let backing = self.files.get(id)?;
                backing.refuse_linked()?;
                self.end_stale_claim(&backing)?;
                let bytes = backing.bytes()?;
                whole_bytes(&backing, record)?;
                done.copy_on_write += usize::from(backing.is_copied_on_write()?);
                if record.growing_from.is_some() {
                    self.finish_growth(id, &backing)?;
                    done.grown += 1;
                } else if bytes > record.bytes {
                    tracing::warn!(
                        volume = id,
                        bytes,
                        recorded = record.bytes,
                        "the file is larger than the recorded size"
                    );
                }
            }
        }
        Ok(())
    }

    /// Removes a claim (an extended attribute) that a crash has left on the file: the claim of a
    /// copy that is no longer running, or of a deletion that was not recorded yet.
    fn end_stale_claim(&self, backing: &Backing) -> Result<(), Failure> {
        let Some(claim) = backing.claimed()? else {
            return Ok(());
        };
        let is_stale = match &claim {
            Claim::Delete => false,
            Claim::Deleting => true,
            Claim::Copy(snapshot) => !self.is_copying(snapshot)?,
        };
        match is_stale {
            true => backing.end_claim(&claim),
            false => Ok(()),
        }
    }

    /// Removes the file and the record of an interrupted creation or deletion.
    ///
    /// # Errors
    /// Returns the errors of [`Self::refuse_unknown_data`]. The file is kept.
    pub(super) fn clear(&self, id: &str, record: &Record) -> Result<(), Failure> {
        self.refuse_unknown_data(id, record)?;
        self.finish_delete(id)
    }

    /// Refuses to remove the file of an interrupted creation if the file contains data.
    ///
    /// # Errors
    /// Returns `Precondition` if the file contains data that may exist nowhere else.
    pub(super) fn refuse_unknown_data(&self, id: &str, record: &Record) -> Result<(), Failure> {
        // The file of a volume with a source may contain data, but the source has the same data.
        if record.state == State::Creating
            && record.source.is_none()
            && let Some(backing) = self.files.find(id)?
            && backing.holds_data()?
        {
            return Err(Failure::precondition(format!(
                "{}: contains data, but CreateVolume has never returned it; kept; move it away to \
                 free the name {:?}",
                backing.path().display(),
                record.name
            )));
        }
        Ok(())
    }
}
