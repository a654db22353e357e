//! Snapshots, restores and clones on the real services, with their data compared.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::Duration;

use belay_bed::requests;
use belay_contract::publish_context::Content;
use belay_openstack::{Bed, Cloud, Server};
use belay_proto::csi::v1 as csi;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::lifecycle::read;
use crate::site::{
    Client, GIB, Site, assert_refused, attached, create, created, deleted, detached, opened, run,
    unique,
};

/// Bytes of a pattern.
const BYTES: usize = 4 << 20;
/// Offsets of the patterns, in bytes: at both ends of a volume of 1 GiB.
const PLACES: [u64; 2] = [0, (1 << 30) - (BYTES as u64)];

pub(crate) async fn cut(
    client: &mut Client,
    name: &str,
    of: &str,
) -> Result<csi::Snapshot, Status> {
    let answer = client.create_snapshot(requests::cut(name, of)).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

pub(crate) async fn discarded(client: &mut Client, id: &str) {
    client.delete_snapshot(requests::discard(id)).await.unwrap();
}

/// A request for a volume of so many GiB from that source.
pub(crate) fn copy(gib: i64, source: csi::volume_content_source::Type) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(source),
        }),
        ..create(&unique("copy"), gib)
    }
}

pub(crate) async fn listed(client: &mut Client, of: &str) -> Vec<String> {
    let (mut ids, mut starting_token) = (Vec::new(), String::new());
    loop {
        let request = csi::ListSnapshotsRequest {
            max_entries: 1,
            source_volume_id: of.to_owned(),
            starting_token,
            ..Default::default()
        };
        let page = client.list_snapshots(request).await.unwrap().into_inner();
        let snapshots = page.entries.into_iter().map(|entry| entry.snapshot);
        ids.extend(snapshots.map(|snapshot| snapshot.unwrap().snapshot_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return ids;
        }
    }
}

/// The only disk of a server, opened.
fn disk(bed: &Bed, server: &Server, is_written: bool) -> File {
    let disks = bed.disks(&server.id);
    assert_eq!(disks.len(), 1, "{disks:?}");
    let file = File::options().read(true).write(is_written).open(&disks[0]);
    file.unwrap()
}

/// Random bytes.
pub(crate) fn pattern() -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    bytes
}

pub(crate) fn write(bed: &Bed, server: &Server, bytes: &[u8]) {
    let disk = disk(bed, server, true);
    for place in PLACES {
        disk.write_all_at(bytes, place).unwrap();
    }
    disk.sync_all().unwrap();
}

