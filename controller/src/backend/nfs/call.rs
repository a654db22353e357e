//! The lines that the controller and a worker process exchange: the call, the report that its
//! shares are mounted, the permission to begin ([`BEGIN`]), the progress of a copy, and the result.

use super::id::OnDelete;
use super::path::Dir;
use belay_contract::nfs_mount::Parameter;
use belay_server::call::Failure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The prefix of a snapshot's ID in the record of a volume. No server has such a name, with which a
/// volume's ID would begin.
const SNAPSHOT: &str = "snapshot ";

/// The line that lets a process begin. A process that was killed before has changed nothing, and
/// the controller knows whether it has sent the line.
pub(super) const BEGIN: &str = "begin";

/// A call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Call {
    /// The share.
    pub(super) mount: Mount,
    /// The work to do in the share.
    pub(super) work: Work,
    /// The time after which the process is killed, unless it makes a copy.
    pub(super) within: Duration,
}

/// A share, to be mounted for one call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mount {
    /// Host name or address.
    pub(super) server: String,
    /// The exported directory, without slashes at its ends; empty for the root.
    pub(super) share: String,
    /// Mount options, in addition to the controller's own.
    pub(super) options: Vec<Parameter>,
}

impl Mount {
    /// Returns the mount of another share of the server, or `None` if it is this share.
    pub(super) fn elsewhere(&self, share: &str) -> Option<Self> {
        (self.share != share).then(|| Self {
            share: share.to_owned(),
            ..self.clone()
        })
    }
}

/// The work to do in a share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Create the directory of a volume.
    Create(NewVolume),
    /// Create a volume as a copy of another volume.
    Copy(Copying),
    /// Create a volume with the files of a snapshot.
    Restore(Restoring),
    /// Delete a volume according to its policy.
    Delete(OldVolume),
    /// Find a volume.
    Lookup(Owned),
    /// Create a snapshot.
    Cut(NewSnapshot),
    /// Delete a snapshot.
    Discard(Archived),
    /// Find a snapshot.
    Find(Archived),
    /// Measure the available space.
    Measure,
}

impl Work {
    /// Returns the directory that the work may change, if any.
    pub(super) fn changed(&self) -> Option<&Dir> {
        match self {
            Self::Create(order) => Some(&order.at.dir),
            Self::Copy(order) => Some(&order.volume.at.dir),
            Self::Restore(order) => Some(&order.volume.at.dir),
            Self::Cut(order) => Some(&order.at.dir),
            Self::Discard(at) => Some(&at.dir),
            Self::Delete(order) => Some(&order.at.dir),
            Self::Lookup(_) | Self::Find(_) | Self::Measure => None,
        }
    }

    /// Returns the task, if the work may take longer than a call.
    pub(super) fn task(&self) -> Option<Task> {
        let task = |doing, done, name: &str, source: &str| Task {
            name: name.to_owned(),
            source: source.to_owned(),
            doing,
            done,
        };
        Some(match self {
            Self::Copy(order) => {
                let name = &order.volume.at.name;
                task("copying a volume", "copied", name, &order.from.id)
            }
            Self::Restore(order) => {
                let name = &order.volume.at.name;
                task("restoring a volume", "restored", name, &order.from.id)
            }
            Self::Cut(order) => task(
                "archiving a volume",
                "archived",
                &order.at.id,
                &order.from.id,
            ),
            _ => return None,
        })
    }

    /// Returns the other share that the work needs, if any.
    pub(super) fn other_share(&self) -> Option<&Mount> {
        match self {
            Self::Copy(order) => order.from.share.as_ref(),
            Self::Restore(order) => order.share.as_ref(),
            Self::Cut(order) => order.from.share.as_ref(),
            _ => None,
        }
    }
}

/// Work that may take longer than a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// The name of the new volume, or the ID of the new snapshot.
    pub(super) name: String,
    /// The ID of its source.
    pub(super) source: String,
    /// The task in words while it runs, such as "copying a volume".
    pub(super) doing: &'static str,
    /// The participle of the task, such as "copied".
    pub(super) done: &'static str,
}

