//! The objects of `local`: their fields, as `deploy/chart/objects` defines them.

use super::object::{Object, Parsed, Resource};
use belay_server::call::Failure;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// A volume: a file on a disk of a node.
pub enum LocalVolume {}

/// Snapshots of volumes.
pub enum LocalSnapshot {}

/// A disk: a directory of a node that contains volumes and snapshots.
pub enum LocalDisk {}

impl Resource for LocalVolume {
    const KIND: &'static str = "LocalVolume";
    const PLURAL: &'static str = "localvolumes";
    type Spec = VolumeSpec;
    type Status = VolumeStatus;
}

impl Resource for LocalSnapshot {
    const KIND: &'static str = "LocalSnapshot";
    const PLURAL: &'static str = "localsnapshots";
    type Spec = SnapshotSpec;
    type Status = SnapshotStatus;
}

impl Resource for LocalDisk {
    const KIND: &'static str = "LocalDisk";
    const PLURAL: &'static str = "localdisks";
    type Spec = DiskSpec;
    type Status = DiskStatus;
}

impl Object<LocalDisk> {
    /// Whether a store has served the disk on its node: until then, the object has no identity.
    #[must_use]
    pub fn was_served(&self) -> bool {
        self.known_status().is_some_and(|it| it.uuid.is_some())
    }
}

/// A requested volume. An optional field without a value is absent in JSON, not null, because the
/// server would remove a null, and its response would then differ from the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeSpec {
    /// The version of the spec, at most [`SPEC_VERSION`](super::SPEC_VERSION) for this release.
    pub version: u32,
    /// The ID, which is random and never reused.
    pub id: String,
    /// The name in the request.
    pub name: String,
    /// The value of the topology label, which never changes.
    pub place: String,
    /// The name of the disk, which is unique among the disks with this topology value.
    pub disk: String,
    /// The name of the Node whose disks currently have this topology value.
    pub node: String,
    /// The requested size in bytes.
    pub bytes: u64,
    /// The use of the volume.
    pub usage: Usage,
    /// The object of which the volume is a copy; `None` for a new volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Whether the object is for an existing file. The store then creates no file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
    /// The number of the attempt to delete the volume; `None` if the volume must be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<u64>,
}

/// The use of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Whether the volume is a block device or has a filesystem.
    pub mode: Mode,
    /// The type of the filesystem; `None` if the request has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
}

/// The mode of a volume, as in a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// A block device.
    Block,
    /// A filesystem.
    Filesystem,
}

/// The source of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The snapshot with this ID.
    Snapshot(String),
    /// The volume with this ID.
    Volume(String),
}

/// A requested snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotSpec {
    /// The version of the spec, at most [`SPEC_VERSION`](super::SPEC_VERSION) for this release.
    pub version: u32,
    /// The ID, which is random and never reused.
    pub id: String,
    /// The name in the request.
    pub name: String,
    /// The value of the topology label, which never changes.
    pub place: String,
    /// The name of the disk, which is unique among the disks with this topology value.
    pub disk: String,
    /// The name of the Node whose disks currently have this topology value.
    pub node: String,
    /// The ID of the volume.
    pub volume: String,
    /// Whether the object is for an existing file. The store then takes no snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
    /// The number of the attempt to delete the snapshot; `None` if it must be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<u64>,
}

/// The identity of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiskSpec {
    /// The name of the Node that has the disk.
    pub node: String,
    /// The value of the topology label of the node's disks.
    pub place: String,
    /// The name of the disk on the node.
    pub disk: String,
    /// The UID of this object if the store may begin a new state in an empty directory. The
    /// controller sets this if no volume names the disk. A copy of the object has another UID, so
    /// it does not have the permission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<String>,
}

/// The phase of a volume or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The store has accepted the requested object and is creating its file.
    Making,
    /// The file is complete.
    Ready,
    /// The store has refused the requested object, and no file exists for it.
    Refused,
    /// The store is deleting the file.
    Removing,
    /// The object was accepted, but its file does not exist. The file is never created again.
    Lost,
}

