//! Disks that are gone: without a LocalDisk, or on a Node that was deleted.

use super::copies::cut;
use super::permission::{delete_persistent, persistent};
use super::{
    Front, LONG, ROOM, accept, id_of, place_of, ready, refusal, removal_of, request, when,
};
use crate::definitions::done;
use crate::server::Server;
use crate::store::{Node, is_served};
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{Change, FINALIZER, LocalDisk, LocalSnapshot, LocalVolume};
use std::time::Duration;
use tokio::time::sleep;
use tonic::Code;

/// A disk without a LocalDisk is gone after this time.
const SILENT: Duration = Duration::from_secs(2);

/// Limits with which a disk is soon gone.
const QUICK: Limits = Limits {
    silent: SILENT,
    check: Duration::from_millis(100),
    ..LONG
};

pub(crate) async fn volumes_of_a_gone_disk_are_deleted_without_their_store(server: &Server) {
    let front = Front::start(server, LONG).await;
    let disk = front.disk("given-a", ROOM).await;
    let volume = front.ready(request("given-1", &["given-a"])).await;
    server.kubectl(&["delete", "localdisk", &disk.metadata.name]);
    front.room_becomes("given-a", 0).await;
    // Until the disk is gone, its store may create the LocalDisk again.
    let (code, why) = refusal(front.delete(&volume.volume_id).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert!(
        why.contains("belayctl local forget given-a.example"),
        "{why}"
    );
    let kept = front.when("given-1", |_| true).await;
    assert_eq!(kept.metadata.finalizers, [FINALIZER]);
    assert_eq!(removal_of(&kept), None);
    let both = Change::<LocalVolume>::Finalizers(&[FINALIZER, "example.com/other"]);
    done(front.client.patch(&kept.metadata, both).await);
    let front = Front::start(server, QUICK).await;
    sleep(SILENT * 3 / 2).await;
    let (code, why) = refusal(front.delete(&volume.volume_id).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert!(why.contains("finalizers of other programs"), "{why}");
    let kept = front.when("given-1", |it| it.metadata.deletion_timestamp.is_some());
    front.release(&kept.await).await;
    front.gone("given-1").await;
    // A repeated call, also while the PersistentVolume still exists.
    persistent(server, "given-pv-1", &volume.volume_id, "given-a");
    front.delete(&volume.volume_id).await.unwrap().unwrap();
    delete_persistent(server, "given-pv-1");
}

pub(crate) async fn a_volume_of_a_gone_disk_is_created_elsewhere_unless_it_is_claimed(
    server: &Server,
) {
    let front = Front::start(server, QUICK).await;
    let disk = front.disk("away-a", ROOM).await;
    let claimed = front.ready(request("away-1", &["away-a"])).await;
    front.ready(request("away-2", &["away-a"])).await;
    drop(front.create(request("away-3", &["away-a"])));
    front.accepted("away-3").await;
    let stripped = front.ready(request("away-4", &["away-a"])).await;
    let taken = cut(&front, "away-5", &stripped.volume_id);
    let order = when::<LocalSnapshot>(&front.client, "away-5", |it| it.is_some()).await;
    accept(&front.client, &order.unwrap()).await;
    drop(taken);
    persistent(server, "away-pv-1", &claimed.volume_id, "away-a");
    server.kubectl(&["delete", "localdisk", &disk.metadata.name]);
    sleep(SILENT * 3 / 2).await;
    let other = front.disk("away-b", ROOM).await;
    let places = ["away-a", "away-b"];

    let same = front.create(request("away-1", &places)).await.unwrap();
    assert_eq!(same.unwrap().volume_id, claimed.volume_id);
    // A controller was killed before it deleted the object.
    let object = front.when("away-4", |_| true).await;
    front.release(&object).await;
    let again = cut(&front, "away-5", &stripped.volume_id).await;
    let (code, why) = refusal(again);
    assert_eq!(code, Code::FailedPrecondition, "{why}");
    assert!(why.contains("its disk is gone"), "{why}");
    when::<LocalSnapshot>(&front.client, "away-5", |it| it.is_none()).await;
    // No PersistentVolume has these volumes; one was only accepted.
    for name in ["away-2", "away-3", "away-4"] {
        front.report(&other, ROOM, None).await;
        let before = id_of(&front.when(name, |_| true).await).to_owned();
        let created = front.create(request(name, &places));
        let order = front.when(name, |it| place_of(it) == "away-b").await;
        assert_ne!(id_of(&order), before);
        let accepted = front.accept(&order).await;
        front.status(&accepted, &ready(&accepted)).await;
        created.await.unwrap().unwrap();
    }
    delete_persistent(server, "away-pv-1");
}

pub(crate) async fn a_store_that_returns_keeps_the_files_that_were_given_up(server: &Server) {
    let front = Front::start(server, QUICK).await;
    let mut node = Node::new(server, "returns");
    node.start();
    node.disk_shows("default", is_served).await;
    let volume = front.create(request("returns-1", &["returns"])).await;
    let id = volume.unwrap().unwrap().volume_id;
    node.kill();
    server.kubectl(&["delete", "localdisk", "returns.default"]);
    sleep(SILENT * 3 / 2).await;
    front.delete(&id).await.unwrap().unwrap();
    node.start();
    node.disk_shows("default", |disk| {
        let status = disk.known_status();
        let files = status.and_then(|status| status.unlisted.as_ref());
        files.is_some_and(|files| files.first.iter().any(|file| file.id == id))
    })
    .await;
    assert!(node.has_file(&id));
}

pub(crate) async fn the_disks_of_a_deleted_node_are_forgotten_once_they_are_silent(
    server: &Server,
) {
    let manifest =
        r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "departs-a.example"}}"#;
    server.kubectl_with(&["create", "--filename", "-"], manifest);
    let limits = Limits {
        departed: Duration::from_secs(1),
        ..QUICK
    };
    let front = Front::start(server, limits).await;
    front.disk("departs-a", ROOM).await;
    let name = "departs-a.example.default";
    let exists = async || front.client.get::<LocalDisk>(name).await.unwrap().is_some();
    sleep(SILENT + limits.departed * 2).await;
    assert!(exists().await, "a Node that is not ready keeps its disks");
    server.kubectl(&["delete", "node", "departs-a.example"]);
    when::<LocalDisk>(&front.client, name, |disk| disk.is_none()).await;
}
