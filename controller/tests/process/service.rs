//! The controller through its socket: codes and responses.

use crate::bed::{
    Bed, Client, MIB, NODE, ROOMY, assert_refused, block, create, created, mount, one_volume,
    place, range,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use csi::controller_service_capability::Type;
use csi::controller_service_capability::rpc::Type as Call;
use csi::identity_client::IdentityClient;
use csi::volume_capability::access_mode::Mode;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
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

/// Returns the extended attribute of a file.
fn attribute(file: &Path, name: &str) -> String {
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(file, name, &mut value).unwrap();
    String::from_utf8_lossy(&value[..length]).into_owned()
}

async fn found(
    client: &mut Client,
    id: &str,
) -> Result<csi::ControllerGetVolumeResponse, tonic::Status> {
    let request = requests::get(id);
    Ok(client.controller_get_volume(request).await?.into_inner())
}

#[tokio::test]
async fn the_node_finds_all_it_needs_on_the_file() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let volume = created(&mut client, create("pvc-1", 5 * MIB)).await;
    assert_eq!(volume.capacity_bytes, 5 * MIB);
    assert!(volume.accessible_topology.is_empty() && volume.volume_context.is_empty());
    let file = bed.volumes_dir().join(&volume.volume_id);
    let mut names = [0; 256];
    let length = rustix::fs::listxattr(&file, &mut names).unwrap();
    let names = std::str::from_utf8(&names[..length]).unwrap();
    let names = names
        .split_terminator('\0')
        .filter(|name| name.starts_with("user."));
    assert_eq!(
        names.collect::<HashSet<_>>(),
        HashSet::from(["user.belay.new", "user.belay.bytes"])
    );
    for (name, expected) in [("user.belay.new", "1"), ("user.belay.bytes", "5242880")] {
        assert_eq!(attribute(&file, name), expected);
    }
}

#[tokio::test]
async fn a_volume_grows_while_a_device_has_its_file() {
    let (bed, _controller, mut client, id) = one_volume(5 * MIB).await;
    let file = bed.volumes_dir().join(&id);
    let device = File::open(&file).unwrap();
    device.try_lock().unwrap();
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
    assert_eq!(attribute(&file, "user.belay.bytes"), "6291456");
}

#[tokio::test]
async fn a_deleted_volume_stays_gone() {
    let (_bed, _controller, mut client, id) = one_volume(MIB).await;
    let delete = requests::delete(&id);
    for _ in 0..2 {
        client.delete_volume(delete.clone()).await.unwrap();
    }
    let gone = found(&mut client, &id).await.unwrap_err();
    assert_refused(&gone, Code::NotFound, &[&id]);
}

#[tokio::test]
async fn validation_says_no_without_failing_and_yes_with_what_was_asked() {
    let (_bed, _controller, mut client, id) = one_volume(128 * MIB).await;
    let fine = vec![block(), block()];
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
        let request = validate(&id, vec![block(), capability]);
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
        (validate(&ext4, vec![block()]), Some("ext4")),
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
        let grow = requests::grow(&id, 2 * MIB);
        let refused = client.controller_expand_volume(grow).await.unwrap_err();
        assert_refused(&refused, Code::Unavailable, &["state.redb"]);
        let unready = identity.probe(csi::ProbeRequest {}).await.unwrap_err();
        assert_refused(&unready, Code::FailedPrecondition, &["state.redb"]);
    }
    controller.limit_files("unlimited");
    let grow = requests::grow(&id, 2 * MIB);
    client.controller_expand_volume(grow).await.unwrap();
    let probed = identity.probe(csi::ProbeRequest {}).await.unwrap();
    assert_eq!(probed.into_inner().ready, Some(true));
    created(&mut client, create("pvc-2", MIB)).await;
}

#[tokio::test]
async fn pages_cover_all_volumes_once() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let mut expected = HashSet::new();
    for n in 0..7 {
        let volume = created(&mut client, create(&format!("pvc-{n}"), MIB)).await;
        expected.insert(volume.volume_id);
    }
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
            assert_eq!(status.published_node_ids, [""; 0]);
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
        Call::ListVolumes,
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
    let attach = requests::attach("vol-0", NODE, block());
    let detach = requests::detach("vol-0", NODE);
    for absent in [
        client.controller_modify_volume(modify).await.map(drop),
        client.controller_publish_volume(attach).await.map(drop),
        client.controller_unpublish_volume(detach).await.map(drop),
    ] {
        assert_eq!(absent.unwrap_err().code(), Code::Unimplemented);
    }
}
