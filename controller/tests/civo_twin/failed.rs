//! Creations that Civo accepts but that end in an error. The volume is deleted if this process has
//! created it and has never seen it usable. Other volumes are kept, since they may have data.

use crate::site::{CHANGE, Cloud, Site, asked, cloud, created, deleted};
use belay_twins::Fault;
use belay_twins::civo::{Refusal, Status};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Code;

const DELETE: &str = "DELETE /v2/volumes/ID";

/// Sets whether creations end in an error from now on.
fn fail(cloud: &Cloud, creation_fails: bool) {
    cloud.service().twin().settings.creation_fails = creation_fails;
}

/// Returns the IDs of all volumes.
fn volumes(cloud: &Cloud) -> Vec<String> {
    let twin = cloud.service().twin();
    twin.state().volumes.keys().cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_fails_leaves_no_volume_and_the_next_call_creates_another_one() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    fail(&cloud, true);
    let refused = created(&mut client, "pvc-1").await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal, "{refused}");
    for part in ["volume ", "\"error\"", "repeat the call"] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    assert_eq!(volumes(&cloud), [] as [&str; 0]);
    // A failing deletion is repeated.
    cloud.disturb(DELETE, 1, Fault::Refused(Refusal::Rate.response(None)));
    created(&mut client, "pvc-1").await.unwrap_err();
    assert_eq!(volumes(&cloud), [] as [&str; 0]);
    fail(&cloud, false);
    let id = created(&mut client, "pvc-1").await.unwrap();
    assert_eq!(volumes(&cloud), [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_fails_after_its_caller_has_left_is_cleared_by_the_next_call() {
    let cloud = cloud(CHANGE);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    fail(&cloud, true);
    let left = timeout(Duration::from_millis(50), created(&mut client, "pvc-1")).await;
    assert!(left.is_err(), "{left:?}");
    let refused = created(&mut client, "pvc-1").await.unwrap_err();
    assert!(refused.message().contains("\"error\""), "{refused}");
    assert_eq!(volumes(&cloud), [] as [&str; 0]);
    fail(&cloud, false);
    let id = created(&mut client, "pvc-1").await.unwrap();
    assert_eq!(volumes(&cloud), [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_volume_that_this_process_has_not_created_is_named_and_not_deleted() {
    let cloud = cloud(Duration::from_secs(3600));
    let site = Site::new(&cloud);
    let mut running = site.start();
    let mut client = site.client().await;
    let left = tokio::spawn(async move { created(&mut client, "pvc-1").await });
    asked(&cloud, "POST /v2/volumes").await;
    running.kill().unwrap();
    running.wait().unwrap();
    left.await.unwrap().unwrap_err();
    let failed = volumes(&cloud);
    assert_eq!(failed.len(), 1);
    {
        let mut twin = cloud.service().twin();
        twin.settings.delay = Duration::ZERO;
        let volume = twin.change().volumes.get_mut(&failed[0]);
        volume.unwrap().status = Status::Error;
    }
    let _running = site.start();
    let mut client = site.client().await;
    let refused = created(&mut client, "pvc-1").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for part in [&*failed[0], "\"error\"", "delete the volume"] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    assert_eq!((volumes(&cloud), cloud.count(DELETE)), (failed.clone(), 0));
    deleted(&mut client, &failed[0]).await.unwrap();
    let id = created(&mut client, "pvc-1").await.unwrap();
    assert_eq!(volumes(&cloud), [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_fails_after_it_was_usable_is_not_deleted() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let broken = |twin: &mut belay_twins::civo::Twin| {
        let volume = twin.change().volumes.get_mut(&id);
        volume.unwrap().status = Status::Error;
    };
    broken(&mut cloud.service().twin());
    let refused = created(&mut client, "pvc-1").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert_eq!((volumes(&cloud), cloud.count(DELETE)), (vec![id], 0));
}
