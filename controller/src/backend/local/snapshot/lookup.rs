//! Reads and lists snapshots.

use crate::backend::local::id;
use crate::backend::local::store::Store;
use crate::backend::{Snapshot, SnapshotPage};
use belay_server::call::{Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};
use std::time::Duration;

/// Maximum time that CreateSnapshot waits for a copy, so that small copies need no second call.
const COPY_PATIENCE: Duration = Duration::from_secs(1);

/// Returns the snapshot; `None` if its record is damaged.
fn known(found: Result<Option<Snapshot>, Failure>) -> Result<Option<Snapshot>, Failure> {
    match found {
        Err(failure) if failure.kind == Kind::Bug => Ok(None),
        found => found,
    }
}

impl Store {
    pub(in crate::backend::local) fn snapshot(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<Snapshot>, Failure> {
        match self.ledger.snapshot(id.as_str())? {
            Some(record) => self.visible(id.as_str(), &record),
            None => Ok(None),
        }
    }

    /// Returns the snapshot. If the snapshot is not ready, first waits a short time for the end of
    /// its copy.
    pub(in crate::backend::local) fn settled(&self, cut: Snapshot) -> Result<Snapshot, Failure> {
        if cut.ready {
            return Ok(cut);
        }
        self.copies.await_end(cut.id.as_str(), COPY_PATIENCE);
        Ok(self.snapshot(&cut.id)?.unwrap_or(cut))
    }

    /// Lists snapshots, ordered by ID. The token is the last ID of the previous page; the snapshot
    /// with this ID may have been deleted.
    pub(in crate::backend::local) fn list_snapshots(
        &self,
        of: Option<&VolumeId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<SnapshotPage, Failure> {
        if let Some(token) = after.filter(|token| !id::is_ours(id::SNAPSHOT, token)) {
            let message = format!(
                "starting_token {token:?}: not a token of this driver; list from the start"
            );
            return Err(Failure::new(Kind::BadToken, message));
        }
        let mut page = SnapshotPage::default();
        let of = of.map(VolumeId::as_str);
        self.ledger.scan_snapshots(of, after, |id, record| {
            // Omit a snapshot whose record is unreadable, since an entry of the list requires the
            // source and the time. The start has already logged the unreadable record.
            let Some(snapshot) = known(record.and_then(|record| self.visible(id, &record)))? else {
                return Ok(true);
            };
            if page.snapshots.len() == limit {
                let last = page.snapshots.last();
                page.next = last.map(|snapshot| snapshot.id.as_str().to_owned());
                return Ok(false);
            }
            page.snapshots.push(snapshot);
            Ok(true)
        })?;
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_that_cannot_be_read_is_left_out_of_a_list() {
        assert_eq!(known(Err(Failure::bug("not JSON"))), Ok(None));
        let failure = Failure::busy("a lease");
        assert_eq!(known(Err(failure.clone())), Err(failure));
    }
}
