//! A caller of both programs, like the sidecars and the kubelet, whose calls are recorded.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use belay_proto::csi::v1 as csi;

use super::calls::{Answer, Leaving};
use super::journal::{Asked, Journal};
use super::orders;
use super::pair::Site;
use super::usage::access;
use super::volume::Volume;

/// The caller.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The paths of the sockets.
    pub(crate) site: Site,
    /// The record of the caller's calls.
    pub(crate) journal: Arc<Journal>,
    /// The name of the caller, for messages.
    pub(crate) who: String,
}

/// The content of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The volume is empty.
    Blank,
    /// The content of this snapshot.
    Snapshot(String),
    /// The content of this volume.
    Volume(String),
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Creates a volume with this name, kind and origin.
    Create(String, &'static str, Origin),
    Delete(String),
    /// Expands a volume in the controller to at least this many bytes.
    Grow(String, i64),
    Get(String),
    List,
    /// Creates a snapshot with this name of the volume with this ID.
    Cut(String, String),
    Discard(String),
    ListSnapshots,
    Stage(Volume, &'static str),
    Unstage(Volume),
    Publish(Volume, &'static str, PathBuf),
    PublishReadOnly(Volume, &'static str, PathBuf),
    Unpublish(Volume, PathBuf),
    Stats(Volume, PathBuf),
    /// Expands a volume on the node, at this path, to at least this many bytes.
    Expand(Volume, &'static str, PathBuf, i64),
}

/// The data of an OK response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Nothing,
    /// The ID of a volume and its size in bytes.
    Volume(String, i64),
    /// The ID of a snapshot, and whether it is ready.
    Snapshot(String, bool),
    Bytes(i64),
    Ids(BTreeSet<String>),
}

impl Op {
    /// Returns the name of the RPC.
    pub(crate) fn rpc(&self) -> &'static str {
        match self {
            Op::Create(..) => "CreateVolume",
            Op::Delete(_) => "DeleteVolume",
            Op::Grow(..) => "ControllerExpandVolume",
            Op::Get(_) => "ControllerGetVolume",
            Op::List => "ListVolumes",
            Op::Cut(..) => "CreateSnapshot",
            Op::Discard(_) => "DeleteSnapshot",
            Op::ListSnapshots => "ListSnapshots",
            Op::Stage(..) => "NodeStageVolume",
            Op::Unstage(_) => "NodeUnstageVolume",
            Op::Publish(..) | Op::PublishReadOnly(..) => "NodePublishVolume",
            Op::Unpublish(..) => "NodeUnpublishVolume",
            Op::Stats(..) => "NodeGetVolumeStats",
            Op::Expand(..) => "NodeExpandVolume",
        }
    }

    /// Whether the node agent serves the RPC, and not the controller.
    pub(crate) fn is_of_node(&self) -> bool {
        self.rpc().starts_with("Node")
    }

    /// Returns the ID of the volume.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Op::Create(..) | Op::List | Op::Discard(_) | Op::ListSnapshots => None,
            Op::Delete(id) | Op::Grow(id, _) | Op::Get(id) | Op::Cut(_, id) => Some(id),
            Op::Stage(volume, _)
            | Op::Unstage(volume)
            | Op::Publish(volume, ..)
            | Op::PublishReadOnly(volume, ..)
            | Op::Unpublish(volume, _)
            | Op::Stats(volume, _)
            | Op::Expand(volume, ..) => Some(&volume.id),
        }
    }

    fn about(&self) -> String {
        match self {
            Op::Create(name, kind, origin) => format!("{name} ({kind}) from {origin:?}"),
            Op::Grow(id, bytes) => format!("{id} to {bytes}"),
            Op::Cut(name, id) => format!("{name} of {id}"),
            Op::Discard(id) => id.clone(),
            Op::Stage(volume, kind) => format!("{} ({kind})", volume.id),
            Op::Publish(_, kind, target) => format!("{} ({kind})", target.display()),
            Op::PublishReadOnly(_, kind, target) => {
                format!("{} ({kind}, read-only)", target.display())
            }
            Op::Unpublish(_, path) | Op::Stats(_, path) => path.display().to_string(),
            Op::Expand(_, kind, path, bytes) => {
                format!("{} ({kind}) to {bytes}", path.display())
            }
            Op::Delete(_) | Op::Get(_) | Op::Unstage(_) | Op::List | Op::ListSnapshots => {
                self.id().unwrap_or_default().to_owned()
            }
        }
    }
}

