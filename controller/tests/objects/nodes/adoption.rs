//! The adoption of files whose objects were lost, with a real store.

use super::copies::cut;
use super::permission::persistent;
use super::{DRIVER, Front, LONG, PATIENCE, SMALL, request};
use crate::definitions::done;
use crate::server::Server;
use crate::store::{Node, is_served};
use belay_bed::requests;
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{
    Change, LocalDisk, LocalSnapshot, LocalVolume, Object, Phase, Resource, Selector,
};
use belay_proto::csi::v1 as csi;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tonic::Code;

const PLACE: &str = "adopting";
/// The number of files without objects on each disk: more than a LocalDisk lists.
const ORPHANS: usize = 25;
const DATA: &[u8] = b"data";

/// Creates the kind of VolumeSnapshotContents, with any fields.
fn define_contents(server: &Server) {
    let names = json!({
        "kind": "VolumeSnapshotContent", "plural": "volumesnapshotcontents",
    });
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "volumesnapshotcontents.snapshot.storage.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": "snapshot.storage.k8s.io", "scope": "Cluster", "names": names,
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    server.kubectl_with(&["create", "--filename", "-"], &definition.to_string());
    server.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
}

fn content(server: &Server, name: &str, source: &Value, status: &Value) {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": name}, "spec": {"driver": DRIVER, "source": source},
        "status": status,
    });
    server.kubectl_with(&["create", "--filename", "-"], &content.to_string());
}

pub(super) async fn all<R: Resource>(server: &Server) -> Vec<Object<R>> {
    let client = server.client();
    let list = client.list::<R>(&Selector::all()).await.unwrap();
    list.items
}

/// Takes the finalizers off the objects of other tests, whose stores do not run.
pub(super) async fn strip<R: Resource>(server: &Server) {
    let client = server.client();
    for object in all::<R>(server).await {
        if !object.metadata.finalizers.is_empty() {
            let change = Change::<R>::Finalizers(&[]);
            done(client.patch(&object.metadata, change).await);
        }
    }
}

/// Deletes the definitions of volumes and snapshots, with all objects, and creates them again.
fn lose_all_objects(server: &Server) {
    let kinds = ["localvolumes", "localsnapshots"];
    for kind in kinds {
        server.kubectl(&["delete", "crd", &format!("{kind}.belay.dev")]);
    }
    let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/objects");
    for kind in kinds {
        let file = objects.join(format!("{kind}.yaml")).display().to_string();
        server.kubectl(&["create", "--filename", &file]);
    }
    server.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
}

fn on_disk(name: &str, disk: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        parameters: HashMap::from([("disk".to_owned(), disk.to_owned())]),
        ..request(name, &[PLACE])
    }
}

/// Whether the disk has this number of files without objects.
pub(super) fn has_orphans(count: usize) -> impl Fn(&Object<LocalDisk>) -> bool {
    move |disk| {
        let status = disk.status.as_ref().and_then(|status| status.known());
        let unlisted = status.and_then(|status| status.unlisted.as_ref());
        unlisted.is_some_and(|unlisted| unlisted.count == count as u64)
    }
}

pub(super) fn is_ready(volume: &Object<LocalVolume>) -> bool {
    let status = volume.status.as_ref().and_then(|status| status.known());
    status.is_some_and(|status| status.phase == Phase::Ready)
}

/// Creates a volume, as soon as the controller has seen that the disk is served.
pub(super) async fn made(front: &Front, request: csi::CreateVolumeRequest) -> csi::Volume {
    loop {
        match front.create(request.clone()).await.unwrap() {
            Ok(volume) => return volume,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes a snapshot, and waits until it is complete.
async fn taken(front: &Front, name: &str, volume: &str) -> String {
    loop {
        let snapshot = cut(front, name, volume).await.unwrap().unwrap();
        if snapshot.ready_to_use {
            return snapshot.snapshot_id;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Creates volumes on both disks that get no PersistentVolume.
async fn make_orphans(front: &Front) {
    let mut calls = Vec::new();
    for disk in ["default", "fast"] {
        for number in 0..ORPHANS {
            calls.push(front.create(on_disk(&format!("orphan-{disk}-{number}"), disk)));
        }
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

pub(crate) async fn all_claimed_files_are_adopted_after_the_objects_were_lost(server: &Server) {
    strip::<LocalVolume>(server).await;
    strip::<LocalSnapshot>(server).await;
    define_contents(server);
    let mut node = Node::new(server, PLACE);
    node.start();
    let quick = Limits {
        check: Duration::from_millis(600),
        silent: PATIENCE * 10,
        ..LONG
    };
    let front = Front::start(server, quick).await;
    let _other = Front::start(server, quick).await;
    for disk in ["default", "fast"] {
        node.disk_shows(disk, is_served).await;
    }
    let fast = made(&front, on_disk("fast-1", "fast")).await;
    let claimed = ["adopt-1", "adopt-2", "adopt-3"];
    let mut ids = Vec::new();
    for name in claimed {
        let volume = made(&front, request(name, &[PLACE])).await;
        persistent(server, name, &volume.volume_id, PLACE);
        ids.push(volume.volume_id);
    }
    make_orphans(&front).await;
    node.write(&ids[0], DATA);
    let first = taken(&front, "snapshot-1", &ids[0]).await;
    let source = json!({"volumeHandle": ids[0]});
    content(
        server,
        "snapcontent-1",
        &source,
        &json!({"snapshotHandle": first}),
    );
    // Nothing names the disk of this snapshot, and the other disk is tried first.
    let second = taken(&front, "snapshot-2", &fast.volume_id).await;
    content(
        server,
        "existing",
        &json!({"snapshotHandle": second}),
        &json!({}),
    );

    lose_all_objects(server);
    for (name, id) in claimed.iter().zip(&ids) {
        // The PersistentVolume is larger than the file, but no caller has requested an expansion.
        let has_size = |it: &Object<LocalVolume>| it.spec.known().unwrap().bytes == SMALL;
        let volume = front.when(name, |it| is_ready(it) && has_size(it)).await;
        assert_eq!(super::id_of(&volume), id);
    }
    node.disk_shows("default", has_orphans(ORPHANS)).await;
    // The volume of the snapshot has no PersistentVolume.
    node.disk_shows("fast", has_orphans(ORPHANS + 1)).await;
    let snapshots = all::<LocalSnapshot>(server).await;
    let snapshots = snapshots.iter().map(|it| {
        let spec = it.spec.known().unwrap();
        [&*it.metadata.name, &*spec.id, &*spec.disk]
    });
    let expected = [
        ["existing", &second, "fast"],
        ["snapshot-1", &first, "default"],
    ];
    assert_eq!(snapshots.collect::<Vec<_>>(), expected);

    let restore = csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(requests::of_snapshot(&first)),
        }),
        ..request("restored", &[PLACE])
    };
    let restored = front.create(restore).await.unwrap().unwrap();
    assert_eq!(node.read(&restored.volume_id, DATA.len()), DATA);
    assert_eq!(all::<LocalVolume>(server).await.len(), claimed.len() + 1);
}
