//! The subject of a call for the log line: an identifier or a name from the request, never a
//! secret.

use belay_proto::csi::v1 as csi;

/// A message from which the subject of the call can be read.
pub trait Subject {
    /// Returns an identifier or a name as the caller sent it, unchecked; empty if the message has
    /// none.
    fn subject(&self) -> &str;
}

macro_rules! subjects {
    ($($request:ident $(: $field:ident)?,)+) => {
        $(
            impl Subject for csi::$request {
                fn subject(&self) -> &str {
                    subjects!(@ self $($field)?)
                }
            }
        )+
    };
    (@ $self:ident $field:ident) => { &$self.$field };
    (@ $self:ident) => { "" };
}

subjects! {
    GetPluginInfoRequest,
    GetPluginCapabilitiesRequest,
    ProbeRequest,
    CreateVolumeRequest: name,
    DeleteVolumeRequest: volume_id,
    ControllerPublishVolumeRequest: volume_id,
    ControllerUnpublishVolumeRequest: volume_id,
    ValidateVolumeCapabilitiesRequest: volume_id,
    ListVolumesRequest,
    GetCapacityRequest,
    ControllerGetCapabilitiesRequest,
    CreateSnapshotRequest: name,
    DeleteSnapshotRequest: snapshot_id,
    ListSnapshotsRequest,
    GetSnapshotRequest: snapshot_id,
    ControllerExpandVolumeRequest: volume_id,
    ControllerGetVolumeRequest: volume_id,
    ControllerModifyVolumeRequest: volume_id,
    ControllerListVolumeHealthRequest,
    ControllerGetVolumeHealthRequest: volume_id,
    NodeStageVolumeRequest: volume_id,
    NodeUnstageVolumeRequest: volume_id,
    NodePublishVolumeRequest: volume_id,
    NodeUnpublishVolumeRequest: volume_id,
    NodeGetVolumeStatsRequest: volume_id,
    NodeExpandVolumeRequest: volume_id,
    NodeGetCapabilitiesRequest,
    NodeGetInfoRequest,
    NodeGetVolumeHealthRequest: volume_id,
    NodeGetStorageHealthRequest,
    GroupControllerGetCapabilitiesRequest,
    CreateVolumeGroupSnapshotRequest: name,
    DeleteVolumeGroupSnapshotRequest: group_snapshot_id,
    GetVolumeGroupSnapshotRequest: group_snapshot_id,
    GetMetadataAllocatedRequest: snapshot_id,
    GetMetadataDeltaRequest: target_snapshot_id,
}