impl Caller {
    /// Makes the call, once.
    pub(crate) fn ask(&self, op: &Op, leaving: Option<Leaving>) -> Answer<Outcome> {
        let about = op.about();
        let asked = Asked {
            who: &self.who,
            rpc: op.rpc(),
            about: &about,
        };
        self.journal.call(asked, || {
            if op.is_of_node() {
                self.ask_node(op, leaving)
            } else {
                self.ask_controller(op, leaving)
            }
        })
    }

    fn ask_controller(&self, op: &Op, leaving: Option<Leaving>) -> Answer<Outcome> {
        let calls = self.site.controller().leaving(leaving);
        match op {
            Op::Create(name, kind, origin) => {
                let order = match origin {
                    Origin::Blank => orders::create(name, kind),
                    Origin::Snapshot(id) => orders::restore(name, kind, id),
                    Origin::Volume(id) => orders::clone(name, kind, id),
                };
                let volume = calls.create(order)?.volume.expect("a volume");
                Ok(Outcome::Volume(volume.volume_id, volume.capacity_bytes))
            }
            Op::Delete(id) => calls.delete(orders::delete(id)).map(|_| Outcome::Nothing),
            Op::Grow(id, bytes) => {
                let grown = calls.expand(orders::grow(id, *bytes))?;
                Ok(Outcome::Bytes(grown.capacity_bytes))
            }
            Op::Get(id) => {
                let volume = calls.get(orders::get(id))?.volume.expect("a volume");
                Ok(Outcome::Volume(volume.volume_id, volume.capacity_bytes))
            }
            Op::Cut(name, id) => {
                let cut = calls.cut(orders::cut(name, id))?;
                let snapshot = cut.snapshot.expect("a snapshot");
                Ok(Outcome::Snapshot(
                    snapshot.snapshot_id,
                    snapshot.ready_to_use,
                ))
            }
            Op::Discard(id) => calls.discard(orders::discard(id)).map(|_| Outcome::Nothing),
            Op::ListSnapshots => {
                let page = calls.list_snapshots(csi::ListSnapshotsRequest::default())?;
                let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
                Ok(Outcome::Ids(
                    snapshots.map(|found| found.snapshot_id).collect(),
                ))
            }
            _ => {
                let page = calls.list(csi::ListVolumesRequest::default())?;
                let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
                Ok(Outcome::Ids(
                    volumes.map(|volume| volume.volume_id).collect(),
                ))
            }
        }
    }

    fn ask_node(&self, op: &Op, leaving: Option<Leaving>) -> Answer<Outcome> {
        let calls = self.site.node().leaving(leaving);
        match op {
            Op::Stage(volume, kind) => {
                calls.stage(volume.stage(access(kind)))?;
            }
            Op::Unstage(volume) => {
                calls.unstage(volume.unstage())?;
            }
            Op::Publish(volume, kind, target) => {
                calls.publish(volume.publish(target, access(kind)))?;
            }
            Op::PublishReadOnly(volume, kind, target) => {
                calls.publish(volume.publish_read_only(target, access(kind)))?;
            }
            Op::Unpublish(volume, target) => {
                calls.unpublish(volume.unpublish(target))?;
            }
            Op::Expand(volume, kind, path, bytes) => {
                let request = volume.expand_to(*bytes, path, access(kind));
                return Ok(Outcome::Bytes(calls.expand(request)?.capacity_bytes));
            }
            Op::Stats(volume, path) => {
                let usage = calls.stats(volume.stats(path))?.usage;
                return Ok(Outcome::Bytes(usage.first().expect("bytes").total));
            }
            other => panic!("{} is not of the node", other.rpc()),
        }
        Ok(Outcome::Nothing)
    }
}
