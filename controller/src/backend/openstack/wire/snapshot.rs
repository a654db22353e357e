//! Snapshots and backups of Cinder, and their conversion to the types of the backend.

use super::super::id;
use super::{GIB, failed, mark_of};
use crate::backend::cloud::time::seconds;
use crate::backend::{Mark, Phase, Snapshot};
use belay_server::call::{Failure, Kind};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Belay's keys in a snapshot's metadata. Cinder refuses to add a key with a slash to an existing
/// snapshot.
pub(in super::super) const ATTEMPT: &str = "belay.dev.attempt";
/// The key whose value is the ID of the snapshot, once the snapshot is claimed.
pub(in super::super) const CLAIM: &str = "belay.dev.claim";
/// The key that marks a basis: a snapshot from which a backup is copied. The value of the key is
/// the name of the backup.
pub(in super::super) const BASIS: &str = "belay.dev.basis";
/// The key in a backup's metadata for [`Restored::carried`]. The value of the key is the claim of
/// the volume, or the volume's ID if the volume has no claim.
pub(in super::super) const CARRIED: &str = "belay.dev.carried";

/// A snapshot or a backup of Cinder.
#[derive(Clone, Debug, Deserialize)]
pub(in super::super) struct CinderSnapshot {
    pub(in super::super) id: String,
    #[serde(default)]
    name: Option<String>,
    status: String,
    /// The size in GiB.
    size: u64,
    pub(in super::super) volume_id: String,
    /// The time of the creation, in UTC.
    #[serde(default)]
    created_at: Option<String>,
    /// The time at which the data of a backup was captured, in UTC.
    #[serde(default)]
    data_timestamp: Option<String>,
    /// The snapshot from which a backup is copied.
    #[serde(default)]
    snapshot_id: Option<String>,
    /// The reason why a backup failed.
    #[serde(default)]
    fail_reason: Option<String>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

impl CinderSnapshot {
    pub(in super::super) fn is_named(&self, name: &str) -> bool {
        self.name() == Some(name)
    }

    pub(in super::super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the snapshot was created only as the source of a backup.
    pub(in super::super) fn is_basis(&self) -> bool {
        self.mark_named(BASIS).is_some()
    }

    /// Returns the value of [`CARRIED`].
    pub(in super::super) fn carried(&self) -> Option<&str> {
        self.mark_named(CARRIED)
    }

    /// Whether Cinder is changing or copying the object.
    pub(in super::super) fn is_at_work(&self) -> bool {
        !self.status.starts_with("error") && self.status != "available"
    }

    pub(in super::super) fn into_metadata(self) -> BTreeMap<String, String> {
        self.metadata.unwrap_or_default()
    }

    fn mark_named(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.get(key).map(String::as_str)
    }

    /// Converts the object to the type of the backend.
    ///
    /// # Errors
    /// Returns `System` if the time, which CSI requires, is missing or cannot be parsed.
    pub(in super::super) fn snapshot(&self) -> Result<Snapshot, Failure> {
        let created = self.data_timestamp.as_ref().or(self.created_at.as_ref());
        let created = created.and_then(|time| seconds(time));
        let created = created.ok_or_else(|| {
            let (id, time) = (&self.id, &self.created_at);
            let message = format!("snapshot {id}: created_at is {time:?}, which is no time");
            Failure::new(Kind::System, message)
        })?;
        let phase = self.phase();
        Ok(Snapshot {
            id: id::snapshot(&self.id)?,
            name: Some(self.name.clone().unwrap_or_default()),
            mark: self.mark(),
            source: id::volume(&self.volume_id)?,
            bytes: self.size.saturating_mul(GIB),
            created: SystemTime::UNIX_EPOCH + Duration::from_secs(created),
            ready: self.status == "available",
            phase,
            damage: None,
        })
    }

    fn phase(&self) -> Phase {
        match self.status.as_str() {
            "available" => Phase::Ready,
            "deleting" => Phase::Deleting,
            // The snapshot already contains the data of the backup.
            "creating" if self.snapshot_id.is_some() => Phase::Ready,
            status if status.starts_with("error") => {
                let reason = self
                    .fail_reason
                    .as_ref()
                    .filter(|reason| !reason.is_empty());
                let reason = reason.map(|reason| format!("; it failed because: {reason}"));
                let message = failed(status) + &reason.unwrap_or_default();
                Phase::Failed(Failure::new(Kind::System, message))
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

/// The marks in the description of a volume that this driver creates from a backup. Cinder replaces
/// the volume's metadata with the metadata of the volume that was backed up, but keeps the
/// description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Restored {
    /// The mark of the attempt that created the volume.
    pub(in super::super) attempt: String,
    /// The ID of the backup.
    pub(in super::super) backup: String,
    /// The value of [`super::CLAIM`] in the metadata of the volume that was backed up, or the ID of
    /// that volume if its metadata does not contain the key.
    pub(in super::super) carried: String,
}

const BEGIN: &str = "Created by Belay from backup ";
const ATTEMPT_AT: &str = ", attempt ";
const CARRIED_AT: &str = ", of volume ";

impl Restored {
    pub(in super::super) fn description(&self) -> String {
        let Self {
            attempt,
            backup,
            carried,
        } = self;
        format!("{BEGIN}{backup}{ATTEMPT_AT}{attempt}{CARRIED_AT}{carried}")
    }

    pub(super) fn read(description: &str) -> Option<Self> {
        let (backup, rest) = description.strip_prefix(BEGIN)?.split_once(ATTEMPT_AT)?;
        let (attempt, carried) = rest.split_once(CARRIED_AT)?;
        let [attempt, backup, carried] = [attempt, backup, carried].map(str::to_owned);
        Some(Self {
            attempt,
            backup,
            carried,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Attempt;
    use belay_server::request::VolumeId;
    use serde_json::{Value, json};

    const S1: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";
    const S2: &str = "506f78a4-e098-11e5-ad9f-000f53306ae2";
    const V1: &str = "506f78a4-e098-11e5-ad9f-000f53306ae3";

    fn snapshot(status: &str, created_at: Value, metadata: Value) -> CinderSnapshot {
        serde_json::from_value(json!({
            "id": S1, "name": "snap-1", "status": status, "size": 3, "volume_id": V1,
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
        assert_eq!(ready.source, VolumeId::new(V1).unwrap());
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
        assert_eq!(mark(json!({ATTEMPT: "a-1", CLAIM: S1})), Mark::Claimed);
        assert_eq!(mark(json!({ATTEMPT: "a-1", CLAIM: S2})), Mark::Copied);
    }

    #[test]
    fn a_snapshot_without_a_time_is_reported_by_its_id() {
        for time in [json!(null), json!("yesterday")] {
            let failure = snapshot("available", time, json!({})).snapshot();
            let failure = failure.unwrap_err();
            assert!(
                failure.message.starts_with(&format!("snapshot {S1}: ")),
                "{failure}"
            );
        }
    }

    #[test]
    fn a_description_is_read_as_it_was_written_and_no_other_is() {
        let restored = Restored {
            attempt: "00ff-7".to_owned(),
            backup: "b-1".to_owned(),
            carried: "v-1".to_owned(),
        };
        let text = restored.description();
        assert_eq!(Restored::read(&text), Some(restored));
        for other in ["", "Created by Belay", &text[1..], &text[..text.len() - 14]] {
            assert_eq!(Restored::read(other), None, "{other:?}");
        }
    }
}
