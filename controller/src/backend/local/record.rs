//! The record of a volume in the ledger, and its encoding: JSON that contains the version of the
//! format. Opens no file.

use crate::backend::{Phase, Usage, Volume};
use belay_contract::topology::Topology;
use belay_server::call::Failure;
use belay_server::request::{ContentSource, Context, SnapshotId, VolumeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The version of the format. Records with a different version are refused.
pub(super) const VERSION: u32 = 2;

/// The record of a volume in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) usage: StoredUsage,
    pub(super) state: State,
    /// The source of the volume's data; `None` if the volume was created empty.
    pub(super) source: Option<StoredSource>,
    /// The size of the volume before an incomplete expansion to `bytes`. The file may still have
    /// the old size. `None` if no expansion is in progress.
    pub(super) growing_from: Option<u64>,
}

/// The encoding of a [`ContentSource`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoredSource {
    Snapshot(String),
    Volume(String),
}

/// The version of a record, which is checked before the rest of the record is decoded.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

/// The state of a volume in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// The intent to create the volume is recorded. The volume's file may or may not exist. No
    /// caller has received the volume yet.
    Creating,
    /// The file exists and is at least as large as recorded.
    Ready,
    /// The volume is being deleted. The volume's file may or may not exist. No call returns the
    /// volume any longer.
    Deleting,
}

/// The encoding of a [`Usage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoredUsage {
    Block,
    Filesystem(String),
}

impl Record {
    /// Creates the record of a new volume, before its file exists.
    pub(super) fn creating(
        name: &str,
        bytes: u64,
        usage: &Usage,
        source: Option<&ContentSource>,
    ) -> Self {
        let usage = match usage {
            Usage::Block => StoredUsage::Block,
            Usage::Filesystem(fs_type) => StoredUsage::Filesystem(fs_type.clone()),
        };
        Self {
            version: VERSION,
            name: name.to_owned(),
            bytes,
            usage,
            state: State::Creating,
            source: source.map(StoredSource::new),
            growing_from: None,
        }
    }

    /// Returns the minimum size of the volume's file, in bytes. A smaller file has been truncated.
    /// `on_file` is the size that is recorded in an attribute of the file.
    pub(super) fn least_bytes(&self, on_file: u64) -> u64 {
        let promised = |from| on_file.min(self.bytes).max(from);
        self.growing_from.map_or(self.bytes, promised)
    }

    /// Whether the volume has a filesystem. A raw block volume has no filesystem.
    pub(super) fn is_filesystem(&self) -> bool {
        matches!(self.usage, StoredUsage::Filesystem(_))
    }

    /// Decodes a record from the result of [`Self::encode`].
    ///
    /// # Errors
    /// Returns `Bug`, naming the volume, if the record is invalid or has a different version.
    pub(super) fn decode(id: &str, bytes: &[u8]) -> Result<Self, Failure> {
        decode(&format!("volume {id}"), bytes)
    }

    /// Encodes the record for the ledger.
    ///
    /// # Errors
    /// Returns `Bug` if the record cannot be encoded.
    pub(super) fn encode(&self) -> Result<Vec<u8>, Failure> {
        serde_json::to_vec(self).map_err(|error| Failure::bug(format!("state.redb: {error}")))
    }

    /// Converts the record to a volume for callers.
    ///
    /// # Errors
    /// Returns `Bug` if a stored ID violates the current rules for IDs.
    pub(super) fn volume(&self, id: &str, place: Option<Arc<Topology>>) -> Result<Volume, Failure> {
        let usage = match &self.usage {
            StoredUsage::Block => Usage::Block,
            StoredUsage::Filesystem(fs_type) => Usage::Filesystem(fs_type.clone()),
        };
        let kept = |failure| Failure::bug(format!("state.redb: volume {id}: {failure}"));
        let source = self.source.as_ref().map(StoredSource::content);
        let source = source.transpose().map_err(kept)?;
        let id = VolumeId::new(id).map_err(kept)?;
        Ok(Volume {
            name: Some(self.name.clone()),
            bytes: self.bytes,
            usage: Some(usage),
            context: Some(Context::default()),
            source,
            place,
            ..Volume::new(id, Phase::Ready)
        })
    }