/// The reported state of a volume. All fields are written together: `None` is null in JSON, which
/// removes the previous value. Unknown fields are ignored, and remain when the known fields are
/// written: a newer release has written them, and the known fields keep their meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// The phase.
    pub phase: Phase,
    /// The generation of the spec to which the status refers.
    pub observed_generation: Option<i64>,
    /// The size of the file in bytes.
    pub bytes: Option<u64>,
    /// The number of the last attempt to delete the object that the store has refused.
    pub refused_removal: Option<u64>,
    /// The failure of the last change. A failure of an unknown kind, which a newer release has
    /// written, remains when the status is written.
    #[serde(skip_serializing_if = "Parsed::is_unknown")]
    pub failure: Option<Parsed<Failure>>,
    /// The health conditions; `None` if no problem is known.
    pub conditions: Option<Vec<Condition>>,
}

/// A health condition of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The name of the reason.
    pub reason: String,
    /// The problem and the remedy.
    pub message: String,
}

/// The reported state of a snapshot. All fields are written together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The phase.
    pub phase: Phase,
    /// The generation of the spec to which the status refers.
    pub observed_generation: Option<i64>,
    /// The size of the volume when the snapshot was taken, in bytes.
    pub bytes: Option<u64>,
    /// The time at which the snapshot was taken (RFC 3339); `None` before.
    pub time: Option<String>,
    /// The number of the last attempt to delete the object that the store has refused.
    pub refused_removal: Option<u64>,
    /// The failure of the last change. A failure of an unknown kind, which a newer release has
    /// written, remains when the status is written.
    #[serde(skip_serializing_if = "Parsed::is_unknown")]
    pub failure: Option<Parsed<Failure>>,
}

/// The reported state of a disk. All fields are written together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskStatus {
    /// The random name of the state on the disk.
    pub uuid: Option<String>,
    /// The size of the filesystem in bytes.
    pub bytes: Option<u64>,
    /// The maximum total size of all volumes and snapshots that have objects, in bytes.
    pub promisable: Option<u64>,
    /// The number of bytes that files of other programs use.
    pub foreign: Option<u64>,
    /// Whether the filesystem refuses writes.
    pub read_only: Option<bool>,
    /// The reason why the store does not serve the disk; `None` if the store serves it.
    pub problem: Option<String>,
    /// The time of the report by the clock of the node (RFC 3339).
    pub reported: Option<String>,
    /// The files that have no object.
    pub unlisted: Option<Unlisted>,
}

/// The files of a disk that have no object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unlisted {
    /// The number of files.
    pub count: u64,
    /// The first files of the list, at most 20.
    pub first: Vec<UnlistedFile>,
}

/// A file that has no object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnlistedFile {
    /// The ID of the volume or snapshot.
    pub id: String,
    /// The name in the request that created the volume or snapshot; `None` if no record contains
    /// the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The size in bytes.
    pub bytes: u64,
}

/// Returns a time in UTC as RFC 3339, as the status fields contain it.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_failure_of_an_unknown_kind_hides_no_other_field_and_is_not_written() {
        let status = |kind: &str| {
            let failure = json!({"kind": kind, "certainty": "NothingHappened", "message": "no"});
            let status = json!({"phase": "Ready", "bytes": 1, "failure": failure});
            serde_json::from_value::<VolumeStatus>(status).unwrap()
        };
        let newer = status("NewerKind");
        assert_eq!((newer.phase, newer.bytes), (Phase::Ready, Some(1)));
        assert!(matches!(&newer.failure, Some(Parsed::Unknown(why)) if why.contains("NewerKind")));
        assert!(
            serde_json::to_value(newer)
                .unwrap()
                .get("failure")
                .is_none()
        );

        let known = status("Quota");
        assert_eq!(known.failure, Some(Parsed::Known(Failure::quota("no"))));
        let none = VolumeStatus {
            failure: None,
            ..known.clone()
        };
        let written = |status| serde_json::to_value::<VolumeStatus>(status).unwrap();
        assert_eq!(written(known)["failure"]["message"], "no");
        assert_eq!(written(none).get("failure"), Some(&Value::Null));
    }
}
