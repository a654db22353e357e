//! The requests of the sidecars and of the kubelet, with the fields that all callers set. A caller
//! adds other fields: `CreateVolumeRequest { parameters, ..create(..) }`.

use std::collections::HashMap;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

/// Returns the capability for a kind of volume: a filesystem's name, an empty text for the default,
/// or `block`.
#[must_use]
pub fn capability(kind: &str, mode: Mode) -> csi::VolumeCapability {
    let access_type = match kind {
        "block" => AccessType::Block(BlockVolume {}),
        fs_type => AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            ..Default::default()
        }),
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

/// Returns a capacity range in bytes; 0 means no limit.
#[must_use]
pub fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

/// Returns the content source for a volume from this snapshot.
#[must_use]
pub fn of_snapshot(id: &str) -> Source {
    let snapshot_id = id.to_owned();
    Source::Snapshot(SnapshotSource { snapshot_id })
}

/// Returns the content source for a clone of this volume.
#[must_use]
pub fn of_volume(id: &str) -> Source {
    let volume_id = id.to_owned();
    Source::Volume(VolumeSource { volume_id })
}

/// Returns a request to create a volume of any size.
#[must_use]
pub fn create(
    name: &str,
    capability: csi::VolumeCapability,
    source: Option<Source>,
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability],
        volume_content_source: source.map(|source| csi::VolumeContentSource {
            r#type: Some(source),
        }),
        ..Default::default()
    }
}

/// Returns a request to delete a volume.
#[must_use]
pub fn delete(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    }
}

/// Returns a request to attach a volume to a node.
#[must_use]
pub fn attach(
    id: &str,
    node: &str,
    capability: csi::VolumeCapability,
) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// Returns a request to detach a volume from a node; an empty name means all nodes.
#[must_use]
pub fn detach(id: &str, node: &str) -> csi::ControllerUnpublishVolumeRequest {
    csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..Default::default()
    }
}

/// Returns a request to expand a volume to at least `bytes`.
#[must_use]
pub fn grow(id: &str, bytes: i64) -> csi::ControllerExpandVolumeRequest {
    csi::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range(bytes, 0),
        ..Default::default()
    }
}

/// Returns a request to create a snapshot of a volume.
#[must_use]
pub fn cut(name: &str, volume_id: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume_id.to_owned(),
        ..Default::default()
    }
}

/// Returns a request to delete a snapshot.
#[must_use]
pub fn discard(id: &str) -> csi::DeleteSnapshotRequest {
    csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    }
}

/// Returns a request for the state of a volume.
#[must_use]
pub fn get(id: &str) -> csi::ControllerGetVolumeRequest {
    csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    }
}

/// Returns a request to stage a volume, with the publish context of its attachment.
#[must_use]
pub fn stage(
    id: &str,
    context: HashMap<String, String>,
    staging: &Path,
    capability: csi::VolumeCapability,
) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        publish_context: context,
        staging_target_path: text(staging),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// Returns a request to unstage a volume.
#[must_use]
pub fn unstage(id: &str, staging: &Path) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
    }
}

/// Returns a request to publish a staged volume.
#[must_use]
pub fn publish(
    id: &str,
    context: HashMap<String, String>,
    staging: &Path,
    target: &Path,
    capability: csi::VolumeCapability,
) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        publish_context: context,
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// Returns a request to unpublish a volume.
#[must_use]
pub fn unpublish(id: &str, target: &Path) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: text(target),
    }
}

/// Returns a request for the usage of a volume, at one of its paths.
#[must_use]
pub fn stats(id: &str, path: &Path, staging: &Path) -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: text(path),
        staging_target_path: text(staging),
    }
}

/// Returns a request to expand a volume on its node to at least `bytes`.
#[must_use]
pub fn expand(
    id: &str,
    path: &Path,
    staging: &Path,
    bytes: i64,
    capability: csi::VolumeCapability,
) -> csi::NodeExpandVolumeRequest {
    csi::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: text(path),
        staging_target_path: text(staging),
        capacity_range: range(bytes, 0),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