/// The directory of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Owned {
    /// The path of the directory.
    pub(super) dir: Dir,
    /// The name in the request that created the volume.
    pub(super) name: String,
    /// Whether a directory without a claim is the volume.
    pub(super) adopts: bool,
}

/// A volume to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewVolume {
    pub(super) at: Owned,
    /// Whether the directory has the name of the volume. If such a directory exists without files,
    /// a call that was interrupted has made it.
    pub(super) is_named_so: bool,
    /// The policy to record.
    pub(super) on_delete: OnDelete,
    /// The size to record, in bytes.
    pub(super) bytes: u64,
    /// The mode of the directory.
    pub(super) permissions: Option<u32>,
}

/// A volume to copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Copying {
    /// The copy.
    pub(super) volume: NewVolume,
    pub(super) from: Source,
}

/// The volume that is copied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) at: Owned,
    /// The ID of the volume, for the record of the copy.
    pub(super) id: String,
    /// The share of the volume, if it is another share of the same server.
    pub(super) share: Option<Mount>,
}

/// The archive of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Archived {
    /// The directory of the archive, which has the name of the snapshot.
    pub(super) dir: Dir,
    /// The name of the archive without its suffix, which is the name of the volume.
    pub(super) source: String,
    /// The ID of the snapshot.
    pub(super) id: String,
}

impl Archived {
    /// Returns the text that the record of a volume contains as its source if the volume was
    /// created from this snapshot.
    pub(super) fn origin(&self) -> String {
        format!("{SNAPSHOT}{}", self.id)
    }
}

/// Returns the ID of the snapshot in a recorded source, or `None` if the source is a volume.
pub(super) fn snapshot_of(origin: &str) -> Option<&str> {
    origin.strip_prefix(SNAPSHOT)
}

/// A snapshot to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewSnapshot {
    pub(super) at: Archived,
    pub(super) from: Source,
}

/// A volume to restore.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Restoring {
    pub(super) volume: NewVolume,
    pub(super) from: Archived,
    /// The share of the snapshot, if it is another share of the same server.
    pub(super) share: Option<Mount>,
}

/// A snapshot that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotSeen {
    /// The size of its archive, in bytes.
    pub(super) bytes: u64,
    /// The time at which its files were read, in seconds since 1970.
    pub(super) created: i64,
    /// The ID of its volume, if the archive contains it.
    pub(super) volume: Option<String>,
}

/// A volume to delete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OldVolume {
    pub(super) at: Owned,
    /// The policy in the volume's ID, if any.
    pub(super) on_delete: Option<OnDelete>,
    /// The policy of a volume without a policy in its ID or its record.
    pub(super) default: OnDelete,
}

/// A message from a process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The process has mounted its shares, and asks to begin.
    Mounted,
    /// The progress of a copy.
    Copied(Copied),
    /// The result of the call.
    Answer(Result<Done, Failure>),
}

/// The number of files and bytes that were copied so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Number of files of any type.
    pub(super) files: u64,
    /// Size of their content, in bytes.
    pub(super) bytes: u64,
    /// Number of files that changed while they were copied.
    pub(super) changed: u64,
    /// The path of the first file that changed.
    pub(super) first_changed: Option<String>,
}

/// The result of a successful call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Done {
    /// The volume that was created or found. `None` if it does not exist.
    Volume(Option<ExistingVolume>),
    /// The volume or snapshot no longer exists. Contains the reason if something with its name was
    /// left.
    Deleted(Option<String>),
    /// The snapshot that was created or found. `None` if it does not exist.
    Snapshot(Option<SnapshotSeen>),
    /// The number of available bytes.
    Measured(u64),
}

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExistingVolume {
    /// The recorded size, in bytes; 0 if none is recorded.
    pub(super) bytes: u64,
    /// Whether its deletion has begun.
    pub(super) is_deleting: bool,
    /// The recorded source of a copy: the ID of a volume, or of a snapshot after a prefix.
    pub(super) source: Option<String>,
}
