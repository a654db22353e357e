//! The requests of the sidecars to a controller whose node is `node-1`.

use belay_proto::csi::v1 as csi;
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

use super::usage::{access, least_bytes};

/// A volume of the smallest size for that use.
pub(crate) fn create(name: &str, kind: &str) -> csi::CreateVolumeRequest {
    let required_bytes = i64::try_from(least_bytes(kind)).expect("a size");
    csi::CreateVolumeRequest {
        capacity_range: range(required_bytes),
        ..filled(name, kind, None)
    }
}

/// A volume with what a snapshot holds, and as large.
pub(crate) fn restore(name: &str, kind: &str, snapshot_id: &str) -> csi::CreateVolumeRequest {
    let snapshot_id = snapshot_id.to_owned();
    filled(
        name,
        kind,
        Some(Source::Snapshot(SnapshotSource { snapshot_id })),
    )
}

/// A volume with what another one holds, and as large.
pub(crate) fn clone(name: &str, kind: &str, volume_id: &str) -> csi::CreateVolumeRequest {
    let volume_id = volume_id.to_owned();
    filled(name, kind, Some(Source::Volume(VolumeSource { volume_id })))
}

fn filled(name: &str, kind: &str, source: Option<Source>) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![access(kind)],
        volume_content_source: source.map(|source| csi::VolumeContentSource {
            r#type: Some(source),
        }),
        ..Default::default()
    }
}

/// To remove a volume.
pub(crate) fn delete(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    }
}

/// To attach a volume.
pub(crate) fn attach(id: &str, kind: &str) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-1".to_owned(),
        volume_capability: Some(access(kind)),
        ..Default::default()
    }
}

/// To detach a volume.
pub(crate) fn detach(id: &str) -> csi::ControllerUnpublishVolumeRequest {
    csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "node-1".to_owned(),
        ..Default::default()
    }
}

/// To grow a volume to at least so many bytes.
pub(crate) fn grow(id: &str, bytes: i64) -> csi::ControllerExpandVolumeRequest {
    csi::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range(bytes),
        ..Default::default()
    }
}

/// A snapshot of that volume.
pub(crate) fn cut(name: &str, volume_id: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume_id.to_owned(),
        ..Default::default()
    }
}

/// To remove a snapshot.
pub(crate) fn discard(id: &str) -> csi::DeleteSnapshotRequest {
    csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    }
}

/// A look at a volume.
pub(crate) fn get(id: &str) -> csi::ControllerGetVolumeRequest {
    csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    }
}

fn range(required_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes: 0,
    })
}
