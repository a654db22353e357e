//! Detects damage that prevents the restore of a ready snapshot: its file is missing, or has
//! changed since the snapshot was taken. Repairs nothing.

use super::{SnapshotRecord, SnapshotState};
use crate::backend::Snapshot;
use crate::backend::local::fault::emptied;
use crate::backend::local::files::{Backing, foreign, missing};
use crate::backend::local::health::{HARDLY_ANY, Named};
use crate::backend::local::store::Store;
use belay_server::call::Failure;
use belay_server::size::Exact;

impl Store {
    /// Converts the record to a snapshot for callers, and checks its file. Returns `None` if no
    /// call may return the snapshot, since it is being created or deleted.
    pub(in crate::backend::local) fn visible(
        &self,
        id: &str,
        record: &SnapshotRecord,
    ) -> Result<Option<Snapshot>, Failure> {
        let Some(mut snapshot) = record.snapshot(id)? else {
            return Ok(None);
        };
        let damage = || self.damage(id, record);
        // A missing file is not damage if the snapshot is being deleted. A deletion marks the
        // record before it removes the file, so read the record after inspecting the file.
        if record.state == SnapshotState::Ready
            && let Some(damage) = damage()
        {
            let again = self.ledger.snapshot(id)?;
            match again.map(|record| record.snapshot(id)).transpose()? {
                None | Some(None) => return Ok(None),
                Some(Some(_)) => {
                    snapshot.ready = false;
                    snapshot.damage = Some(damage);
                }
            }
        }
        Ok(Some(snapshot))
    }

    fn damage(&self, id: &str, record: &SnapshotRecord) -> Option<String> {
        let (path, recorded) = (self.snapshots.path_of(id), record.bytes);
        let named = self.snapshots.named(id);
        if let Ok(named) = &named
            && let Some(linked) = named.linked(&path)
        {
            return Some(linked);
        }
        match named {
            Ok(Named::File { bytes, .. }) if bytes != recorded => {
                Some(resized(path.display(), bytes, recorded))
            }
            // Do not open a file that has allocated blocks, so that ListSnapshots remains cheap.
            Ok(Named::File { allocated, .. }) if allocated > HARDLY_ANY => None,
            Ok(Named::File { .. }) if !record.is_filesystem() => None,
            Ok(Named::File { .. }) => {
                let file = self.snapshots.get_for_reading(id);
                match file.and_then(|file| file.is_emptied()) {
                    Ok(is_emptied) => is_emptied.then(|| emptied(path.display())),
                    Err(failure) => Some(failure.message),
                }
            }
            Ok(Named::Nothing) => Some(missing(&path)),
            Ok(Named::Other) => Some(foreign(&path)),
            Err(failure) => Some(failure.message),
        }
    }
}

/// Refuses the file of a ready snapshot if its size has changed since the snapshot was taken, or if
/// it may also be the file of a volume or of another snapshot.
///
/// # Errors
/// Returns `Precondition` if the file has a different size or several names.
pub(super) fn refuse_changed(file: &Backing, recorded: u64) -> Result<(), Failure> {
    file.refuse_linked()?;
    match file.bytes()? {
        bytes if bytes != recorded => Err(Failure::precondition(resized(
            file.path().display(),
            bytes,
            recorded,
        ))),
        _ => Ok(()),
    }
}

fn resized(path: impl std::fmt::Display, bytes: u64, recorded: u64) -> String {
    format!(
        "{path}: has {}, the snapshot had {}: the file was changed; restore it from a backup, or \
         delete the snapshot",
        Exact(bytes),
        Exact(recorded)
    )
}
