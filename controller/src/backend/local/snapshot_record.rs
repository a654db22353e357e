//! The record of a snapshot, stored in the same form as a volume's record. Opens nothing.

use crate::backend::local::record::{Record, VERSION, decode};
use crate::backend::{Mark, Phase, Snapshot};
use belay_server::call::Failure;
use belay_server::request::{SnapshotId, VolumeId};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::backend::local) struct SnapshotRecord {
    version: u32,
    pub(in crate::backend::local) name: String,
    /// The ID of the volume, which may have been deleted.
    pub(in crate::backend::local) source: String,
    pub(in crate::backend::local) bytes: u64,
    pub(in crate::backend::local) state: SnapshotState,
    /// The time of the cut, in nanoseconds since 1970; 0 before the cut.
    created_ns: u64,
    /// Whether the volume had a filesystem.
    filesystem: bool,
}

/// The state of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::backend::local) enum SnapshotState {
    /// The cut of the snapshot is recorded, and its file may exist or not. No caller has received
    /// the snapshot yet.
    Cutting,
    /// The snapshot was cut, and its file is being filled from the volume's, to which no process
    /// may write until then.
    Copying,
    /// The file is complete.
    Ready,
    /// The snapshot is being deleted, and its file may exist or not. No caller receives it any
    /// longer.
    Deleting,
}

impl SnapshotRecord {
    /// Creates the record of a snapshot before it is cut from this volume.
    pub(in crate::backend::local) fn cutting(name: &str, source: &str, volume: &Record) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            source: source.to_owned(),
            bytes: volume.bytes,
            state: SnapshotState::Cutting,
            created_ns: 0,
            filesystem: volume.is_filesystem(),
        }
    }

    /// Records the time of the cut.
    pub(super) fn cut_at(&mut self, instant: SystemTime) {
        // A clock before 1970 was never set.
        let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.created_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Whether the volume had a filesystem.
    pub(super) fn is_filesystem(&self) -> bool {
        self.filesystem
    }

    /// Decodes the result of [`Self::encode`].
    ///
    /// # Errors
    /// Returns `Bug`, with the snapshot's ID, for an invalid record or one of another version.
    pub(in crate::backend::local) fn decode(id: &str, bytes: &[u8]) -> Result<Self, Failure> {
        decode(&format!("snapshot {id}"), bytes)
    }

    /// Returns the stored form.
    ///
    /// # Errors
    /// Returns `Bug` if it cannot be encoded as JSON.
    pub(in crate::backend::local) fn encode(&self) -> Result<Vec<u8>, Failure> {
        serde_json::to_vec(self).map_err(|error| Failure::bug(format!("state.redb: {error}")))
    }

    /// Returns 1 if the record counts as a snapshot, else 0. Only ready snapshots count.
    pub(in crate::backend::local) fn counts(&self) -> u64 {
        u64::from(self.state == SnapshotState::Ready)
    }

    /// Returns the snapshot for callers, without a check of its file; `None` if it is hidden.
    ///
    /// # Errors
    /// Returns `Bug` if a stored ID violates the current rules.
    pub(super) fn snapshot(&self, id: &str) -> Result<Option<Snapshot>, Failure> {
        let ready = match self.state {
            SnapshotState::Cutting | SnapshotState::Deleting => return Ok(None),
            SnapshotState::Copying => false,
            SnapshotState::Ready => true,
        };
        let kept = |failure| Failure::bug(format!("state.redb: snapshot {id}: {failure}"));
        Ok(Some(Snapshot {
            id: SnapshotId::new(id).map_err(kept)?,
            name: None,
            phase: Phase::Ready,
            mark: Mark::None,
            source: VolumeId::new(self.source.as_str()).map_err(kept)?,
            bytes: self.bytes,
            created: UNIX_EPOCH + Duration::from_nanos(self.created_ns),
            ready,
            damage: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Usage;

    #[test]
    fn the_stored_bytes_stay_readable() {
        let kept = br#"{"version":2,"name":"snap","source":"vol-1","bytes":4096,"state":"copying",
            "created_ns":1500000000,"filesystem":true}"#;
        let record = SnapshotRecord::decode("snap-1", kept).unwrap();
        let again = SnapshotRecord::decode("snap-1", &record.encode().unwrap()).unwrap();
        assert_eq!(again, record);
        let snapshot = record.snapshot("snap-1").unwrap().unwrap();
        assert_eq!(
            (snapshot.source.as_str(), snapshot.bytes, snapshot.ready),
            ("vol-1", 4096, false)
        );
        assert_eq!(snapshot.created, UNIX_EPOCH + Duration::from_millis(1500));
    }

    #[test]
    fn nobody_sees_a_snapshot_before_it_is_cut() {
        let volume = Record::creating("pvc-1", 4096, &Usage::Block, None);
        let record = SnapshotRecord::cutting("snap", "vol-1", &volume);
        assert_eq!(record.snapshot("snap-1").unwrap(), None);
    }
}
