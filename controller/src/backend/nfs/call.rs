//! The protocol between the controller and a worker process. Each message is one line: the call,
//! the report that the shares are mounted, the permission to begin ([`BEGIN`]), the progress of a
//! copy, and the result.

use super::id::OnDelete;
use super::path::Dir;
use belay_contract::nfs_mount::Parameter;
use belay_server::call::Failure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The prefix of a snapshot's ID in the recorded source of a volume. No volume ID begins with this
/// prefix, since a volume ID begins with the name of a server, which contains no space.
const SNAPSHOT: &str = "snapshot ";

/// The message that allows a worker process to begin its work. The controller records whether it
/// has sent the message, so it knows that a process that was killed before this message has changed
/// nothing.
pub(super) const BEGIN: &str = "begin";

/// A call to a worker process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Call {
    /// The share to mount.
    pub(super) mount: Mount,
    /// The work to do in the share.
    pub(super) work: Work,
    /// The time after which the controller kills the process. For a copy, this is the maximum time
    /// without a message from the process.
    pub(super) within: Duration,
}

/// A share, to be mounted for one call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mount {
    /// Host name or address of the server.
    pub(super) server: String,
    /// The exported directory, without leading and trailing slashes; empty for the root directory.
    pub(super) share: String,
    /// The mount options of the call, in addition to the options that the controller always uses.
    pub(super) options: Vec<Parameter>,
}

impl Mount {
    /// Returns the mount of `share` on the same server, or `None` if this value is already the
    /// mount of that share.
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
    /// Find a volume, and measure the space that is available to its directory.
    Inspect(Owned),
}

impl Work {
    /// Returns the directory that the work may change, or `None` if the work changes nothing.
    pub(super) fn changed(&self) -> Option<&Dir> {
        match self {
            Self::Create(order) => Some(&order.at.dir),
            Self::Copy(order) => Some(&order.volume.at.dir),
            Self::Restore(order) => Some(&order.volume.at.dir),
            Self::Cut(order) => Some(&order.at.dir),
            Self::Discard(at) => Some(&at.dir),
            Self::Delete(order) => Some(&order.at.dir),
            Self::Lookup(_) | Self::Find(_) | Self::Measure | Self::Inspect(_) => None,
        }
    }

    /// Returns a description of work that may outlast the RPC that requested it; otherwise `None`.
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

    /// Returns the mount of the source's share, or `None` if the work needs no second share.
    pub(super) fn other_share(&self) -> Option<&Mount> {
        match self {
            Self::Copy(order) => order.from.share.as_ref(),
            Self::Restore(order) => order.share.as_ref(),
            Self::Cut(order) => order.from.share.as_ref(),
            _ => None,
        }
    }
}

/// A description of work that may outlast the RPC that requested it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// The name of the new volume, or the ID of the new snapshot.
    pub(super) name: String,
    /// The ID of the source: a volume or a snapshot.
    pub(super) source: String,
    /// The task in words while the work is in progress, such as "copying a volume".
    pub(super) doing: &'static str,
    /// The participle of the task, such as "copied".
    pub(super) done: &'static str,
}

/// The directory of a volume, and the name that identifies the volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Owned {
    /// The path of the directory.
    pub(super) dir: Dir,
    /// The name in the request that created the volume.
    pub(super) name: String,
    /// Whether a directory without a claim is treated as the volume, because csi-driver-nfs may
    /// have created the directory.
    pub(super) adopts: bool,
}

/// A volume to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewVolume {
    pub(super) at: Owned,
    /// Whether the directory has the name of the volume, because the storage class has no `subDir`.
    /// If a directory with this name exists and is empty, an interrupted call has created the
    /// directory.
    pub(super) is_named_so: bool,
    /// The deletion policy to record.
    pub(super) on_delete: OnDelete,
    /// The size to record, in bytes.
    pub(super) bytes: u64,
    /// The mode of the new directory. `None` keeps the mode that mkdir(2) sets.
    pub(super) permissions: Option<u32>,
}

