//! Tests the size limits of the specification and of the kernel. A value of the maximum size is
//! accepted. If the value has one more byte, the request is refused with the name of the field.

use super::*;
use crate::call::{Failure, Kind};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::{AccessMode as Mode, AccessType, MountVolume};
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use std::collections::HashMap;

/// CSI 1.13, "Size Limits".
const STRING: usize = 128;
const MAP: usize = 4096;
const NODE: usize = 256;
/// PATH_MAX of limits.h includes the terminating NUL.
const PATH: usize = 4095;

/// Asserts that a field of `most` bytes is accepted, and that a field with one more byte is
/// refused.
fn assert_limit<T, R>(field: &str, most: usize, request: impl Fn(usize) -> R)
where
    T: TryFrom<R, Error = Failure>,
{
    let taken = T::try_from(request(most)).map(drop);
    assert_eq!(taken, Ok(()), "{field}: {most} bytes");
    let refused = T::try_from(request(most + 1)).map(drop).unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid, "{field}");
    let has = format!(" {} bytes", most + 1);
    let allowed = format!("at most {most} are allowed");
    for part in [field, &has, &allowed] {
        assert!(refused.message.contains(part), "{part:?} not in {refused}");
    }
}

/// Declares one check per field. Each entry has the type, the name of the field in the refusal, the
/// limit, and a valid request in which the field has `n` bytes.
macro_rules! limits {
    ($(
        $typed:ty, $field:literal, $most:expr, |$n:ident| $good:expr, $part:ident = $long:expr;
    )+) => {
        $(assert_limit::<$typed, _>($field, $most, |$n| {
            let good = || $good;
            let mut request = good();
            request.$part = $long;
            request
        });)+
    };
}

fn text(n: usize) -> String {
    "x".repeat(n)
}

/// Returns a map of `n` bytes in total: a key of one byte, and its value.
fn map(n: usize) -> HashMap<String, String> {
    HashMap::from([("k".to_owned(), text(n - 1))])
}

/// Returns a path of `n` bytes, with components of at most five bytes.
fn path(n: usize) -> String {
    let mut path = "/abcde".repeat(n / 6 + 1);
    path.truncate(n);
    assert!(!path.ends_with('/'));
    path
}

fn id() -> String {
    "vol-1".to_owned()
}

fn mounted(mount: MountVolume) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(Mode { mode: 1 }),
    }
}

fn capability() -> csi::VolumeCapability {
    mounted(MountVolume::default())
}

fn create() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![capability()],
        ..Default::default()
    }
}

fn from(source: Source) -> Option<csi::VolumeContentSource> {
    Some(csi::VolumeContentSource {
        r#type: Some(source),
    })
}

fn places(requisite: usize, preferred: usize) -> Option<csi::TopologyRequirement> {
    let place = |n| csi::Topology { segments: map(n) };
    Some(csi::TopologyRequirement {
        requisite: vec![place(1), place(requisite)],
        preferred: vec![place(preferred)],
    })
}

fn controller_publish() -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id(),
        node_id: "node-1".to_owned(),
        volume_capability: Some(capability()),
        ..Default::default()
    }
}

fn snapshot() -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: "snap".to_owned(),
        source_volume_id: id(),
        ..Default::default()
    }
}

fn stage() -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id(),
        staging_target_path: "/staging".to_owned(),
        volume_capability: Some(capability()),
        ..Default::default()
    }
}

fn publish() -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: id(),
        target_path: "/target".to_owned(),
        volume_capability: Some(capability()),
        ..Default::default()
    }
}

fn stats() -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: id(),
        volume_path: "/target".to_owned(),
        ..Default::default()
    }
}

fn expand() -> csi::NodeExpandVolumeRequest {
    csi::NodeExpandVolumeRequest {
        volume_id: id(),
        volume_path: "/target".to_owned(),
        ..Default::default()
    }
}

