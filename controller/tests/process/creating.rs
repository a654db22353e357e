//! Requests that create a volume, find one, or are refused.

use crate::bed::{
    self, Bed, MIB, NODE, ROOMY, assert_refused, block, create, created, mount, place, range,
    requisite,
};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use std::collections::{HashMap, HashSet};
use tonic::Code;

type Request = csi::CreateVolumeRequest;

/// Returns a changed request.
fn with(base: &Request, change: impl FnOnce(&mut Request)) -> Request {
    let mut request = base.clone();
    change(&mut request);
    request
}

/// Returns a request for an ext4 volume that may be on the controller's node, or elsewhere.
fn filesystem(name: &str) -> Request {
    with(&create(name, 200 * MIB), |request| {
        request.volume_capabilities = vec![mount("ext4", Mode::SingleNodeWriter)];
        request.accessibility_requirements = requisite(&["elsewhere", NODE]);
    })
}

#[tokio::test]
async fn a_name_that_comes_again_with_what_the_volume_fulfils_finds_it() {
    let bed = Bed::new(&["--overcommit", "1000", "--with-topology"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let first = filesystem("pvc-1");
    let volume = created(&mut client, first.clone()).await;
    assert_eq!(volume.accessible_topology, [place(NODE)]);
    let multi_writer = vec![mount("ext4", Mode::SingleNodeMultiWriter)];
    for request in [
        first.clone(),
        with(&first, |request| {
            request.capacity_range = range(100 * MIB, 0)
        }),
        with(&first, |request| {
            request.capacity_range = range(0, 300 * MIB)
        }),
        with(&first, |request| request.volume_capabilities = multi_writer),
        with(&first, |request| request.accessibility_requirements = None),
    ] {
        assert_eq!(created(&mut client, request).await, volume);
    }
}

#[tokio::test]
async fn a_name_that_comes_again_with_anything_else_is_told_all_differences() {
    let bed = Bed::new(&["--overcommit", "1000", "--with-topology"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let first = filesystem("pvc-1");
    created(&mut client, first.clone()).await;
    let xfs = vec![mount("xfs", Mode::SingleNodeWriter)];
    let elsewhere = with(&first, |request| {
        request.accessibility_requirements = requisite(&["elsewhere"]);
    });
    let larger_xfs = with(&first, |request| {
        request.volume_capabilities = xfs;
        request.capacity_range = range(400 * MIB, 0);
    });
    for (request, names) in [
        (
            with(&first, |request| {
                request.capacity_range = range(201 * MIB, 0)
            }),
            ["200 MiB", "201 MiB"],
        ),
        (
            with(&first, |request| {
                request.capacity_range = range(MIB, 199 * MIB)
            }),
            ["200 MiB", "199 MiB"],
        ),
        (
            with(&first, |request| {
                request.volume_capabilities = vec![bed::block()]
            }),
            ["ext4", "raw block"],
        ),
        (larger_xfs, ["400 MiB", "xfs"]),
        (
            elsewhere.clone(),
            ["pvc-1", "outside the requested topology"],
        ),
    ] {
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, Code::AlreadyExists, &names);
    }
    let nowhere = with(&elsewhere, |request| request.name = "pvc-2".to_owned());
    let refused = client.create_volume(nowhere).await.unwrap_err();
    let names = ["accessibility_requirements", NODE];
    assert_refused(&refused, Code::ResourceExhausted, &names);
}

#[tokio::test]
async fn what_no_volume_can_be_is_refused_by_the_name_of_the_field() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let fine = create("pvc-1", 400 * MIB);
    let parameter = |key: &str| HashMap::from([(key.to_owned(), "1".to_owned())]);
    let formatted = |key: &str, value: &str| {
        with(&fine, |request| {
            request.parameters = HashMap::from([(key.to_owned(), value.to_owned())]);
            request.volume_capabilities = vec![mount("", Mode::SingleNodeWriter)];
        })
    };
    let capable = |capability| {
        with(&fine, |request| {
            request.volume_capabilities = vec![capability]
        })
    };
    for (request, name) in [
        (
            with(&fine, |request| request.parameters = parameter("typ")),
            "\"typ\"",
        ),
        (
            with(&fine, |request| {
                request.mutable_parameters = parameter("iops")
            }),
            "mutable_parameters",
        ),
        (
            formatted("blockSize", "8192"),
            "parameters[blockSize]: must",
        ),
        (formatted("btrfsNodeSize", "4096"), "does not apply to ext4"),
        (formatted("numberOfInodes", "102401"), "at most 102400"),
        (capable(mount("vfat", Mode::SingleNodeWriter)), "vfat"),
        (
            capable(mount("", Mode::MultiNodeMultiWriter)),
            "MULTI_NODE_MULTI_WRITER",
        ),
        (
            capable(mount("", Mode::MultiNodeReaderOnly)),
            "volume_capabilities[0]",
        ),
    ] {
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, Code::InvalidArgument, &[name]);
    }
    for (asked, names) in [
        (range(MIB + 1, 2 * MIB - 1), ["2097151 bytes", "2 MiB"]),
        (range(i64::MAX, 0), ["8 EiB", "the largest"]),
    ] {
        let request = with(&fine, |request| request.capacity_range = asked);
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, Code::OutOfRange, &names);
    }
    // Keys that the provisioner adds are not keys of the driver.
    let own = parameter("csi.storage.k8s.io/pvc/name");
    created(&mut client, with(&fine, |request| request.parameters = own)).await;
}

/// The node formats the volume, so it gets the options; a raw volume has none.
#[tokio::test]
async fn how_to_format_a_volume_is_in_its_context() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let options = [("blockSize", "1024"), ("bytesPerInode", "65536")];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let options = HashMap::from(options);
    for (capability, expected) in [
        (mount("", Mode::SingleNodeWriter), options.clone()),
        (block(), HashMap::new()),
    ] {
        let request = with(&create("pvc-1", 400 * MIB), |request| {
            request.parameters.clone_from(&options);
            request.volume_capabilities = vec![capability.clone()];
        });
        for _ in 0..2 {
            let volume = created(&mut client, request.clone()).await;
            assert_eq!(volume.volume_context, expected);
            let asked = csi::ValidateVolumeCapabilitiesRequest {
                volume_id: volume.volume_id.clone(),
                volume_context: volume.volume_context,
                volume_capabilities: vec![capability.clone()],
                parameters: options.clone(),
                ..Default::default()
            };
            let answer = client.validate_volume_capabilities(asked).await.unwrap();
            assert!(answer.into_inner().confirmed.is_some());
        }
        let found = created(&mut client, request).await.volume_id;
        let request = csi::DeleteVolumeRequest {
            volume_id: found,
            ..Default::default()
        };
        client.delete_volume(request).await.unwrap();
    }
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