/// A volume to create as a copy of another volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Copying {
    /// The new volume.
    pub(super) volume: NewVolume,
    pub(super) from: Source,
}

/// The source volume of a copy or of a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) at: Owned,
    /// The ID of the source volume, which the record of a copy contains.
    pub(super) id: String,
    /// The source volume's share on the same server. `None` if the new volume or snapshot is in the
    /// same share.
    pub(super) share: Option<Mount>,
}

/// The archive file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Archived {
    /// The directory of the archive, which has the name of the snapshot.
    pub(super) dir: Dir,
    /// The name of the archive without its suffix: the name of the source volume.
    pub(super) source: String,
    /// The ID of the snapshot.
    pub(super) id: String,
}

impl Archived {
    /// Returns the text that records this snapshot as the source of a volume.
    pub(super) fn origin(&self) -> String {
        format!("{SNAPSHOT}{}", self.id)
    }
}

/// Returns the ID of the snapshot in a recorded source, or `None` if the source is a volume.
pub(super) fn snapshot_of(origin: &str) -> Option<&str> {
    origin.strip_prefix(SNAPSHOT)
}

/// A snapshot to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewSnapshot {
    pub(super) at: Archived,
    pub(super) from: Source,
}

/// A volume to create from a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Restoring {
    pub(super) volume: NewVolume,
    pub(super) from: Archived,
    /// The snapshot's share on the same server. `None` if the new volume is in the same share.
    pub(super) share: Option<Mount>,
}

/// A snapshot that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotSeen {
    /// The size of the snapshot's archive, in bytes.
    pub(super) bytes: u64,
    /// The time at which the volume's files were read, in seconds since 1970.
    pub(super) created: i64,
    /// The ID of the source volume. `None` if the archive does not contain the ID.
    pub(super) volume: Option<String>,
}

/// A volume to delete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OldVolume {
    pub(super) at: Owned,
    /// The deletion policy in the volume's ID. `None` if the ID contains no policy.
    pub(super) on_delete: Option<OnDelete>,
    /// The deletion policy that applies if neither the volume's ID nor its record contains one.
    pub(super) default: OnDelete,
}

/// A message from a worker process to the controller.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The process has mounted its shares, and waits for [`BEGIN`].
    Mounted,
    /// The progress of a copy.
    Copied(Copied),
    /// The result of the call.
    Answer(Result<Done, Failure>),
}

/// The progress of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Number of files of any type.
    pub(super) files: u64,
    /// Size of the copied content, in bytes.
    pub(super) bytes: u64,
    /// Number of files that changed while they were copied.
    pub(super) changed: u64,
    /// The path of the first file that changed.
    pub(super) first_changed: Option<String>,
}

/// The result of a successful call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Done {
    /// The volume that was created or found. `None` if the volume does not exist.
    Volume(Option<ExistingVolume>),
    /// The volume or snapshot no longer exists. Contains an explanation if files with the name of
    /// the volume or snapshot remain.
    Deleted(Option<String>),
    /// The snapshot that was created or found. `None` if the snapshot does not exist.
    Snapshot(Option<SnapshotSeen>),
    /// The number of available bytes.
    Measured(u64),
    /// The space that is available to a volume. `None` if the volume does not exist.
    Inspected(Option<Free>),
}

/// The space that the server reports as available to users other than root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Free {
    pub(super) bytes: u64,
    /// The number of files that can be created. `None` if the server reports no number of inodes.
    pub(super) files: Option<u64>,
}

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExistingVolume {
    /// The recorded size, in bytes; 0 if no size is recorded.
    pub(super) bytes: u64,
    /// Whether the deletion of the volume has begun.
    pub(super) is_deleting: bool,
    /// The recorded source of a copy: the ID of a volume, or the ID of a snapshot as
    /// [`snapshot_of`] reads it. `None` if the volume was created empty.
    pub(super) source: Option<String>,
}
