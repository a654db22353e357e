//! The lines between the controller and a worker process: the call, that its shares are mounted,
//! that it may begin ([`BEGIN`]), how far a copy has come, and the answer.

use super::id::OnDelete;
use super::path::Dir;
use belay_contract::nfs_mount::Parameter;
use belay_server::call::Failure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Before the ID of a snapshot, in what is recorded. No server is called so.
const SNAPSHOT: &str = "snapshot ";

/// The line upon which a process begins. So one that was killed before has changed nothing, and
/// the controller knows which one that is.
pub(super) const BEGIN: &str = "begin";

/// A call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Call {
    /// Where.
    pub(super) mount: Mount,
    /// What.
    pub(super) work: Work,
    /// After that time, the process is killed; a copy is not.
    pub(super) within: Duration,
}

/// A share, to be mounted for one call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mount {
    /// Host name or address.
    pub(super) server: String,
    /// Without slashes at its ends; empty for the root.
    pub(super) share: String,
    /// In addition to the controller's own.
    pub(super) options: Vec<Parameter>,
}

impl Mount {
    /// That share of the server, if it is another one.
    pub(super) fn elsewhere(&self, share: &str) -> Option<Self> {
        (self.share != share).then(|| Self {
            share: share.to_owned(),
            ..self.clone()
        })
    }
}

/// What to do in a share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Create the directory of a volume.
    Create(NewVolume),
    /// The same, as a copy of another one.
    Copy(Copying),
    /// The same, with the files of a snapshot.
    Restore(Restoring),
    /// Do with it what its policy says.
    Delete(OldVolume),
    /// Look for it.
    Look(Owned),
    /// Make a snapshot.
    Cut(NewSnapshot),
    /// Delete a snapshot.
    Discard(Archived),
    /// Look for a snapshot.
    Find(Archived),
    /// Ask how much room is left.
    Measure,
}

impl Work {
    /// The directory that it may change.
    pub(super) fn changed(&self) -> Option<&Dir> {
        match self {
            Self::Create(order) => Some(&order.at.dir),
            Self::Copy(order) => Some(&order.volume.at.dir),
            Self::Restore(order) => Some(&order.volume.at.dir),
            Self::Cut(order) => Some(&order.at.dir),
            Self::Discard(at) => Some(&at.dir),
            Self::Delete(order) => Some(&order.at.dir),
            Self::Look(_) | Self::Find(_) | Self::Measure => None,
        }
    }

    /// What it is, if it may take longer than a call.
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

    /// The other share that it needs.
    pub(super) fn other_share(&self) -> Option<&Mount> {
        match self {
            Self::Copy(order) => order.from.share.as_ref(),
            Self::Restore(order) => order.share.as_ref(),
            Self::Cut(order) => order.from.share.as_ref(),
            _ => None,
        }
    }
}

/// What takes longer than a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Of what is made.
    pub(super) name: String,
    /// The ID of its source.
    pub(super) source: String,
    /// For the log.
    pub(super) doing: &'static str,
    /// For the log.
    pub(super) done: &'static str,
}

/// The directory of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Owned {
    /// Which.
    pub(super) dir: Dir,
    /// The name in the request that created the volume.
    pub(super) name: String,
}

/// A volume to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewVolume {
    pub(super) at: Owned,
    /// The directory is called as the volume: if it exists, it is that of this volume.
    pub(super) is_named_so: bool,
    /// To be recorded.
    pub(super) on_delete: OnDelete,
    /// To be recorded.
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
    /// Its ID, to be recorded.
    pub(super) id: String,
    /// Its share, if that is another one of the same server.
    pub(super) share: Option<Mount>,
}

/// The archive of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Archived {
    /// The directory that it is in, which is called as the snapshot.
    pub(super) dir: Dir,
    /// Its own name, without the suffix: that of the volume.
    pub(super) source: String,
    /// The ID of the snapshot.
    pub(super) id: String,
}

impl Archived {
    /// What is recorded of a volume with its files.
    pub(super) fn origin(&self) -> String {
        format!("{SNAPSHOT}{}", self.id)
    }
}

/// The ID of a snapshot, in what is recorded.
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
    /// The share of the snapshot, if that is another one of the same server.
    pub(super) share: Option<Mount>,
}

/// A snapshot that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotSeen {
    /// The size of its archive.
    pub(super) bytes: u64,
    /// When its files were read, in seconds since 1970.
    pub(super) created: i64,
    /// The ID of its volume, if the archive says it.
    pub(super) volume: Option<String>,
}

/// A volume to delete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OldVolume {
    pub(super) at: Owned,
    /// What its ID says.
    pub(super) on_delete: Option<OnDelete>,
    /// For a volume whose ID says nothing, and which has none recorded.
    pub(super) default: OnDelete,
    /// An older archive may be removed.
    pub(super) removes_archived: bool,
}

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// It has mounted what it needs, and asks to begin.
    Mounted,
    /// How far a copy has come.
    Copied(Copied),
    /// The end.
    Answer(Result<Done, Failure>),
}

/// What was copied so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Files of any type.
    pub(super) files: u64,
    /// Their content.
    pub(super) bytes: u64,
    /// Files that changed while they were copied.
    pub(super) changed: u64,
    /// The first of these.
    pub(super) first_changed: Option<String>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Done {
    /// The volume that was created or found; none = it does not exist.
    Volume(Option<Seen>),
    /// It no longer exists. Why a directory of its name was left as it is.
    Deleted(Option<String>),
    /// The snapshot that was made or found; none = it does not exist.
    Snapshot(Option<SnapshotSeen>),
    /// The bytes that are available.
    Measured(u64),
}

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// The size that was recorded; 0 = none.
    pub(super) bytes: u64,
    /// Its deletion was begun.
    pub(super) is_deleting: bool,
    /// The ID of the volume of which it is a copy, or of the snapshot, if it is one.
    pub(super) source: Option<String>,
}