#[test]
fn names_and_identifiers_have_a_limit() {
    let snapshot_id = |n| SnapshotSource {
        snapshot_id: text(n),
    };
    let volume_id = |n| VolumeSource { volume_id: text(n) };
    limits! {
        CreateVolume, "name", STRING, |n| create(), name = text(n);
        CreateVolume, "volume_content_source.snapshot.snapshot_id", STRING, |n| create(),
            volume_content_source = from(Source::Snapshot(snapshot_id(n)));
        CreateVolume, "volume_content_source.volume.volume_id", STRING, |n| create(),
            volume_content_source = from(Source::Volume(volume_id(n)));
        DeleteVolume, "volume_id", STRING, |n| csi::DeleteVolumeRequest::default(),
            volume_id = text(n);
        GetVolume, "volume_id", STRING, |n| csi::ControllerGetVolumeRequest::default(),
            volume_id = text(n);
        ControllerPublish, "volume_id", STRING, |n| controller_publish(), volume_id = text(n);
        ControllerPublish, "node_id", NODE, |n| controller_publish(), node_id = text(n);
        ControllerUnpublish, "node_id", NODE,
            |n| csi::ControllerUnpublishVolumeRequest { volume_id: id(), ..Default::default() },
            node_id = text(n);
        CreateSnapshot, "name", STRING, |n| snapshot(), name = text(n);
        CreateSnapshot, "source_volume_id", STRING, |n| snapshot(), source_volume_id = text(n);
        DeleteSnapshot, "snapshot_id", STRING, |n| csi::DeleteSnapshotRequest::default(),
            snapshot_id = text(n);
        GetSnapshot, "snapshot_id", STRING, |n| csi::GetSnapshotRequest::default(),
            snapshot_id = text(n);
        ListSnapshots, "source_volume_id", STRING, |n| csi::ListSnapshotsRequest::default(),
            source_volume_id = text(n);
        ListSnapshots, "snapshot_id", STRING, |n| csi::ListSnapshotsRequest::default(),
            snapshot_id = text(n);
        Stage, "volume_id", STRING, |n| stage(), volume_id = text(n);
        Unstage, "volume_id", STRING,
            |n| csi::NodeUnstageVolumeRequest {
                staging_target_path: path(2),
                ..Default::default()
            },
            volume_id = text(n);
        Publish, "volume_id", STRING, |n| publish(), volume_id = text(n);
        Stats, "volume_id", STRING, |n| stats(), volume_id = text(n);
    }
}

#[test]
fn a_capability_has_limits() {
    let with = |n: usize, part: fn(usize) -> MountVolume| Some(mounted(part(n)));
    limits! {
        Stage, "fs_type", STRING, |n| stage(), volume_capability = with(n, |n| MountVolume {
            fs_type: text(n),
            ..Default::default()
        });
        Stage, "volume_mount_group", STRING, |n| stage(),
            volume_capability = with(n, |n| MountVolume {
                volume_mount_group: text(n),
                ..Default::default()
            });
        Stage, "mount_flags", MAP, |n| stage(), volume_capability = with(n, |n| MountVolume {
            mount_flags: vec![text(1), text(n - 1)],
            ..Default::default()
        });
    }
}

#[test]
fn maps_have_a_limit() {
    limits! {
        CreateVolume, "parameters", MAP, |n| create(), parameters = map(n);
        CreateVolume, "mutable_parameters", MAP, |n| create(), mutable_parameters = map(n);
        CreateVolume, "secrets", MAP, |n| create(), secrets = map(n);
        CreateVolume, "accessibility_requirements.requisite", MAP, |n| create(),
            accessibility_requirements = places(n, 1);
        CreateVolume, "accessibility_requirements.preferred", MAP, |n| create(),
            accessibility_requirements = places(1, n);
        ControllerPublish, "volume_context", MAP, |n| controller_publish(), volume_context = map(n);
        GetCapacity, "parameters", MAP, |n| csi::GetCapacityRequest::default(), parameters = map(n);
        GetCapacity, "accessible_topology", MAP, |n| csi::GetCapacityRequest::default(),
            accessible_topology = Some(csi::Topology { segments: map(n) });
        CreateSnapshot, "parameters", MAP, |n| snapshot(), parameters = map(n);
        CreateSnapshot, "accessibility_requirements.requisite", MAP, |n| snapshot(),
            accessibility_requirements = places(n, 1);
        CreateSnapshot, "secrets", MAP, |n| snapshot(), secrets = map(n);
        Stage, "publish_context", MAP, |n| stage(), publish_context = map(n);
        Stage, "volume_context", MAP, |n| stage(), volume_context = map(n);
        Stage, "secrets", MAP, |n| stage(), secrets = map(n);
        Publish, "publish_context", MAP, |n| publish(), publish_context = map(n);
        Publish, "volume_context", MAP, |n| publish(), volume_context = map(n);
    }
}

