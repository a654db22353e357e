//! Snapshots and backups of Cinder, in its words, and what Belay makes of them.

use super::{GIB, failed, mark_of};
use crate::backend::time::seconds;
use crate::backend::{Mark, Phase, Snapshot};
use belay_server::call::{Failure, Kind};
use belay_server::request::{Name, SnapshotId, VolumeId};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Keys of ours in a snapshot's metadata. Cinder refuses a slash in a key that is added later.
pub(in super::super) const ATTEMPT: &str = "belay.dev.attempt";
/// Its value is the id of the snapshot that was claimed.
pub(in super::super) const CLAIM: &str = "belay.dev.claim";

#[derive(Debug, Deserialize)]
pub(in super::super) struct OneSnapshot {
    pub(in super::super) snapshot: CinderSnapshot,
}

#[derive(Debug, Deserialize)]
pub(in super::super) struct CinderSnapshots {
    pub(in super::super) snapshots: Vec<CinderSnapshot>,
    #[serde(default)]
    pub(in super::super) snapshots_links: Vec<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(in super::super) struct OneBackup {
    pub(in super::super) backup: CinderSnapshot,
}

/// A snapshot; or a backup, which has the same fields but no marks of ours.
#[derive(Clone, Debug, Deserialize)]
pub(in super::super) struct CinderSnapshot {
    pub(in super::super) id: String,
    #[serde(default)]
    name: Option<String>,
    status: String,
    /// GiB.
    size: u64,
    volume_id: String,
    /// UTC.
    #[serde(default)]
    created_at: Option<String>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

impl CinderSnapshot {
    pub(in super::super) fn is_named(&self, name: &Name) -> bool {
        self.name.as_deref() == Some(name.as_str())
    }

    /// In the words of the backend.
    ///
    /// # Errors
    /// `System` for a time that is missing or not understood, which CSI requires.
    pub(in super::super) fn snapshot(&self) -> Result<Snapshot, Failure> {
        let created = self.created_at.as_deref().and_then(seconds);
        let created = created.ok_or_else(|| {
            let (id, time) = (&self.id, &self.created_at);
            let message = format!("snapshot {id}: created_at is {time:?}, which is no time");
            Failure::new(Kind::System, message)
        })?;
        let phase = self.phase();
        Ok(Snapshot {
            id: SnapshotId::new(self.id.as_str())?,
            mark: self.mark(),
            source: VolumeId::new(self.volume_id.as_str())?,
            bytes: self.size.saturating_mul(GIB),
            created: SystemTime::UNIX_EPOCH + Duration::from_secs(created),
            ready: phase == Phase::Ready,
            phase,
            damage: None,
        })
    }

    fn phase(&self) -> Phase {
        match self.status.as_str() {
            "available" => Phase::Ready,
            "deleting" => Phase::Deleting,
            status if status.starts_with("error") => {
                Phase::Failed(Failure::new(Kind::System, failed(status)))
            }
            status => Phase::Busy(status.to_owned()),
        }
    }

    fn mark(&self) -> Mark {
        match &self.metadata {
            Some(metadata) => mark_of(&self.id, metadata, ATTEMPT, CLAIM),
            None => Mark::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Attempt;
    use serde_json::{Value, json};

    fn snapshot(status: &str, created_at: Value, metadata: Value) -> CinderSnapshot {
        serde_json::from_value(json!({
            "id": "s-1", "name": "snap-1", "status": status, "size": 3, "volume_id": "v-1",
            "created_at": created_at, "metadata": metadata, "description": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_snapshot_is_cut_and_ready_when_it_is_available() {
        let time = || json!("2001-09-09T01:46:40.000000");
        let shown = |status| snapshot(status, time(), json!({})).snapshot().unwrap();
        let ready = shown("available");
        assert_eq!((ready.phase, ready.ready), (Phase::Ready, true));
        assert_eq!(ready.bytes, 3 << 30);
        assert_eq!(ready.source, VolumeId::new("v-1").unwrap());
        let created = ready.created.duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(created.unwrap().as_secs(), 1_000_000_000);
        for status in ["creating", "backing-up", "unmanaging"] {
            let phase = Phase::Busy(status.to_owned());
            assert_eq!((shown(status).phase, shown(status).ready), (phase, false));
        }
        assert_eq!(shown("deleting").phase, Phase::Deleting);
        for status in ["error", "error_deleting"] {
            let failed = shown(status);
            assert!(matches!(failed.phase, Phase::Failed(_)) && !failed.ready);
        }
    }

    #[test]
    fn marks_count_only_with_the_snapshots_own_id() {
        let mark = |metadata| {
            let shown = snapshot("available", json!("2001-09-09T01:46:40"), metadata);
            shown.snapshot().unwrap().mark
        };
        let open = Mark::Open(Attempt::of_mark("a-1"));
        assert_eq!(mark(json!(null)), Mark::None);
        assert_eq!(mark(json!({ATTEMPT: "a-1"})), open);
        assert_eq!(mark(json!({ATTEMPT: "a-1", CLAIM: "s-1"})), Mark::Claimed);
        assert_eq!(mark(json!({ATTEMPT: "a-1", CLAIM: "s-2"})), Mark::Copied);
    }

    #[test]
    fn a_snapshot_without_a_time_is_reported_by_its_id() {
        for time in [json!(null), json!("yesterday")] {
            let failure = snapshot("available", time, json!({})).snapshot();
            let failure = failure.unwrap_err();
            assert!(failure.message.starts_with("snapshot s-1: "), "{failure}");
        }
    }
}