/// Returns the content of both offsets in the storage, which must be the same.
pub(crate) fn content(bed: &Bed, server: &Server) -> Vec<u8> {
    let device = bed.disks(&server.id).remove(0).canonicalize().unwrap();
    // Not what this machine has cached of the disk.
    run(Command::new("blockdev").arg("--flushbufs").arg(device));
    let disk = disk(bed, server, false);
    let [first, last] = PLACES.map(|place| {
        let mut bytes = vec![0; BYTES];
        disk.read_exact_at(&mut bytes, place).unwrap();
        bytes
    });
    assert!(first == last, "the places differ");
    first
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_snapshot_of_a_volume_in_use_and_a_clone_have_the_data_of_their_instant() {
    let (bed, cloud) = opened();
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let of = created(client, &unique("source")).await.volume_id;
    attached(client, &of, &here.id).await;
    let (before, after) = (pattern(), pattern());
    write(&bed, &here, &before);
    let name = unique("snap");
    let snapshot = cut(client, &name, &of).await.unwrap();
    assert!(snapshot.ready_to_use && snapshot.size_bytes == GIB);
    assert_eq!(snapshot.source_volume_id, of);
    write(&bed, &here, &after);
    let id = &snapshot.snapshot_id;
    assert_eq!(cut(client, &name, &of).await.unwrap(), snapshot, "the same");
    let other = created(client, &unique("other")).await.volume_id;
    let another = cut(client, &name, &other).await;
    assert_refused(another, Code::AlreadyExists, id);
    let second = cut(client, &unique("snap"), &of).await.unwrap().snapshot_id;
    let mut all = listed(client, &of).await;
    all.sort();
    let mut expected = [id.clone(), second.clone()];
    expected.sort();
    assert_eq!(all, expected);
    assert!(listed(client, &other).await.is_empty());

    let small = csi::CreateVolumeRequest {
        capacity_range: requests::range(1, GIB / 2),
        ..copy(1, requests::of_snapshot(id))
    };
    assert_refused(client.create_volume(small).await, Code::OutOfRange, "");
    for (request, data, gib) in [
        (copy(2, requests::of_snapshot(id)), &before, 2),
        (copy(1, requests::of_volume(&of)), &after, 1),
    ] {
        let source = request.volume_content_source.clone();
        let answer = client.create_volume(request).await.unwrap().into_inner();
        let volume = answer.volume.unwrap();
        assert_eq!(volume.capacity_bytes, gib * GIB);
        assert_eq!(volume.content_source, source);
        let copy = &volume.volume_id;
        let plan = read(copy, attached(client, copy, &there.id).await);
        assert_eq!(plan.content, Content::Populated);
        assert_eq!(plan.bytes, (gib * GIB).unsigned_abs());
        assert!(content(&bed, &there) == *data, "other data: {source:?}");
        detached(client, copy, &there.id).await;
        deleted(client, copy).await;
    }
    assert!(content(&bed, &here) == after, "the source has changed");
    detached(client, &of, &here.id).await;
    // Cinder keeps a volume that has snapshots.
    let kept = client.delete_volume(requests::delete(&of)).await;
    let by_snapshots = format!("volume {of}: has snapshots, such as ");
    assert_refused(kept, Code::FailedPrecondition, &by_snapshots);
    for id in [id, &second, &second] {
        discarded(client, id).await;
    }
    assert!(listed(client, &of).await.is_empty());
    for volume in [&of, &other] {
        deleted(client, volume).await;
    }
}

/// The IDs of all snapshots of a name, as Cinder shows them.
pub(crate) fn named(cloud: &Cloud, name: &str) -> Vec<Value> {
    let path = format!("/snapshots/detail?name={name}");
    let body = cloud.expect(200, "volumev3", ("GET", &path), &Value::Null);
    body["snapshots"].as_array().unwrap().clone()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_snapshot_that_fails_is_deleted_and_one_whose_answer_is_lost_is_found() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let of = created(client, &unique("source")).await.volume_id;
    let name = unique("fails");
    let faults = bed.faults();
    faults.set("create_snapshot", &json!({"fail": true, "once": true}));
    let failed = cut(client, &name, &of).await;
    assert_refused(failed, Code::Internal, "status error");
    assert_eq!(named(&cloud, &name), [] as [Value; 0]);
    let fronts = bed.fronts();
    for action in ["cut_after", "twice"] {
        let rule = json!({"action": action, "service": "cinder", "method": "POST",
                          "path": "/snapshots$", "times": 1});
        fronts.obey(&json!([rule]));
        let name = unique(action);
        let snapshot = cut(client, &name, &of).await.unwrap().snapshot_id;
        assert_eq!(fronts.applied(), [1], "{action}");
        let again = cut(client, &name, &of).await.unwrap().snapshot_id;
        assert_eq!(again, snapshot, "{action}");
        for shown in named(&cloud, &name) {
            discarded(client, shown["id"].as_str().unwrap()).await;
        }
    }
    deleted(client, &of).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_slow_snapshot_does_not_keep_its_volume_from_being_detached() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let of = created(client, &unique("source")).await.volume_id;
    attached(client, &of, &server.id).await;
    let faults = bed.faults();
    faults.set("create_snapshot", &json!({"delay": 8, "once": true}));
    let mut other = site.client().await;
    let name = unique("slow");
    let (snapshot, ()) = tokio::join!(cut(client, &name, &of), async {
        while faults.is_set("create_snapshot") {
            sleep(Duration::from_millis(100)).await;
        }
        detached(&mut other, &of, &server.id).await;
        let shown = named(&cloud, &name);
        assert_eq!(shown[0]["status"], "creating", "{shown:?}");
    });
    discarded(client, &snapshot.unwrap().snapshot_id).await;
    deleted(client, &of).await;
}

/// A claim of the cluster's names, as the sidecars pass them.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn volumes_and_snapshots_have_the_names_of_the_clusters_objects() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let mut request = create(&unique("named"), 1);
    let (claim, object) = (
        "csi.storage.k8s.io/pvc/name",
        "csi.storage.k8s.io/volumesnapshot/name",
    );
    request
        .parameters
        .insert(claim.to_owned(), "data-0".to_owned());
    let volume = client.create_volume(request).await.unwrap().into_inner();
    let of = volume.volume.unwrap().volume_id;
    let mut request = requests::cut(&unique("named"), &of);
    request
        .parameters
        .insert(object.to_owned(), "nightly".to_owned());
    let snapshot = client.create_snapshot(request).await.unwrap().into_inner();
    let id = snapshot.snapshot.unwrap().snapshot_id;
    for (path, label, value) in [
        (format!("/volumes/{of}/metadata"), claim, "data-0"),
        (format!("/snapshots/{id}/metadata"), object, "nightly"),
    ] {
        let shown = cloud.expect(200, "volumev3", ("GET", &path), &Value::Null);
        assert_eq!(shown["metadata"][label], value, "{shown}");
    }
    discarded(client, &id).await;
    deleted(client, &of).await;
}