#[test]
fn paths_and_their_components_have_the_limits_of_the_kernel() {
    let relative = |n| path(n + 1).split_off(1);
    let component = |n| format!("/a/{}/b", text(n));
    limits! {
        Stage, "staging_target_path", PATH, |n| stage(), staging_target_path = path(n);
        Stage, "staging_target_path", 255, |n| stage(), staging_target_path = component(n);
        Publish, "target_path", PATH, |n| publish(), target_path = path(n);
        Publish, "target_path", 255, |n| publish(), target_path = component(n);
        Publish, "staging_target_path", PATH, |n| publish(), staging_target_path = path(n);
        Stats, "volume_path", PATH, |n| stats(), volume_path = path(n);
        Stats, "volume_path", PATH, |n| stats(), volume_path = relative(n);
        Stats, "volume_path", 255, |n| stats(), volume_path = component(n);
        Stats, "staging_target_path", PATH, |n| stats(), staging_target_path = path(n);
        NodeExpand, "volume_path", PATH, |n| expand(), volume_path = path(n);
        NodeExpand, "staging_target_path", PATH, |n| expand(), staging_target_path = path(n);
        NodeVolumeHealth, "staging_target_path", PATH,
            |n| csi::NodeGetVolumeHealthRequest { volume_id: id(), ..Default::default() },
            staging_target_path = path(n);
        NodeVolumeHealth, "volume_publish_path", PATH,
            |n| csi::NodeGetVolumeHealthRequest { volume_id: id(), ..Default::default() },
            volume_publish_path = path(n);
    }
}

#[test]
fn the_size_of_a_page_is_any_number_that_is_not_negative() {
    let volumes = |max_entries| {
        let request = csi::ListVolumesRequest {
            max_entries,
            ..Default::default()
        };
        ListVolumes::try_from(request).map(|typed| typed.max_entries)
    };
    let snapshots = |max_entries| {
        let request = csi::ListSnapshotsRequest {
            max_entries,
            ..Default::default()
        };
        ListSnapshots::try_from(request).map(|typed| typed.max_entries)
    };
    let unhealthy = |max_entries| {
        let request = csi::ControllerListVolumeHealthRequest {
            max_entries,
            ..Default::default()
        };
        ListVolumeHealth::try_from(request).map(|typed| typed.max_entries)
    };
    for (asked, most) in [
        (i32::MIN, Err(())),
        (-1, Err(())),
        (0, Ok(None)),
        (1, Ok(Some(1))),
        (2, Ok(Some(2))),
        (i32::MAX, Ok(Some(2_147_483_647))),
    ] {
        for taken in [volumes(asked), snapshots(asked), unhealthy(asked)] {
            let taken = taken.map_err(|refused| {
                let why = format!("max_entries: {asked} is negative");
                assert_eq!((refused.kind, refused.message), (Kind::Invalid, why));
            });
            assert_eq!(taken, most, "{asked}");
        }
    }
}

#[test]
fn a_size_is_any_number_that_is_not_negative() {
    const MOST: i64 = i64::MAX;
    for (required_bytes, limit_bytes, taken) in [
        (i64::MIN, 0, None),
        (-1, 0, None),
        (0, -1, None),
        (0, 0, None),
        (1, 0, Some((1, 0))),
        (0, 1, Some((0, 1))),
        (1, 1, Some((1, 1))),
        (MOST, 0, Some((9_223_372_036_854_775_807, 0))),
        (0, MOST, Some((0, 9_223_372_036_854_775_807))),
        (
            MOST - 1,
            MOST,
            Some((9_223_372_036_854_775_806, 9_223_372_036_854_775_807)),
        ),
        (
            MOST,
            MOST,
            Some((9_223_372_036_854_775_807, 9_223_372_036_854_775_807)),
        ),
        (MOST, MOST - 1, None),
    ] {
        let range = csi::CapacityRange {
            required_bytes,
            limit_bytes,
        };
        let range = CapacityRange::try_from(range).ok();
        let range = range.map(|range| (range.required_bytes, range.limit_bytes));
        assert_eq!(range, taken, "{required_bytes} {limit_bytes}");
    }
}
