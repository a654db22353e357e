//! A real controller with its account in `clouds.yaml`.

use crate::site::{Site, created, deleted};
use crate::twin::PASSWORD;
use crate::wire::{CHANGE, Cloud};
use belay_bed::patience::until;
use std::fs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_account_is_that_of_clouds_yaml_and_an_entry_that_is_missing_ends_the_start() {
    let cloud = Cloud::start(CHANGE, None);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("clouds.yaml");
    let yaml = format!(
        "clouds:\n  twin:\n    auth:\n      auth_url: {}/identity\n      username: csi\n      \
         project_name: k8s\n      domain_name: Default\n    region_name: one\n",
        cloud.url()
    );
    fs::write(&file, yaml).unwrap();
    let secret = format!("clouds: {{twin: {{auth: {{password: {PASSWORD}}}}}}}");
    fs::write(dir.path().join("secure.yaml"), secret).unwrap();
    let conf = |entry: &str| {
        let file = file.display();
        format!("[Global]\nuse-clouds\nclouds-file = {file}\ncloud = {entry}\n")
    };
    let site = Site::new("", "");
    site.replace(&conf("twin"));
    let running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    deleted(client, &id).await.unwrap();
    drop(running);
    assert!(!site.log().contains(PASSWORD));
    site.replace(&conf("other"));
    assert!(site.started().is_err());
    let log = site.log();
    for part in [
        "[Global] use-clouds: ",
        "clouds.yaml: clouds: has no",
        "there are: twin",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_is_ready_once_keystone_has_accepted_the_credentials() {
    let cloud = Cloud::start(CHANGE, None);
    let site = Site::new(&cloud.url(), "");
    site.configure_with(&cloud.url(), "wrong", "");
    let _running = site.start();
    until("the refusal is on the page", || {
        let (status, why) = site.readyz();
        status == 503 && why.contains("check user, password, project")
    });
    let is_logged = |line: &str| line.contains("a cloud cannot be used") && line.contains("401");
    until("the refusal is logged", || {
        site.log().lines().any(is_logged)
    });
    site.configure(&cloud.url(), "");
    until("the driver is ready", || site.readyz().0 == 200);
}
