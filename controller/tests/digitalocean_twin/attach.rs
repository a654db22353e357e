//! Attach and detach.

use crate::site::{
    ACTIONS, ATTACH, DETACH, NODE, OTHER, Site, TAG, attached, block, created, deleted, detached,
    refused,
};
use belay_bed::patience::until;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use belay_twins::digitalocean::refusal;
use csi::volume_capability::access_mode::Mode;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::Code;

/// The duration of another actor's event, unless it is ended before: longer than any call.
const EVENT: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_has_the_keys_of_the_driver_it_replaces_and_the_word_on_its_content() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let context = attached(&mut client, &id, NODE).await.unwrap();
    for (key, value) in [
        ("dobs.csi.digitalocean.com/volume-name", "pvc-1"),
        ("names", "scsi-0DO_Volume_pvc-1"),
        ("transport", "disk"),
        ("content", "new"),
        ("bytes", "1073741824"),
    ] {
        assert_eq!(
            context.get(key).map(String::as_str),
            Some(value),
            "{context:?}"
        );
    }
    assert!(context.contains_key("attached_at"), "{context:?}");
    let (.., tags) = site.twin().volumes().pop().unwrap();
    assert_eq!(tags, ["belay-cluster:twin", "belay-used"]);
    // The volume was attached to a node, so it is not new for the next one.
    detached(&mut client, &id, NODE).await.unwrap();
    let context = attached(&mut client, &id, OTHER).await.unwrap();
    assert_eq!(context["content"], "used");
    detached(&mut client, &id, OTHER).await.unwrap();
    deleted(&mut client, &id).await.unwrap();
    assert!(site.twin().attached().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_driver_name_is_that_of_its_key() {
    let site = Site::new().with(&["--driver-name=com.digitalocean.csi.dobs"]);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let context = attached(&mut client, &id, NODE).await.unwrap();
    assert_eq!(context["com.digitalocean.csi.dobs/volume-name"], "pvc-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_errored_action_does_not_hang_the_call() {
    let (late, at_accept) = (errored_actions(false), errored_actions(true));
    tokio::join!(late, at_accept);
}

/// Tests failed actions. `at_accept` states whether a volume shows its droplet once the action is
/// accepted, or only when it has ended.
async fn errored_actions(at_accept: bool) {
    let site = Site::new();
    site.twin().settings().shows_at_accept = at_accept;
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.twin().settings().errored = 1;
    let answer = attached(&mut client, &id, NODE).await;
    refused(answer, Code::Unavailable, "errored");
    attached(&mut client, &id, NODE).await.unwrap();
    site.twin().settings().errored = 1;
    let answer = detached(&mut client, &id, NODE).await;
    refused(answer, Code::Unavailable, "errored");
    assert_eq!(site.twin().attached()[&id], Some(101));
    let grow = requests::grow(&id, 2 << 30);
    site.twin().settings().errored = 1;
    let answer = client.controller_expand_volume(grow.clone()).await;
    refused(answer, Code::Unavailable, "errored");
    client.controller_expand_volume(grow).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_that_shows_is_not_answered_while_its_action_runs() {
    let site = Site::new();
    site.twin().settings().shows_at_accept = true;
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.twin().settings().is_stuck = true;
    let call = {
        let (mut client, id) = (client.clone(), id.clone());
        tokio::spawn(async move { attached(&mut client, &id, NODE).await })
    };
    let asked = || site.cloud.count(ACTIONS) == 2;
    until("the action was asked a second time", asked);
    assert!(!call.is_finished());
    site.twin().settings().is_stuck = false;
    site.twin().end_actions();
    call.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_another_actor_on_the_droplet_is_waited_for() {
    let (late, at_accept) = (
        events_of_another_actor(false),
        events_of_another_actor(true),
    );
    tokio::join!(late, at_accept);
}

/// Tests events of another actor. `at_accept` states whether a volume shows its droplet once the
/// action is accepted, or only when it has ended.
async fn events_of_another_actor(at_accept: bool) {
    let site = Site::new();
    site.twin().settings().shows_at_accept = at_accept;
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let call = {
        let (mut client, id) = (client.clone(), id.clone());
        async move { attached(&mut client, &id, NODE).await.map(drop) }
    };
    refused_meanwhile(&site, ATTACH, call).await;
    assert_eq!(site.twin().attached()[&id], Some(101));
    let call = {
        let (mut client, id) = (client.clone(), id.clone());
        async move { detached(&mut client, &id, NODE).await }
    };
    refused_meanwhile(&site, DETACH, call).await;
    assert_eq!(site.twin().attached()[&id], None);
}

/// Runs a call while another actor's event on the droplet is in progress, which ends once the call
/// was refused.
async fn refused_meanwhile(
    site: &Site,
    action: &str,
    call: impl Future<Output = Result<(), tonic::Status>> + Send + 'static,
) {
    let before = site.cloud.count(action);
    site.twin().occupy(101, EVENT);
    let call = tokio::spawn(call);
    // The second attempt follows the response to the first one.
    let tried_again = || site.cloud.count(action) >= before + 2;
    until("the action was tried a second time", tried_again);
    assert!(!call.is_finished());
    site.twin().occupy(101, Duration::ZERO);
    call.await.unwrap().unwrap();
    // There are pauses between the attempts.
    let tried = site.cloud.count(action) - before;
    assert!(tried < 20, "{tried}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_an_action_is_read_back() {
    let mut clouds = JoinSet::new();
    for at_accept in [false, true] {
        for fault in [
            Fault::Lost,
            Fault::Cut,
            Fault::Denied(refusal(502, "bad gateway")),
        ] {
            clouds.spawn(lost_answers(at_accept, fault));
        }
    }
    clouds.join_all().await;
}

async fn lost_answers(at_accept: bool, fault: Fault) {
    let site = Site::new();
    site.twin().settings().shows_at_accept = at_accept;
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.cloud.disturb(ATTACH, 1, fault.clone());
    attached(&mut client, &id, NODE).await.unwrap();
    site.cloud.disturb(DETACH, 1, fault);
    detached(&mut client, &id, NODE).await.unwrap();
    assert_eq!(site.twin().attached()[&id], None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_volume_too_many_on_a_droplet_is_resource_exhausted() {
    let site = Site::new();
    site.twin().settings().droplet_volumes = 1;
    let _running = site.start();
    let mut client = site.client().await;
    let [first, second] = ["pvc-1", "pvc-2"];
    let first = created(&mut client, first).await.unwrap();
    let second = created(&mut client, second).await.unwrap();
    attached(&mut client, &first, NODE).await.unwrap();
    let answer = attached(&mut client, &second, NODE).await;
    refused(
        answer,
        Code::ResourceExhausted,
        "cannot attach more volumes",
    );
    attached(&mut client, &second, OTHER).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_leave_a_droplet_that_is_off_or_deleted() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, NODE).await.unwrap();
    site.twin().power(101, false);
    detached(&mut client, &id, NODE).await.unwrap();
    attached(&mut client, &id, OTHER).await.unwrap();
    site.twin().delete_droplet(102);
    detached(&mut client, &id, OTHER).await.unwrap();
    let answer = attached(&mut client, &id, OTHER).await;
    refused(answer, Code::NotFound, "no droplet has that ID");
    // The nodes are not droplets, or the volumes never existed.
    detached(&mut client, &id, "node-1").await.unwrap();
    let answer = attached(&mut client, &id, "node-1").await;
    refused(answer, Code::NotFound, "node-1");
    let nothing = "00000000-0000-4000-8000-000000000000";
    detached(&mut client, nothing, NODE).await.unwrap();
    refused(
        attached(&mut client, nothing, NODE).await,
        Code::NotFound,
        nothing,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_another_node_has_won_is_not_reported_as_attached() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let answer = {
        // Another actor attaches the volume between the read and the attach.
        let attach = requests::attach(&id, NODE, block());
        let mut caller = client.clone();
        site.cloud.hold(true);
        site.cloud.forget();
        let call = tokio::spawn(async move { caller.controller_publish_volume(attach).await });
        let cloud = std::sync::Arc::clone(&site.cloud);
        let waits = move || cloud.wait_for(1, Duration::from_secs(60));
        assert!(tokio::task::spawn_blocking(waits).await.unwrap());
        let already = refusal(422, "This volume is already attached");
        site.cloud.disturb(ATTACH, 1, Fault::Refused(already));
        site.twin().lag(Duration::from_secs(1));
        site.twin().interfere(&id, Some(102));
        site.cloud.hold(false);
        call.await.unwrap()
    };
    refused(answer, Code::FailedPrecondition, "attached to node 102");
    let answer = attached(&mut client, &id, NODE).await;
    refused(answer, Code::FailedPrecondition, "attached to node 102");
    // A delayed detach does not detach the volume from its current node.
    detached(&mut client, &id, NODE).await.unwrap();
    assert_eq!(site.twin().attached()[&id], Some(102));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_fails_without_the_mark_of_use_and_not_without_the_operators_tag() {
    let site = Site::new().with(&["--tag=team:blue"]);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.cloud
        .disturb(TAG, 1, Fault::Refused(refusal(500, "no tags today")));
    let answer = attached(&mut client, &id, NODE).await;
    refused(answer, Code::Unavailable, "no tags today");
    let context = attached(&mut client, &id, NODE).await.unwrap();
    assert_eq!(context["content"], "new", "no node was given it before");
    detached(&mut client, &id, NODE).await.unwrap();
    // A volume of another program does not have the operator's tag, and needs no mark.
    let other = created(&mut client, "pvc-2").await.unwrap();
    site.twin().make_foreign(&other);
    site.cloud.disturb(
        TAG,
        9,
        Fault::Refused(refusal(403, "You do not have permission")),
    );
    let context = attached(&mut client, &other, NODE).await.unwrap();
    assert_eq!(context["content"], "unknown");
    let warned = || site.log().contains("the volume is not tagged");
    until("the log has the warning", warned);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pod_may_use_it_alone_or_read_only_and_a_check_of_capabilities_is_honest() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    for mode in [Mode::SingleNodeSingleWriter, Mode::SingleNodeReaderOnly] {
        let request = csi::ControllerPublishVolumeRequest {
            readonly: mode == Mode::SingleNodeReaderOnly,
            ..requests::attach(&id, NODE, requests::capability("ext4", mode))
        };
        client.controller_publish_volume(request).await.unwrap();
        detached(&mut client, &id, NODE).await.unwrap();
    }
    for (mode, is_confirmed) in [
        (Mode::SingleNodeWriter, true),
        (Mode::MultiNodeMultiWriter, false),
    ] {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: vec![requests::capability("ext4", mode)],
            ..Default::default()
        };
        let answer = client.validate_volume_capabilities(request).await;
        let confirmed = answer.unwrap().into_inner().confirmed;
        assert_eq!(confirmed.is_some(), is_confirmed, "{mode:?}");
    }
    let request = requests::attach(
        &id,
        NODE,
        requests::capability("ext4", Mode::MultiNodeMultiWriter),
    );
    let answer = client.controller_publish_volume(request).await;
    assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
}
