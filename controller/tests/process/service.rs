//! The controller through its socket: codes and responses.

use crate::bed::{
    self, Bed, Client, MIB, NODE, ROOMY, assert_refused, create, created, mount, one_volume, place,
    publish, range, unpublish,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use csi::controller_service_capability::Type;
use csi::controller_service_capability::rpc::Type as Call;
use csi::identity_client::IdentityClient;
use csi::volume_capability::access_mode::Mode;
use std::collections::{HashMap, HashSet};
use tonic::Code;

fn validate(
    id: &str,
    capabilities: Vec<csi::VolumeCapability>,
) -> csi::ValidateVolumeCapabilitiesRequest {
    csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: capabilities,
        ..Default::default()
    }
}

async fn found(
    client: &mut Client,
    id: &str,
) -> Result<csi::ControllerGetVolumeResponse, tonic::Status> {
    let request = requests::get(id);
    Ok(client.controller_get_volume(request).await?.into_inner())
}

#[tokio::test]
async fn the_node_is_told_all_it_needs_as_often_as_it_asks() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let volume = created(&mut client, create("pvc-1", 5 * MIB)).await;
    assert_eq!(volume.capacity_bytes, 5 * MIB);
    assert!(volume.accessible_topology.is_empty() && volume.volume_context.is_empty());
    let id = volume.volume_id.as_str();
    let expected = [
        ("transport", "loop"),
        ("file", id),
        ("bytes", "5242880"),
        ("content", "new"),
    ];
    let expected = HashMap::from(expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    for _ in 0..2 {
        let published = client.controller_publish_volume(publish(id)).await.unwrap();
        assert_eq!(published.into_inner().publish_context, expected);
    }
}

#[tokio::test]
async fn a_volume_grows_while_it_is_attached() {
    let (_bed, _controller, mut client, id) = one_volume(5 * MIB).await;
    client
        .controller_publish_volume(publish(&id))
        .await
        .unwrap();
    let expand = |id: &str, asked| csi::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: asked,
        ..Default::default()
    };
    for asked in [
        range(6 * MIB - 1, 0),
        range(6 * MIB, 6 * MIB),
        range(MIB, 0),
    ] {
        let expanded = client
            .controller_expand_volume(expand(&id, asked))
            .await
            .unwrap();
        let expanded = expanded.into_inner();
        assert_eq!(expanded.capacity_bytes, 6 * MIB);
        assert!(expanded.node_expansion_required);
    }
    for (id, asked, code) in [
        (id.as_str(), range(MIB, 2 * MIB), Code::OutOfRange),
        ("vol-0", range(MIB, 0), Code::NotFound),
    ] {
        let refused = client
            .controller_expand_volume(expand(id, asked))
            .await
            .unwrap_err();
        assert_refused(&refused, code, &[]);
    }
    let found = found(&mut client, &id).await.unwrap();
    assert_eq!(found.volume.unwrap().capacity_bytes, 6 * MIB);
    assert_eq!(found.status.unwrap().published_node_ids, [NODE]);
}

#[tokio::test]
async fn a_volume_goes_once_it_is_detached_and_stays_gone() {
    let (_bed, _controller, mut client, id) = one_volume(MIB).await;
    client
        .controller_publish_volume(publish(&id))
        .await
        .unwrap();
    let delete = requests::delete(&id);
    let refused = client.delete_volume(delete.clone()).await.unwrap_err();
    assert_refused(&refused, Code::FailedPrecondition, &[&id, NODE]);
    // Without a node, the call is for all nodes.
    for _ in 0..2 {
        client
            .controller_unpublish_volume(unpublish(&id, ""))
            .await
            .unwrap();
    }
    for _ in 0..2 {
        client.delete_volume(delete.clone()).await.unwrap();
    }
    client
        .controller_unpublish_volume(unpublish(&id, ""))
        .await
        .unwrap();
    let gone = found(&mut client, &id).await.unwrap_err();
    assert_refused(&gone, Code::NotFound, &[&id]);
}

