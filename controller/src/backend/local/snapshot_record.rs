//! The record of a snapshot in the ledger. The encoding is the same as for the records of volumes.
//! This module opens no file.

use crate::backend::local::record::{Record, VERSION, decode};
use crate::backend::{Mark, Phase, Snapshot};
use belay_server::call::Failure;
use belay_server::request::{SnapshotId, VolumeId};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The record of a snapshot in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::backend::local) struct SnapshotRecord {
    version: u32,
    pub(in crate::backend::local) name: String,
    /// The ID of the source volume, which may have been deleted.
    pub(in crate::backend::local) source: String,
    pub(in crate::backend::local) bytes: u64,
    pub(in crate::backend::local) state: SnapshotState,
    /// The time at which the data was captured, in nanoseconds since 1970; 0 if it is not captured
    /// yet.
    created_ns: u64,
    /// Whether the source volume had a filesystem.
    filesystem: bool,
}

/// The state of a snapshot in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::backend::local) enum SnapshotState {
    /// The intent to take the snapshot is recorded. The snapshot's file may or may not exist. No
    /// caller has received the snapshot yet.
    Cutting,
    /// The snapshot was taken, and its file is being filled from the volume's file. Until the copy
    /// has ended, no process may write to the volume.
    Copying,
    /// The file is complete.
    Ready,
    /// The snapshot is being deleted. The snapshot's file may or may not exist. No call returns the
    /// snapshot any longer.
    Deleting,
}

impl SnapshotRecord {
    /// Creates the record of a snapshot before the data of this volume is captured.
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

    /// Records the time at which the data was captured.
    pub(super) fn cut_at(&mut self, instant: SystemTime) {
        // A clock before 1970 was never set; record the time 0.
        let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.created_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Returns the time at which the data was captured; 1970 if it is not captured yet.
    pub(super) fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.created_ns)
    }

    /// Whether the source volume had a filesystem.
    pub(super) fn is_filesystem(&self) -> bool {
        self.filesystem
    }

    /// Decodes a record from the result of [`Self::encode`].
    ///
    /// # Errors
    /// Returns `Bug`, naming the snapshot, if the record is invalid or has a different version.
    pub(in crate::backend::local) fn decode(id: &str, bytes: &[u8]) -> Result<Self, Failure> {
        decode(&format!("snapshot {id}"), bytes)
    }

    /// Encodes the record for the ledger.
    ///
    /// # Errors
    /// Returns `Bug` if the record cannot be encoded.
    pub(in crate::backend::local) fn encode(&self) -> Result<Vec<u8>, Failure> {
        serde_json::to_vec(self).map_err(|error| Failure::bug(format!("state.redb: {error}")))
    }

    /// Returns the number of snapshots that the record adds to the totals: 1 if the snapshot is
    /// ready, else 0.
    pub(in crate::backend::local) fn counts(&self) -> u64 {
        u64::from(self.state == SnapshotState::Ready)
    }

    /// Converts the record to a snapshot for callers, without a check of its file. Returns `None`
    /// if no call may return the snapshot, since it is being created or deleted.
    ///
    /// # Errors
    /// Returns `Bug` if a stored ID violates the current rules for IDs.
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
            created: self.time(),
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
