//! Volumes of a multiattach type on several real servers at once, and no others.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use belay_bed::requests;
use belay_openstack::Cloud;
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use crate::site::{Client, GIB, Site, assert_refused, deleted, detached, opened, unique};

const MANY: Mode = Mode::MultiNodeMultiWriter;

/// 1 GiB of that type in the first zone, with that capability.
fn order(name: &str, kind: &str, capability: csi::VolumeCapability) -> csi::CreateVolumeRequest {
    let parameters = [("type", kind), ("availability", "az-a")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    csi::CreateVolumeRequest {
        capacity_range: requests::range(GIB, GIB),
        parameters: HashMap::from(parameters),
        ..requests::create(name, capability, None)
    }
}

/// The ID of a raw volume.
async fn made(client: &mut Client, kind: &str, mode: Mode) -> Result<String, Status> {
    let order = order(&unique("shared"), kind, requests::capability("block", mode));
    let answer = client.create_volume(order).await?;
    Ok(answer.into_inner().volume.unwrap().volume_id)
}

/// Attaches as the attacher does, which repeats a call that was ABORTED.
async fn attached(
    client: &mut Client,
    id: &str,
    node: &str,
    fs: &str,
    mode: Mode,
) -> Result<(), Status> {
    let capability = requests::capability(fs, mode);
    loop {
        let request = requests::attach(id, node, capability.clone());
        match client.controller_publish_volume(request).await {
            Err(status) if status.code() == Code::Aborted => {}
            answer => return answer.map(drop),
        }
    }
}

async fn is_confirmed(client: &mut Client, id: &str, fs: &str, mode: Mode) -> bool {
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![requests::capability(fs, mode)],
        ..csi::ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = client.validate_volume_capabilities(request).await;
    answer.unwrap().into_inner().confirmed.is_some()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn servers_share_a_raw_volume_of_a_multiattach_type_and_each_is_detached_alone() {
    let (bed, cloud) = opened();
    let servers = [(); 3].map(|()| cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = made(client, "multi", MANY).await.unwrap();
    assert!(is_confirmed(client, &id, "block", MANY).await);
    assert!(!is_confirmed(client, &id, "ext4", MANY).await);
    for server in &servers {
        attached(client, &id, &server.id, "block", MANY)
            .await
            .unwrap();
        attached(client, &id, &server.id, "block", MANY)
            .await
            .unwrap();
    }
    let mut nodes: Vec<_> = servers.iter().map(|server| server.id.clone()).collect();
    let on = |cloud: &Cloud| {
        let mut on = cloud.volume(&id).unwrap().servers;
        on.sort();
        on
    };
    nodes.sort();
    assert_eq!(on(&cloud), nodes);
    // One disk: what a server writes, another one reads.
    let disk = |n: usize| bed.disks(&servers[n].id).remove(0);
    write(&disk(0), b"from the first");
    assert_eq!(read(&disk(2), 14), b"from the first");

    // A filesystem and a single node are refused next to them, and change nothing.
    let fourth = cloud.server("az-a");
    let refused = attached(client, &id, &fourth.id, "ext4", MANY).await;
    assert_refused(refused, Code::FailedPrecondition, "filesystem");
    let refused = attached(client, &id, &fourth.id, "block", Mode::SingleNodeWriter).await;
    assert_refused(refused, Code::FailedPrecondition, "attached to node");
    assert_eq!(on(&cloud), nodes);

    detached(client, &id, &servers[1].id).await;
    assert!(bed.disks(&servers[1].id).is_empty());
    nodes.retain(|node| *node != servers[1].id);
    assert_eq!(on(&cloud), nodes);
    write(&disk(0), b"still the same");
    assert_eq!(read(&disk(2), 14), b"still the same");
    let refused = client.delete_volume(requests::delete(&id)).await;
    let by_servers = format!("volume {id}: attached to node {}", nodes.join(", "));
    assert_refused(refused, Code::FailedPrecondition, &by_servers);
    // All at once, as after a node is lost.
    let everywhere = requests::detach(&id, "");
    client
        .controller_unpublish_volume(everywhere)
        .await
        .unwrap();
    assert!(on(&cloud).is_empty());
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn other_types_and_other_calls_have_one_server_at_a_time() {
    let (bed, cloud) = opened();
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    // Refused before anything is made.
    let name = unique("refused");
    let block = requests::capability("block", MANY);
    let refused = client.create_volume(order(&name, "file-a", block)).await;
    assert_refused(refused, Code::InvalidArgument, "\"file-a\"");
    let mount = requests::capability("ext4", MANY);
    let refused = client.create_volume(order(&name, "multi", mount)).await;
    assert_refused(refused, Code::InvalidArgument, "filesystem");
    assert!(cloud.volumes(Some(&name)).is_empty());

    let alone = Mode::SingleNodeWriter;
    for (kind, first, second) in [
        ("multi", alone, alone),
        ("multi", MANY, alone),
        ("multi", alone, MANY),
        ("file-a", alone, MANY),
    ] {
        let mode = if kind == "multi" { first } else { alone };
        let id = made(client, kind, mode).await.unwrap();
        attached(client, &id, &here.id, "block", first)
            .await
            .unwrap();
        let refused = attached(client, &id, &there.id, "block", second).await;
        assert_refused(refused, Code::FailedPrecondition, &here.id);
        assert_eq!(cloud.volume(&id).unwrap().servers, [here.id.as_str()]);
        detached(client, &id, &here.id).await;
        attached(client, &id, &there.id, "block", second)
            .await
            .unwrap();
        detached(client, &id, &there.id).await;
        deleted(client, &id).await;
    }
}

/// Writes to the begin of a disk, past the page cache.
fn write(disk: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(disk).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Reads the begin of a disk, after its cached pages were dropped: each loop device has its own.
fn read(disk: &Path, count: usize) -> Vec<u8> {
    let device = fs::canonicalize(disk).unwrap();
    let flush = std::process::Command::new("blockdev")
        .arg("--flushbufs")
        .arg(&device)
        .status();
    assert!(flush.unwrap().success());
    let mut bytes = vec![0; count];
    fs::File::open(device)
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    bytes
}