    /// Returns the number of volumes that the record adds to the totals: 1 if the volume is ready,
    /// else 0.
    pub(super) fn counts(&self) -> u64 {
        u64::from(self.state == State::Ready)
    }
}

/// Decodes a record of any kind. `whose` names the object in errors.
///
/// # Errors
/// Returns `Bug` if the record is invalid or has a different version.
pub(super) fn decode<T: DeserializeOwned>(whose: &str, bytes: &[u8]) -> Result<T, Failure> {
    let unreadable = |why: String| Failure::bug(format!("state.redb: {whose}: {why}"));
    let damaged = |error: serde_json::Error| {
        unreadable(format!(
            "its record cannot be read ({error}); restore state.redb from a backup; its file is \
             kept, and nothing is changed"
        ))
    };
    let Header { version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if version != VERSION {
        return Err(unreadable(format!(
            "its record has version {version}, and this release of Belay reads version {VERSION} \
             only; run the release that wrote it"
        )));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

impl StoredUsage {
    /// Whether the request named the type of the filesystem.
    pub(super) fn has_type(&self) -> bool {
        matches!(self, Self::Filesystem(fs_type) if !fs_type.is_empty())
    }
}

impl StoredSource {
    fn new(source: &ContentSource) -> Self {
        match source {
            ContentSource::Snapshot(id) => Self::Snapshot(id.as_str().to_owned()),
            ContentSource::Volume(id) => Self::Volume(id.as_str().to_owned()),
        }
    }

    fn content(&self) -> Result<ContentSource, Failure> {
        match self {
            Self::Snapshot(id) => SnapshotId::new(id.as_str()).map(ContentSource::Snapshot),
            Self::Volume(id) => VolumeId::new(id.as_str()).map(ContentSource::Volume),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::creating("pvc-1", 4096, &Usage::Filesystem("xfs".into()), None)
    }

    #[test]
    fn the_stored_bytes_stay_readable() {
        let kept = br#"{"version":2,"name":"pvc-1","bytes":4096,"usage":{"filesystem":"xfs"},
            "state":"creating","source":null,"growing_from":null}"#;
        assert_eq!(Record::decode("vol-1", kept).unwrap(), record());
        let kept = br#"{"version":2,"name":"pvc-1","bytes":4096,"usage":"block","state":"ready",
            "source":{"snapshot":"snap-1"},"growing_from":2048}"#;
        let source = ContentSource::Snapshot(SnapshotId::new("snap-1").unwrap());
        let expected = Record {
            state: State::Ready,
            growing_from: Some(2048),
            ..Record::creating("pvc-1", 4096, &Usage::Block, Some(&source))
        };
        let record = Record::decode("vol-1", kept).unwrap();
        assert_eq!(record, expected);
        assert_eq!(record.volume("vol-1", None).unwrap().source, Some(source));
    }

    #[test]
    fn an_expansion_is_stored() {
        let mut record = record();
        for growing_from in [None, Some(2048)] {
            record.growing_from = growing_from;
            let again = Record::decode("vol-1", &record.encode().unwrap()).unwrap();
            assert_eq!(again.growing_from, growing_from);
        }
    }

    #[test]
    fn another_version_is_refused_whatever_else_it_says() {
        for version in [1, 3] {
            let kept = format!(r#"{{"version":{version},"shape":"other"}}"#);
            let failure = Record::decode("vol-1", kept.as_bytes()).unwrap_err();
            for part in ["vol-1", &format!("version {version}"), "run the release"] {
                assert!(failure.message.contains(part), "{failure}");
            }
        }
    }
}
