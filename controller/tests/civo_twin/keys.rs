//! The key of another account, with which all volumes seem to be missing.

use crate::site::{Cloud, Site, cloud, created, deleted};
use belay_twins::Fault;
use std::fs;
use std::time::Duration;
use tonic::Code;

const OTHER: &str = "canary-of-another-account";
const CLUSTER: &str = "GET /v2/kubernetes/clusters/ID";

/// Changes the key of the account, and lets the cloud accept a key of another account, too.
fn exchange(cloud: &Cloud, key: &str) {
    let mut twin = cloud.service().twin();
    twin.settings.key = key.to_owned();
    twin.settings.other_key = Some(OTHER.to_owned());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_of_another_account_is_not_used() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    exchange(&cloud, "a-new-key");
    fs::write(site.key_file(), OTHER).unwrap();
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for part in [
        "CIVO_API_KEY: ",
        "an account without CIVO_CLUSTER_ID",
        "are not used",
    ] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    // An earlier call may have created the volume.
    let refused = created(&mut client, "pvc-1").await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert_eq!(cloud.count("POST /v2/volumes"), 1);
    // A new key that is also refused changes nothing, and a key of the account is used.
    fs::write(site.key_file(), "a-typo").unwrap();
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    fs::write(site.key_file(), "a-new-key").unwrap();
    assert_eq!(created(&mut client, "pvc-1").await.unwrap(), id);
    deleted(&mut client, &id).await.unwrap();
    assert!(cloud.service().twin().state().volumes.is_empty());
    assert!(!site.log().contains(OTHER), "{}", site.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_civo_has_not_confirmed_at_the_start_is_confirmed_before_the_first_call() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let running = site.start();
    let mut client = site.client().await;
    site.ready().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    assert_eq!(cloud.count(CLUSTER), 1, "at the start alone");
    drop(running);
    exchange(&cloud, belay_twins::civo::KEY);
    let right = fs::read(site.key_file()).unwrap();
    fs::write(site.key_file(), OTHER).unwrap();
    cloud.disturb(CLUSTER, 1000, Fault::Cut);
    let running = site.start();
    let mut client = site.client().await;
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    cloud.calm();
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    drop(running);
    fs::write(site.key_file(), right).unwrap();
    let _running = site.start();
    let mut client = site.client().await;
    deleted(&mut client, &id).await.unwrap();
}
