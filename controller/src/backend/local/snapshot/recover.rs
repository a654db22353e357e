//! What a start does with snapshots that a death left half done: nobody was told of one that was
//! being cut, so it goes; one that is being deleted goes too; a copy begins again. One whose file
//! is marked as whole is ready instead.

use super::damage::refuse_resized;
use super::{SnapshotRecord, SnapshotState};
use crate::backend::local::recover::Recovered;
use crate::backend::local::store::Store;
use belay_server::call::Failure;
use std::collections::HashSet;

impl Store {
    /// Mends the snapshots. Trouble with one does not keep the others from being served.
    ///
    /// # Errors
    /// Only if the ledger or the directory cannot be read.
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
                tracing::error!(snapshot = id, state = ?record.state, "recovery: {failure}");
                done.troubles += 1;
            }
        }
        self.snapshots.each(|name, bytes| {
            if !known.contains(name) {
                tracing::warn!(
                    file = name,
                    bytes,
                    "recovery: a file of no snapshot; left alone"
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
            }
            SnapshotState::Cutting => {
                self.finish_discard(id)?;
                done.undone += 1;
            }
            SnapshotState::Deleting => {
                self.finish_discard(id)?;
                done.deleted += 1;
            }
            SnapshotState::Copying => {
                // The record has kept everybody from the volume; the copier takes its lock.
                self.copies.queue(id, &record.source, None);
                done.resumed += 1;
            }
            SnapshotState::Ready => {
                refuse_resized(&self.snapshots.get(id)?, record.bytes)?;
            }
        }
        Ok(())
    }
}
