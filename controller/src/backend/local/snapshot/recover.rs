//! Crash recovery of snapshots at start. If the creation of a snapshot was interrupted, no caller
//! has received the snapshot, so recovery deletes it. An interrupted deletion is completed, and an
//! interrupted copy is queued again. But if the file of the snapshot is marked as complete, the
//! snapshot becomes ready.

use super::damage::refuse_changed;
use super::{SnapshotRecord, SnapshotState};
use crate::backend::local::recover::Recovered;
use crate::backend::local::store::Store;
use belay_server::call::Failure;
use std::collections::HashSet;

impl Store {
    /// Recovers all snapshots. A problem with one snapshot does not prevent the use of the others.
    ///
    /// # Errors
    /// Fails only if the ledger or the directory cannot be read.
    pub(in crate::backend::local) fn recover_snapshots(
        &self,
        done: &mut Recovered,
    ) -> Result<(), Failure> {
        let (mut snapshots, mut known) = (Vec::new(), HashSet::new());
        self.ledger.scan_snapshots(None, None, |id, record| {
            known.insert(id.to_owned());
            match record {
                Ok(record) => snapshots.push((id.to_owned(), record)),
                Err(failure) => done.report(id, &failure),
            }
            Ok(true)
        })?;
        for (id, record) in &snapshots {
            if let Err(failure) = self.recover_snapshot(id, record, done) {
                if self.ledger.is_suspect() {
                    return Err(failure);
                }
                tracing::error!(snapshot = id, state = ?record.state, "recovery: {failure}");
                done.troubles += 1;
            }
        }
        self.snapshots.each(|name, bytes| {
            if !known.contains(name) {
                tracing::warn!(
                    file = name,
                    bytes,
                    "recovery: the file belongs to no snapshot; kept"
                );
                done.troubles += 1;
            }
        })
    }

    fn recover_snapshot(
        &self,
        id: &str,
        record: &SnapshotRecord,
        done: &mut Recovered,
    ) -> Result<(), Failure> {
        match record.state {
            SnapshotState::Cutting | SnapshotState::Copying
                if self.complete_whole_snapshot(id)?.is_some() =>
            {
                tracing::info!(
                    snapshot = id,
                    "recovery: its file was complete, so it is ready"
                );
                done.completed += 1;
                self.end_claim(id)?;
            }
            SnapshotState::Cutting => {
                match self.keeps_intents {
                    true => self.snapshots.remove(id)?,
                    false => self.finish_discard(id)?,
                }
                done.undone += 1;
            }
            SnapshotState::Deleting => {
                self.finish_discard(id)?;
                done.deleted += 1;
            }
            SnapshotState::Copying => {
                // The claim on the volume's file has prevented the node agent from using the
                // volume. The copier locks the volume again.
                self.copies.queue(id, &record.source, None);
                done.resumed += 1;
            }
            SnapshotState::Ready => {
                refuse_changed(&self.snapshots.get(id)?, record.bytes)?;
            }
        }
        Ok(())
    }
}
