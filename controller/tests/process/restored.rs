//! A state directory that is restored from a backup while a controller is running.

use crate::bed::{
    Bed, Client, Controller, MIB, ROOMY, assert_refused, block, create, created, snapshot,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use csi::identity_client::IdentityClient;
use std::fs;
use std::path::Path;
use std::process::Command;
use tonic::{Code, Status};

/// Copies the content of one directory into another, as an operator does. Existing files are
/// replaced.
fn copy(from: &Path, to: &Path) {
    let mut cp = Command::new("cp");
    cp.args(["-a", "--remove-destination"]);
    let copied = cp.arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Starts a controller with `pvc-1`, which is in a backup, and `pvc-2`, which is not.
async fn backed_up() -> (Bed, Controller, Client, [String; 2]) {
    let bed = Bed::new(&ROOMY);
    let mut controller = bed.start();
    let mut client = bed.client().await;
    let kept = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    controller.kill();
    let backup = bed.state_dir().with_extension("backup");
    fs::create_dir(&backup).unwrap();
    copy(&bed.state_dir(), &backup);
    let controller = bed.start();
    let mut client = bed.client().await;
    let lost = created(&mut client, create("pvc-2", MIB)).await.volume_id;
    (bed, controller, client, [kept, lost])
}

fn restore(bed: &Bed) {
    copy(&bed.state_dir().with_extension("backup"), &bed.state_dir());
}

type Answers = Vec<(&'static str, Result<(), Status>)>;

/// Calls every verb that makes changes, even without effect.
async fn changes(client: &mut Client, id: &str) -> Answers {
    let none = "vol-00000000000000000000000000000000";
    let grow = requests::grow(id, 9 * MIB);
    let mut answers = Vec::new();
    for name in ["pvc-3", "pvc-1"] {
        let answer = client.create_volume(create(name, MIB)).await;
        answers.push(("create", answer.map(drop)));
    }
    let answer = client.controller_expand_volume(grow).await;
    answers.push(("expand", answer.map(drop)));
    let answer = client.create_snapshot(snapshot("snap", id)).await;
    answers.push(("snapshot", answer.map(drop)));
    for id in [none, id] {
        let answer = client.delete_volume(requests::delete(id)).await;
        answers.push(("delete", answer.map(drop)));
    }
    answers
}

/// Calls the read-only verbs.
async fn questions(client: &mut Client, id: &str) -> Answers {
    let get = requests::get(id);
    let health = csi::ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let validate = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![block()],
        ..Default::default()
    };
    let mut answers = Vec::new();
    let answer = client.controller_get_volume(get).await;
    answers.push(("get", answer.map(drop)));
    let answer = client.controller_get_volume_health(health).await;
    answers.push(("health", answer.map(drop)));
    let answer = client.validate_volume_capabilities(validate).await;
    answers.push(("validate", answer.map(drop)));
    let answer = client.list_volumes(csi::ListVolumesRequest::default());
    answers.push(("list", answer.await.map(drop)));
    let answer = client.list_snapshots(csi::ListSnapshotsRequest::default());
    answers.push(("list snapshots", answer.await.map(drop)));
    let answer = client.get_capacity(csi::GetCapacityRequest::default());
    answers.push(("capacity", answer.await.map(drop)));
    answers
}

async fn is_ready(bed: &Bed) -> Result<Option<bool>, Status> {
    let mut identity = IdentityClient::new(bed.channel().await);
    let probed = identity.probe(csi::ProbeRequest {}).await?;
    Ok(probed.into_inner().ready)
}

async fn assert_replaced(bed: &Bed, client: &mut Client, id: &str) {
    let why = ["state.redb", "replaced", "restart"];
    let mut answers = changes(client, id).await;
    answers.extend(questions(client, id).await);
    for (verb, answer) in answers {
        assert!(answer.is_err(), "{verb}: acknowledged");
        assert_refused(&answer.unwrap_err(), Code::Unavailable, &why);
    }
    let unready = is_ready(bed).await.unwrap_err();
    assert_refused(&unready, Code::FailedPrecondition, &why);
}

#[tokio::test]
async fn nothing_is_acknowledged_once_the_state_was_replaced() {
    let (bed, mut controller, mut client, [kept, lost]) = backed_up().await;
    restore(&bed);
    let file = fs::read_dir(bed.volumes_dir()).unwrap().count();
    assert_replaced(&bed, &mut client, &kept).await;
    let left = fs::read_dir(bed.volumes_dir()).unwrap().count();
    assert_eq!(left, file, "files were made or removed");
    controller.kill();
    let _controller = bed.start();
    let mut client = bed.client().await;
    assert_eq!(is_ready(&bed).await.unwrap(), Some(true));
    let found = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    assert_eq!(found, kept);
    assert_ne!(
        created(&mut client, create("pvc-2", MIB)).await.volume_id,
        lost
    );
}

#[tokio::test]
async fn a_state_that_was_removed_or_moved_is_noticed_and_used_again_once_it_is_back() {
    let (bed, _controller, mut client, [kept, lost]) = backed_up().await;
    let away = bed.state_dir().with_extension("away");
    fs::rename(bed.state_dir(), &away).unwrap();
    assert_replaced(&bed, &mut client, &kept).await;
    fs::rename(&away, bed.state_dir()).unwrap();
    assert_eq!(
        created(&mut client, create("pvc-2", MIB)).await.volume_id,
        lost
    );
    assert_eq!(is_ready(&bed).await.unwrap(), Some(true));
}

#[tokio::test]
async fn no_second_controller_starts_on_a_restored_directory() {
    let (bed, mut controller, _client, _) = backed_up().await;
    restore(&bed);
    let log = bed.refused();
    assert!(log.contains("held by another belay-controller"), "{log}");
    controller.kill();
    bed.start();
}
