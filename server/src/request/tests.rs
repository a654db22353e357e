//! Tests the required fields of each request, and the typed values of a valid request.

use super::*;
use crate::call::{Failure, Kind};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::{AccessType, BlockVolume, MountVolume};
use std::collections::HashMap;
use std::path::PathBuf;

fn block() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(csi::volume_capability::AccessMode { mode: 1 }),
    }
}

fn mount(fs_type: &str) -> csi::VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        ..Default::default()
    };
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        ..block()
    }
}

/// Changes one field of a valid request and returns the refusal.
macro_rules! refusals {
    ($typed:ty, $good:expr, { $($field:ident $(.$part:ident)* = $bad:expr => $why:literal,)+ }) => {
        <$typed>::try_from($good).unwrap();
        $({
            let mut request = $good;
            request.$field$(.$part)* = $bad;
            let refused = <$typed>::try_from(request).unwrap_err();
            assert_eq!(refused.kind, Kind::Invalid);
            assert_eq!(refused.message, $why);
        })+
    };
}

fn create() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![mount("ext4")],
        ..Default::default()
    }
}

#[test]
fn create_needs_a_name_and_capabilities_that_agree() {
    let no_source = csi::VolumeContentSource { r#type: None };
    refusals!(CreateVolume, create(), {
        name = String::new() => "name: is required, but empty",
        volume_capabilities = vec![] =>
            "volume_capabilities: needs at least one element; add one with an access_mode, and \
             with mount or block",
        volume_capabilities = vec![mount(""), block()] =>
            "volume_capabilities: block and mount in one volume: [0] and [1] contradict",
        volume_capabilities = vec![mount(""), mount("xfs"), mount("ext4")] =>
            "volume_capabilities: fs_type \"xfs\" and \"ext4\" contradict",
        capacity_range = Some(csi::CapacityRange::default()) =>
            "capacity_range: required_bytes and limit_bytes are 0; set one of them",
        volume_content_source = Some(no_source) =>
            "volume_content_source: must be a snapshot or a volume",
    });
}

#[test]
fn create_takes_all_that_it_is_given() {
    let place = |zone: &str| csi::Topology {
        segments: HashMap::from([("zone".to_owned(), zone.to_owned())]),
    };
    let pair = |value: &str| HashMap::from([("key".to_owned(), value.to_owned())]);
    let source = csi::volume_content_source::SnapshotSource {
        snapshot_id: "snap-1".to_owned(),
    };
    let typed = CreateVolume::try_from(csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 5,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![mount(""), mount("xfs")],
        parameters: pair("p"),
        mutable_parameters: pair("m"),
        secrets: pair("s"),
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(csi::volume_content_source::Type::Snapshot(source)),
        }),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![place("a"), place("b")],
            preferred: vec![place("b")],
        }),
        ..create()
    });
    let typed = typed.unwrap();
    assert_eq!(typed.name.as_str(), "pvc-1");
    assert_eq!(
        typed.range,
        Some(CapacityRange {
            required_bytes: 5,
            limit_bytes: 0
        })
    );
    assert_eq!(typed.capabilities.len(), 2);
    assert_eq!(typed.parameters.get("key"), Some("p"));
    assert_eq!(typed.mutable_parameters.get("key"), Some("m"));
    assert_eq!(typed.secrets.get("key"), Some("s"));
    assert_eq!(
        typed.source,
        Some(ContentSource::Snapshot(SnapshotId::new("snap-1").unwrap()))
    );
    let topology = typed.topology.unwrap();
    assert_eq!(topology.requisite.len(), 2);
    assert_eq!(topology.preferred[0]["zone"], "b");
}

#[test]
fn a_topology_requirement_without_topologies_is_none() {
    let mut request = create();
    request.accessibility_requirements = Some(csi::TopologyRequirement::default());
    assert_eq!(CreateVolume::try_from(request).unwrap().topology, None);
}

