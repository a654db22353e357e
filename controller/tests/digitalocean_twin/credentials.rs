//! The token, and where the controller runs.

use crate::site::{GIB, Site, created, refused, sized};
use belay_proto::csi::v1::ListVolumesRequest;
use belay_twins::Fault;
use belay_twins::digitalocean::{TOKEN, refusal};
use std::fs;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_starts_outside_any_droplet_and_calls_nothing() {
    let site = Site::new();
    let _running = site.start();
    let _client = site.client().await;
    assert_eq!(site.cloud.count(""), 0, "{:?}", site.cloud.kinds());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_read_again_and_is_in_no_log() {
    let site = Site::new().with(&["--log-level=debug"]);
    fs::write(site.token(), "canary-old").unwrap();
    let _running = site.start();
    let mut client = site.client().await;
    // An earlier call may have created it.
    let answer = client.create_volume(sized("pvc-1", GIB)).await;
    refused(answer, Code::Aborted, "Unable to authenticate you");
    let listed = client.list_volumes(ListVolumesRequest::default()).await;
    refused(listed, Code::Unauthenticated, "Unable to authenticate you");
    fs::write(site.token(), TOKEN).unwrap();
    created(&mut client, "pvc-1").await.unwrap();
    let denied = refusal(403, "You do not have permission to perform this action.");
    site.cloud
        .disturb("POST /v2/volumes", 1, Fault::Refused(denied));
    let answer = client.create_volume(sized("pvc-2", GIB)).await;
    refused(answer, Code::PermissionDenied, "do not have permission");
    let echo = refusal(400, &format!("{TOKEN} canary-old"));
    site.cloud
        .disturb("POST /v2/volumes", 1, Fault::Refused(echo));
    let answer = client.create_volume(sized("pvc-2", GIB)).await.unwrap_err();
    assert!(!answer.message().contains(TOKEN), "{answer}");
    let log = site.log();
    assert!(
        !log.contains(TOKEN) && !log.contains("canary-0123"),
        "{log}"
    );
}