#[tokio::test]
async fn attaching_differently_elsewhere_or_too_often_is_refused() {
    let bed = Bed::new(&["--overcommit", "1000", "--max-volumes", "1"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let first = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    let second = created(&mut client, create("pvc-2", MIB)).await.volume_id;
    client
        .controller_publish_volume(publish(&first))
        .await
        .unwrap();
    let read_only = csi::ControllerPublishVolumeRequest {
        readonly: true,
        ..publish(&first)
    };
    let as_mount = csi::ControllerPublishVolumeRequest {
        volume_capability: Some(mount("", Mode::SingleNodeWriter)),
        ..publish(&first)
    };
    let multi = csi::ControllerPublishVolumeRequest {
        volume_capability: Some(mount("", Mode::MultiNodeSingleWriter)),
        ..publish(&first)
    };
    let elsewhere = csi::ControllerPublishVolumeRequest {
        node_id: "node-2".to_owned(),
        ..publish(&first)
    };
    for (request, code, names) in [
        (read_only.clone(), Code::AlreadyExists, "read-only"),
        (as_mount, Code::AlreadyExists, "mount"),
        (multi, Code::InvalidArgument, "MULTI_NODE_SINGLE_WRITER"),
        (elsewhere, Code::NotFound, "node-2"),
        (publish("vol-0"), Code::NotFound, "vol-0"),
        (publish(&second), Code::ResourceExhausted, "--max-volumes"),
    ] {
        let refused = client.controller_publish_volume(request).await.unwrap_err();
        assert_refused(&refused, code, &[names]);
    }
    for (id, node) in [
        (first.as_str(), "node-2"),
        ("vol-0", NODE),
        (first.as_str(), NODE),
    ] {
        client
            .controller_unpublish_volume(unpublish(id, node))
            .await
            .unwrap();
    }
    let answer = client
        .controller_publish_volume(read_only)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        answer.publish_context.get("read_only").map(String::as_str),
        Some("true")
    );
}

#[tokio::test]
async fn validation_says_no_without_failing_and_yes_with_what_was_asked() {
    let (_bed, _controller, mut client, id) = one_volume(128 * MIB).await;
    let fine = vec![bed::block(), bed::block()];
    let provisioner = "storage.kubernetes.io/csiProvisionerIdentity".to_owned();
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_context: HashMap::from([(provisioner, "1".to_owned())]),
        ..validate(&id, fine.clone())
    };
    let yes = client
        .validate_volume_capabilities(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(yes.confirmed.unwrap().volume_capabilities, fine);
    for (capability, why) in [
        (
            mount("", Mode::MultiNodeMultiWriter),
            "MULTI_NODE_MULTI_WRITER",
        ),
        (mount("vfat", Mode::SingleNodeWriter), "vfat"),
        (mount("xfs", Mode::SingleNodeWriter), "raw block"),
        (mount("", Mode::SingleNodeWriter), "any filesystem"),
        (mount("btrfs", Mode::SingleNodeWriter), "raw block"),
    ] {
        let request = validate(&id, vec![bed::block(), capability]);
        let no = client
            .validate_volume_capabilities(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(no.confirmed, None);
        assert!(
            no.message.contains(why) && no.message.contains("[1]"),
            "{}",
            no.message
        );
    }
    let request = validate("vol-0", fine);
    let refused = client
        .validate_volume_capabilities(request)
        .await
        .unwrap_err();
    assert_refused(&refused, Code::NotFound, &["vol-0"]);
}

#[tokio::test]
async fn validation_confirms_only_what_the_volume_was_made_for() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let mount = |fs_type| mount(fs_type, Mode::SingleNodeWriter);
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![mount("ext4")],
        ..create("pvc-1", 128 * MIB)
    };
    let ext4 = created(&mut client, request).await.volume_id;
    let export = HashMap::from([("export".to_owned(), "/wrong".to_owned())]);
    let foreign = csi::ValidateVolumeCapabilitiesRequest {
        volume_context: export,
        ..validate(&ext4, vec![mount("ext4")])
    };
    for (request, why) in [
        (foreign, Some("volume_context: \"export\"")),
        (
            validate(&ext4, vec![mount("ext4"), mount("xfs")]),
            Some("[1]"),
        ),
        (validate(&ext4, vec![bed::block()]), Some("ext4")),
        (validate(&ext4, vec![mount("ext4"), mount("")]), None),
    ] {
        let answer = client.validate_volume_capabilities(request).await.unwrap();
        let answer = answer.into_inner();
        assert_eq!(answer.confirmed.is_none(), why.is_some());
        assert!(
            answer.message.contains(why.unwrap_or_default()),
            "{}",
            answer.message
        );
    }
}

#[tokio::test]
async fn a_start_reports_a_truncated_file_and_leaves_it_as_it_is() {
    let (bed, mut controller, _, id) = one_volume(5 * MIB).await;
    controller.kill();
    let path = bed.volumes_dir().join(&id);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(4096).unwrap();
    let controller = bed.start();
    let reported = controller.starting.iter().any(|line| {
        ["ERROR", &id, "has 4 KiB of 5 MiB"]
            .iter()
            .all(|word| line.contains(word))
    });
    assert!(reported, "{:?}", controller.starting);
    assert_eq!(file.metadata().unwrap().len(), 4096);
}

#[tokio::test]
async fn a_state_that_cannot_be_written_is_told_and_used_again_once_it_can() {
    let bed = Bed::new(&ROOMY);
    let controller = bed.start();
    let mut client = bed.client().await;
    let mut identity = IdentityClient::new(bed.channel().await);
    let id = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    controller.limit_files("4096");
    for _ in 0..2 {
        let refused = client.controller_publish_volume(publish(&id)).await;
        let refused = refused.unwrap_err();
        assert_refused(&refused, Code::Unavailable, &["state.redb"]);
        let unready = identity.probe(csi::ProbeRequest {}).await.unwrap_err();
        assert_refused(&unready, Code::FailedPrecondition, &["state.redb"]);
    }
    controller.limit_files("unlimited");
    client
        .controller_publish_volume(publish(&id))
        .await
        .unwrap();
    let probed = identity.probe(csi::ProbeRequest {}).await.unwrap();
    assert_eq!(probed.into_inner().ready, Some(true));
    created(&mut client, create("pvc-2", MIB)).await;
}