#[test]
fn controller_publish_needs_volume_node_and_capability() {
    let good = || csi::ControllerPublishVolumeRequest {
        volume_id: "vol-1".to_owned(),
        node_id: "node-1".to_owned(),
        volume_capability: Some(block()),
        ..Default::default()
    };
    refusals!(ControllerPublish, good(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        node_id = String::new() => "node_id: is required, but empty",
        volume_capability = None => "volume_capability: is required, but not set",
        volume_context = HashMap::from([("k".to_owned(), "v".repeat(4096))]) =>
            "volume_context: has 4097 bytes in total; at most 4096 are allowed",
    });
}

#[test]
fn controller_unpublish_without_a_node_means_all_nodes() {
    let request = |node_id: &str| csi::ControllerUnpublishVolumeRequest {
        volume_id: "vol-1".to_owned(),
        node_id: node_id.to_owned(),
        ..Default::default()
    };
    assert_eq!(
        ControllerUnpublish::try_from(request("")).unwrap().node,
        None
    );
    let one = ControllerUnpublish::try_from(request("node-1")).unwrap();
    assert_eq!(one.node, Some(NodeId::new("node-1").unwrap()));
}

#[test]
fn validate_and_expand_name_missing_fields() {
    let validate = || csi::ValidateVolumeCapabilitiesRequest {
        volume_id: "vol-1".to_owned(),
        volume_capabilities: vec![block()],
        ..Default::default()
    };
    refusals!(ValidateCapabilities, validate(), {
        volume_id = "v".repeat(129) => "volume_id: has 129 bytes; at most 128 are allowed",
        volume_capabilities = vec![] =>
            "volume_capabilities: needs at least one element; add one with an access_mode, and \
             with mount or block",
    });
    let expand = || csi::ControllerExpandVolumeRequest {
        volume_id: "vol-1".to_owned(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 1,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let modified = |volume_id: &str| {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: volume_id.to_owned(),
            mutable_parameters: [("type".to_owned(), "gold".to_owned())].into(),
            ..Default::default()
        };
        ControllerModify::read(request, 8)
    };
    let refused = modified("").unwrap_err();
    assert_eq!(refused.message, "volume_id: is required, but empty");
    modified("123456789").unwrap_err();
    let read = modified("12345678").unwrap();
    assert_eq!(read.mutable_parameters.get("type"), Some("gold"));
    refusals!(ControllerExpand, expand(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        capacity_range = None => "capacity_range: is required, but not set",
    });
}

#[test]
fn a_page_size_is_not_negative_and_zero_means_no_limit() {
    let request = |max_entries, token: &str| csi::ListVolumesRequest {
        max_entries,
        starting_token: token.to_owned(),
    };
    let refused = ListVolumes::try_from(request(-1, "")).unwrap_err();
    assert_eq!(refused.message, "max_entries: -1 is negative");
    let all = ListVolumes::try_from(request(0, "")).unwrap();
    assert_eq!((all.max_entries, all.starting_token), (None, None));
    let page = ListVolumes::try_from(request(3, "next")).unwrap();
    assert_eq!(
        (page.max_entries, page.starting_token.as_deref()),
        (Some(3), Some("next"))
    );
}

#[test]
fn stage_and_unstage_need_volume_and_staging_path() {
    let stage = || csi::NodeStageVolumeRequest {
        volume_id: "vol-1".to_owned(),
        staging_target_path: "/staging".to_owned(),
        volume_capability: Some(mount("")),
        ..Default::default()
    };
    refusals!(Stage, stage(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        staging_target_path = String::new() => "staging_target_path: is required, but empty",
        staging_target_path = "a".to_owned() =>
            "staging_target_path: \"a\" is not absolute; write a path that begins with /",
        volume_capability = None => "volume_capability: is required, but not set",
        publish_context = HashMap::from([("k".to_owned(), "v".repeat(4096))]) =>
            "publish_context: has 4097 bytes in total; at most 4096 are allowed",
    });
    let unstage = || csi::NodeUnstageVolumeRequest {
        volume_id: "vol-1".to_owned(),
        staging_target_path: "/staging".to_owned(),
    };
    refusals!(Unstage, unstage(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        staging_target_path = String::new() => "staging_target_path: is required, but empty",
    });
}

#[test]
fn publish_and_unpublish_need_volume_and_target_path() {
    let publish = || csi::NodePublishVolumeRequest {
        volume_id: "vol-1".to_owned(),
        target_path: "/target/".to_owned(),
        volume_capability: Some(mount("")),
        ..Default::default()
    };
    refusals!(Publish, publish(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        target_path = String::new() => "target_path: is required, but empty",
        staging_target_path = "/a/../b".to_owned() =>
            "staging_target_path: \"/a/../b\" has a component \"..\"",
        volume_capability = None => "volume_capability: is required, but not set",
    });
    let typed = Publish::try_from(publish()).unwrap();
    assert_eq!(
        (typed.staging, typed.target.to_string()),
        (None, "/target".to_owned())
    );
    let unpublish = || csi::NodeUnpublishVolumeRequest {
        volume_id: "vol-1".to_owned(),
        target_path: "/target".to_owned(),
    };
    refusals!(Unpublish, unpublish(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        target_path = "/".to_owned() => "target_path: is the root directory; use one below it",
    });
}

#[test]
fn stats_and_node_expand_let_a_relative_path_through() {
    let stats = || csi::NodeGetVolumeStatsRequest {
        volume_id: "vol-1".to_owned(),
        volume_path: "some/path".to_owned(),
        ..Default::default()
    };
    refusals!(Stats, stats(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        volume_path = String::new() => "volume_path: is required, but empty",
        staging_target_path = "/a/..".to_owned() =>
            "staging_target_path: \"/a/..\" has a component \"..\"",
    });
    assert_eq!(
        Stats::try_from(stats()).unwrap().volume_path,
        PathBuf::from("some/path")
    );
    let expand = || csi::NodeExpandVolumeRequest {
        volume_id: "vol-1".to_owned(),
        volume_path: "some/path".to_owned(),
        ..Default::default()
    };
    refusals!(NodeExpand, expand(), {
        volume_id = String::new() => "volume_id: is required, but empty",
        volume_path = String::new() => "volume_path: is required, but empty",
        capacity_range = Some(csi::CapacityRange { required_bytes: 2, limit_bytes: 1 }) =>
            "capacity_range.limit_bytes: 1 is less than required_bytes 2",
    });
}

#[test]
fn content_sources_are_identifiers() {
    let from = |volume_id: &str| -> Result<ContentSource, Failure> {
        let source = csi::volume_content_source::VolumeSource {
            volume_id: volume_id.to_owned(),
        };
        let source = csi::volume_content_source::Type::Volume(source);
        let source = csi::VolumeContentSource {
            r#type: Some(source),
        };
        ContentSource::read(source, 128)
    };
    assert_eq!(
        from("vol-1").unwrap(),
        ContentSource::Volume(VolumeId::new("vol-1").unwrap())
    );
    let refused = from("").unwrap_err();
    assert_eq!(
        refused.message,
        "volume_content_source.volume.volume_id: is required, but empty"
    );
    from(&"v".repeat(128)).unwrap();
    let refused = from(&"v".repeat(129)).unwrap_err();
    assert!(
        refused
            .message
            .starts_with("volume_content_source.volume.volume_id: "),
        "{refused}"
    );
}

#[test]
fn typed_requests_print_no_secret() {
    let mut request = csi::NodeStageVolumeRequest {
        volume_id: "vol-1".to_owned(),
        staging_target_path: "/staging".to_owned(),
        volume_capability: Some(block()),
        ..Default::default()
    };
    request.secrets = HashMap::from([("canary".to_owned(), "canary".to_owned())]);
    let printed = format!("{:?}", Stage::try_from(request).unwrap());
    assert!(
        printed.contains("vol-1") && !printed.contains("canary"),
        "{printed}"
    );
}
