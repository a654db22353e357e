//! Which requests make a volume, which find it, and which are refused.

use crate::bed::{
    self, Bed, MIB, NODE, ROOMY, assert_refused, create, created, mount, place, range,
};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use std::collections::{HashMap, HashSet};
use tonic::Code;

#[tokio::test]
async fn a_name_that_comes_again_must_mean_the_same() {
    let bed = Bed::new(&["--overcommit", "1000", "--with-topology"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![mount("ext4", Mode::SingleNodeWriter)],
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![place("elsewhere"), place(NODE)],
            preferred: vec![place("elsewhere")],
        }),
        ..create("pvc-1", 200 * MIB)
    };
    let volume = created(&mut client, request.clone()).await;
    assert_eq!(volume.accessible_topology, [place(NODE)]);

    let same = [
        request.clone(),
        csi::CreateVolumeRequest {
            capacity_range: range(100 * MIB, 0),
            ..request.clone()
        },
        csi::CreateVolumeRequest {
            capacity_range: range(0, 300 * MIB),
            ..request.clone()
        },
        csi::CreateVolumeRequest {
            volume_capabilities: vec![mount("ext4", Mode::SingleNodeMultiWriter)],
            ..request.clone()
        },
        csi::CreateVolumeRequest {
            accessibility_requirements: None,
            ..request.clone()
        },
    ];
    for request in same {
        assert_eq!(created(&mut client, request).await, volume);
    }

    let larger = csi::CreateVolumeRequest {
        capacity_range: range(201 * MIB, 0),
        ..request.clone()
    };
    let smaller = csi::CreateVolumeRequest {
        capacity_range: range(MIB, 199 * MIB),
        ..request.clone()
    };
    let xfs = csi::CreateVolumeRequest {
        volume_capabilities: vec![mount("xfs", Mode::SingleNodeWriter)],
        capacity_range: range(MIB, 0),
        ..request.clone()
    };
    let raw = csi::CreateVolumeRequest {
        volume_capabilities: vec![bed::block()],
        ..request.clone()
    };
    let elsewhere = csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![place("elsewhere")],
            preferred: vec![],
        }),
        ..request.clone()
    };
    for (request, names) in [
        (larger, ["209715200", "210763776"]),
        (smaller, ["209715200", "208666624"]),
        (xfs, ["ext4", "xfs"]),
        (raw, ["ext4", "raw block"]),
        (elsewhere.clone(), ["pvc-1", "another place"]),
    ] {
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, Code::AlreadyExists, &names);
    }
    let nowhere = csi::CreateVolumeRequest {
        name: "pvc-2".to_owned(),
        ..elsewhere
    };
    let refused = client.create_volume(nowhere).await.unwrap_err();
    assert_refused(
        &refused,
        Code::ResourceExhausted,
        &["accessibility_requirements", NODE],
    );
}

#[tokio::test]
async fn what_no_volume_can_be_is_refused_by_the_name_of_the_field() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let parameter = |key: &str| HashMap::from([(key.to_owned(), "1".to_owned())]);
    let base = || create("pvc-1", 400 * MIB);
    let source = csi::VolumeContentSource {
        r#type: Some(csi::volume_content_source::Type::Volume(
            csi::volume_content_source::VolumeSource {
                volume_id: "vol-1".to_owned(),
            },
        )),
    };
    let capability = |capability| csi::CreateVolumeRequest {
        volume_capabilities: vec![capability],
        ..base()
    };
    let cases = [
        (
            csi::CreateVolumeRequest {
                parameters: parameter("typ"),
                ..base()
            },
            "\"typ\"",
        ),
        (
            csi::CreateVolumeRequest {
                mutable_parameters: parameter("iops"),
                ..base()
            },
            "mutable_parameters",
        ),
        (
            csi::CreateVolumeRequest {
                volume_content_source: Some(source),
                ..base()
            },
            "volume_content_source",
        ),
        (capability(mount("btrfs", Mode::SingleNodeWriter)), "btrfs"),
        (
            capability(mount("", Mode::MultiNodeMultiWriter)),
            "MULTI_NODE_MULTI_WRITER",
        ),
        (
            capability(mount("", Mode::MultiNodeReaderOnly)),
            "volume_capabilities[0]",
        ),
    ];
    for (request, names) in cases {
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, Code::InvalidArgument, &[names]);
    }
    for (asked, names) in [
        (range(MIB + 1, 2 * MIB - 1), ["2097151", "2097152"]),
        (range(i64::MAX, 0), ["9223372036854775808", "the largest"]),
    ] {
        let request = csi::CreateVolumeRequest {
            capacity_range: asked,
            ..base()
        };
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, Code::OutOfRange, &names);
    }
    // The provisioner's own keys are none of ours.
    let own = parameter("csi.storage.k8s.io/pvc/name");
    created(
        &mut client,
        csi::CreateVolumeRequest {
            parameters: own,
            ..base()
        },
    )
    .await;
}

#[tokio::test]
async fn equal_calls_at_one_time_make_one_volume() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let mut client = bed.client().await;
        calls.spawn(async move { created(&mut client, create("pvc-1", MIB)).await.volume_id });
    }
    let ids: HashSet<String> = calls.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(std::fs::read_dir(bed.volumes_dir()).unwrap().count(), 1);
}

#[tokio::test]
async fn contradicting_calls_at_one_time_make_one_volume_and_clear_refusals() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut calls = tokio::task::JoinSet::new();
    for n in 1..=16 {
        let mut client = bed.client().await;
        calls.spawn(async move { client.create_volume(create("pvc-1", n * MIB)).await });
    }
    let (made, refused): (Vec<_>, Vec<_>) =
        calls.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, 15));
    for status in refused.into_iter().filter_map(Result::err) {
        assert!(
            [Code::Aborted, Code::AlreadyExists].contains(&status.code()),
            "{status}"
        );
        assert!(status.message().contains("pvc-1"), "{status}");
    }
    assert_eq!(std::fs::read_dir(bed.volumes_dir()).unwrap().count(), 1);
}