#[tokio::test]
async fn pages_cover_all_volumes_once_with_their_nodes() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let mut expected = HashSet::new();
    for n in 0..7 {
        let volume = created(&mut client, create(&format!("pvc-{n}"), MIB)).await;
        expected.insert(volume.volume_id);
    }
    let attached = expected.iter().next().unwrap().clone();
    client
        .controller_publish_volume(publish(&attached))
        .await
        .unwrap();
    let (mut seen, mut token) = (HashSet::new(), String::new());
    loop {
        let request = csi::ListVolumesRequest {
            max_entries: 3,
            starting_token: token.clone(),
        };
        let page = client.list_volumes(request).await.unwrap().into_inner();
        assert!(page.entries.len() <= 3);
        for entry in page.entries {
            let (volume, status) = (entry.volume.unwrap(), entry.status.unwrap());
            let here: &[&str] = if volume.volume_id == attached {
                &[NODE]
            } else {
                &[]
            };
            assert_eq!(status.published_node_ids, here);
            assert!(seen.insert(volume.volume_id));
        }
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, expected);
    let request = csi::ListVolumesRequest {
        max_entries: 3,
        starting_token: "not ours".to_owned(),
    };
    let refused = client.list_volumes(request).await.unwrap_err();
    assert_refused(&refused, Code::Aborted, &["starting_token", "not ours"]);
}

#[tokio::test]
async fn capacity_shrinks_with_every_promise_and_is_none_elsewhere() {
    let bed = Bed::new(&["--with-topology"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let everywhere = csi::GetCapacityRequest::default();
    let before = client
        .get_capacity(everywhere.clone())
        .await
        .unwrap()
        .into_inner();
    let promised = (before.available_capacity / 2 / MIB * MIB).min(1 << 40);
    created(&mut client, create("pvc-1", promised)).await;
    let after = client.get_capacity(everywhere).await.unwrap().into_inner();
    // Other processes write to the same filesystem meanwhile.
    assert!(after.available_capacity < before.available_capacity - promised / 2);
    assert_eq!(after.minimum_volume_size, Some(MIB));

    let with = |capability, node| csi::GetCapacityRequest {
        volume_capabilities: vec![capability],
        accessible_topology: Some(place(node)),
        ..Default::default()
    };
    let single = Mode::SingleNodeWriter;
    let typo = csi::GetCapacityRequest {
        parameters: HashMap::from([("tpye".to_owned(), "ssd".to_owned())]),
        ..with(mount("", single), NODE)
    };
    for (request, smallest) in [
        (typo, 0),
        (with(mount("xfs", single), NODE), 300 * MIB),
        (with(mount("btrfs", single), NODE), 256 * MIB),
        (with(mount("", single), NODE), 128 * MIB),
        (with(mount("", single), "elsewhere"), 0),
        (with(mount("", Mode::MultiNodeMultiWriter), NODE), 0),
    ] {
        let room = client.get_capacity(request).await.unwrap().into_inner();
        assert_eq!(room.minimum_volume_size, Some(smallest));
        assert_eq!(room.available_capacity > 0, smallest > 0);
    }
}

#[tokio::test]
async fn every_advertised_call_exists_and_no_other() {
    let bed = Bed::new(&[]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let request = csi::ControllerGetCapabilitiesRequest {};
    let answer = client
        .controller_get_capabilities(request)
        .await
        .unwrap()
        .into_inner();
    let advertised: HashSet<Call> = answer
        .capabilities
        .into_iter()
        .map(|capability| match capability.r#type.unwrap() {
            Type::Rpc(rpc) => rpc.r#type(),
        })
        .collect();
    let expected = [
        Call::CreateDeleteVolume,
        Call::PublishUnpublishVolume,
        Call::PublishReadonly,
        Call::ListVolumes,
        Call::ListVolumesPublishedNodes,
        Call::GetVolume,
        Call::GetCapacity,
        Call::ExpandVolume,
        Call::SingleNodeMultiWriter,
        Call::CreateDeleteSnapshot,
        Call::ListSnapshots,
        Call::GetSnapshot,
        Call::CloneVolume,
        Call::GetVolumeHealth,
        Call::ListVolumeHealth,
        Call::VolumeCondition,
    ];
    assert_eq!(advertised, HashSet::from(expected));
    let modify = csi::ControllerModifyVolumeRequest::default();
    let absent = client.controller_modify_volume(modify).await.unwrap_err();
    assert_eq!(absent.code(), Code::Unimplemented);
}
