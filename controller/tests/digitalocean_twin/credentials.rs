//! The API token, and the location of the controller.

use crate::site::{ACCOUNT, CREATE, GIB, Site, created, deleted, refused, sized};
use belay_bed::patience::{PATIENCE, until};
use belay_proto::csi::v1::identity_client::IdentityClient;
use belay_proto::csi::v1::{ListVolumesRequest, ProbeRequest};
use belay_proto::dial::dial;
use belay_twins::Fault;
use belay_twins::digitalocean::{TOKEN, refusal};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_starts_outside_any_droplet_and_asks_for_nothing_but_its_team() {
    let site = Site::new();
    let _running = site.start_and_ask();
    let _client = site.client().await;
    let kinds = site.cloud.kinds();
    assert!(kinds.keys().eq([ACCOUNT]), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_start_waits_for_its_team() {
    let site = Site::new();
    site.cloud.hold(true);
    let _running = site.start_and_ask();
    site.client().await;
    assert!(site.cloud.log().is_empty());
    site.cloud.hold(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_started_with_a_refused_token_is_ready_once_the_file_has_another() {
    let site = Site::new();
    fs::write(site.token(), "canary-old").unwrap();
    let _running = site.start();
    let mut identity = IdentityClient::new(dial(&site.socket()).await.unwrap());
    let mut is_ready = async || {
        let probed = identity.probe(ProbeRequest {}).await.unwrap();
        probed.into_inner().ready == Some(true)
    };
    assert!(!is_ready().await);
    until("the refusal is logged", || {
        site.log().contains("refuses the token")
    });
    assert!(!is_ready().await);
    // No call makes the controller read the file: the sidecars wait until it is ready.
    fs::write(site.token(), TOKEN).unwrap();
    let waited = async {
        while !is_ready().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, waited).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_read_again_and_is_in_no_log() {
    let site = Site::new().with(&["--log-level=debug"]);
    fs::write(site.token(), "canary-old").unwrap();
    let _running = site.start();
    let mut client = site.client().await;
    // An earlier call may have created the volume.
    let answer = client.create_volume(sized("pvc-1", GIB)).await;
    refused(answer, Code::Aborted, "Unable to authenticate you");
    let listed = client.list_volumes(ListVolumesRequest::default()).await;
    refused(listed, Code::Unauthenticated, "Unable to authenticate you");
    fs::write(site.token(), TOKEN).unwrap();
    created(&mut client, "pvc-1").await.unwrap();
    assert_eq!(site.log().matches(NEVER).count(), 1, "{}", site.log());
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

const OTHER: &str = "canary-of-another-team";
/// The log message for a token that replaces one whose team was never read.
const NEVER: &str = "which cannot be compared; make sure";

/// Replaces the token that the cloud accepts; a token of another team is also accepted.
fn exchange(site: &Site, token: &str) {
    let mut settings = site.twin().settings();
    settings.token = token.to_owned();
    settings.other_token = Some(OTHER.to_owned());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_of_another_team_is_not_used() {
    for has_teams in [true, false] {
        let site = Site::new();
        site.twin().settings().has_teams = has_teams;
        let _running = site.start_and_ask();
        let mut client = site.client().await;
        let id = created(&mut client, "pvc-1").await.unwrap();
        exchange(&site, "canary-new");
        fs::write(site.token(), OTHER).unwrap();
        let whose = if has_teams {
            "team another-team"
        } else {
            "user user-of-another-team"
        };
        let answer = deleted(&mut client, &id).await.unwrap_err();
        assert_eq!(answer.code(), Code::FailedPrecondition, "{answer}");
        for part in [whose, "are not used", "restart it"] {
            assert!(answer.message().contains(part), "{part}: {answer}");
        }
        let answer = client.create_volume(sized("pvc-1", GIB)).await;
        refused(answer, Code::Aborted, whose);
        assert_eq!(site.cloud.count(CREATE), 1);
        // A new token that is also refused changes nothing, and a token of the team is used.
        fs::write(site.token(), "canary-typo").unwrap();
        let answer = deleted(&mut client, &id).await.unwrap_err();
        assert_eq!(answer.code(), Code::Unauthenticated, "{answer}");
        fs::write(site.token(), "canary-new").unwrap();
        assert_eq!(created(&mut client, "pvc-1").await.unwrap(), id);
        deleted(&mut client, &id).await.unwrap();
        assert!(!site.log().contains("canary-"), "{}", site.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_any_call_uses_no_token_of_another_team() {
    let site = Site::new();
    let _running = site.start();
    let id = created(&mut site.client().await, "pvc-1").await.unwrap();
    let idle = Site::on(Arc::clone(&site.cloud));
    let _running = idle.start_and_ask();
    let mut client = idle.client().await;
    exchange(&idle, "canary-new");
    fs::write(idle.token(), OTHER).unwrap();
    let answer = deleted(&mut client, &id).await;
    refused(answer, Code::FailedPrecondition, "team another-team");
    assert_eq!(idle.twin().volumes().len(), 1);
    assert!(!idle.log().contains(NEVER), "{}", idle.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_says_nothing_of_a_token() {
    for status in [401, 403] {
        for fault in Fault::of_proxies(status) {
            let site = Site::new();
            let _running = site.start_and_ask();
            let mut client = site.client().await;
            let id = created(&mut client, "pvc-1").await.unwrap();
            exchange(&site, "canary-new");
            fs::write(site.token(), OTHER).unwrap();
            site.cloud.disturb(ACCOUNT, 1, fault);
            let answer = deleted(&mut client, &id).await;
            refused(answer, Code::Unavailable, "a proxy on the way has answered");
            assert_eq!(site.twin().volumes().len(), 1);
            assert!(!site.log().contains("no scope account:read"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_that_hides_its_team_is_not_used_where_the_team_is_known() {
    let site = Site::new();
    let _running = site.start_and_ask();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    exchange(&site, "canary-new");
    site.twin().settings().shows_account = false;
    for token in [OTHER, "canary-new"] {
        fs::write(site.token(), token).unwrap();
        let answer = deleted(&mut client, &id).await.unwrap_err();
        assert_eq!(answer.code(), Code::FailedPrecondition, "{answer}");
        for part in ["account:read", "are not used", "restart it"] {
            assert!(answer.message().contains(part), "{part}: {answer}");
        }
    }
    assert_eq!(site.twin().volumes().len(), 1);
    site.twin().settings().shows_account = true;
    deleted(&mut client, &id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_not_ask_for_its_team_is_used_and_that_is_logged_once() {
    let site = Site::new();
    site.twin().settings().shows_account = false;
    let _running = site.start_and_ask();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    exchange(&site, "canary-new");
    fs::write(site.token(), "canary-new").unwrap();
    deleted(&mut client, &id).await.unwrap();
    assert_eq!(site.cloud.count(ACCOUNT), 2, "once for each token");
    let log = site.log();
    assert_eq!(log.matches("no scope account:read").count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_that_is_not_known_keeps_no_call_from_its_volume() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let failed = || Fault::Refused(refusal(500, "Server was unable to give you a response."));
    site.cloud.disturb(ACCOUNT, 1000, failed());
    let id = created(&mut client, "pvc-1").await.unwrap();
    exchange(&site, "canary-new");
    fs::write(site.token(), OTHER).unwrap();
    // A new token is used only if its team is known.
    let answer = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(answer.code(), Code::Unavailable, "{answer}");
    assert_eq!(site.twin().volumes().len(), 1);
}
