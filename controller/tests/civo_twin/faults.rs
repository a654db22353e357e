//! Lost responses, stale reads, rate limits, failing services, and null members: every call
//! succeeds, perhaps after a repetition, and nothing is done twice.

use crate::site::{
    CHANGE, Client, Cloud, GIB, Site, asked, attached, cloud, created, deleted, detached, grown,
    instance,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use belay_twins::civo::{KEY, Refusal, Status};
use belay_twins::http::Response;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::{Code, Status as Failed};

/// Whether a caller repeats its call after this error.
fn repeats(what: &str, status: &Failed) -> bool {
    // A volume may look attached, or be known as attached, for a while after it was detached.
    let is_late = ["grow", "delete"].contains(&what);
    is_late && status.code() == Code::FailedPrecondition
        || matches!(
            status.code(),
            Code::Unavailable | Code::Aborted | Code::DeadlineExceeded | Code::Internal
        )
}

/// Repeats a call as a sidecar does, up to a maximum; returns the response and the number of calls.
async fn repeated<T>(what: &str, mut call: impl AsyncFnMut() -> Result<T, Failed>) -> (T, usize) {
    const CALLS_MAX: usize = 30;
    let mut failed = None;
    for calls in 1..=CALLS_MAX {
        match call().await {
            Ok(answer) => return (answer, calls),
            Err(status) => {
                assert!(repeats(what, &status), "{what}: {status}");
                failed = Some(status);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    panic!("{what}: {failed:?}");
}

/// Runs the lifecycle of one volume, repeating each call until it succeeds. Checks that the cloud
/// received no more changes than needed, plus those that failed.
async fn life(cloud: &Cloud, client: &mut Client, name: &str) -> String {
    let mut own = client.clone();
    let (id, _) = repeated("create", async || created(&mut own, name).await).await;
    let node = instance(1);
    let (context, _) = repeated("attach", async || attached(&mut own, &id, &node).await).await;
    assert_eq!(context["serial"], id);
    let at = cloud.service().twin().state().volumes[&id].clone();
    assert_eq!(
        (at.status, at.instance),
        (Status::Attached, Some(node.clone()))
    );
    repeated("detach", async || detached(&mut own, &id, &node).await).await;
    let at = cloud.service().twin().state().volumes[&id].clone();
    assert_eq!((at.status, at.instance), (Status::Available, None));
    let (bytes, _) = repeated("grow", async || grown(&mut own, &id, 3 * GIB).await).await;
    assert_eq!(bytes, 3 * GIB);
    assert_eq!(cloud.service().twin().state().volumes[&id].gib, 3);
    repeated("delete", async || deleted(&mut own, &id).await).await;
    assert_eq!(cloud.service().twin().state().volumes.len(), 0);
    id
}

const CHANGES: [&str; 5] = [
    "POST /v2/volumes",
    "PUT /v2/volumes/ID/attach",
    "PUT /v2/volumes/ID/detach",
    "PUT /v2/volumes/ID/resize",
    "DELETE /v2/volumes/ID",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_is_read_back_and_the_change_is_not_repeated() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    cloud.forget();
    for (n, kind) in CHANGES.into_iter().enumerate() {
        cloud.disturb(kind, 1, Fault::Lost);
        life(&cloud, &mut client, &format!("pvc-{n}")).await;
    }
    for kind in CHANGES {
        let most = match kind {
            // A second deletion finds that the volume is already deleted.
            "DELETE /v2/volumes/ID" => CHANGES.len() + 1,
            _ => CHANGES.len(),
        };
        assert!(cloud.count(kind) <= most, "{kind}: {:?}", cloud.kinds());
    }
}

#[tokio::test(flavor = "local")]
async fn a_call_that_fails_before_or_after_it_was_served_ends_well_when_it_is_repeated() {
    let mut all = JoinSet::new();
    for kind in CHANGES
        .into_iter()
        .chain(["GET /v2/volumes", "GET /v2/volumes/ID"])
    {
        all.spawn_local(failing(kind));
    }
    all.join_all().await;
}

/// Runs the lifecycle of a volume for each way in which a call of this kind can fail, in one cloud.
async fn failing(kind: &'static str) {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let words = |status| Response::json(status, &json!({"code": "internal", "reason": "sorry"}));
    let html = |status| Response {
        body: "<html>".to_owned(),
        ..words(status)
    };
    for (n, fault) in [
        Fault::Cut,
        Fault::Refused(words(500)),
        Fault::Denied(words(500)),
        Fault::Denied(words(502)),
        Fault::Refused(words(503)),
        Fault::Refused(html(500)),
        Fault::Denied(html(200)),
        Fault::Refused(Refusal::Rate.response(None)),
    ]
    .into_iter()
    .enumerate()
    {
        cloud.disturb(kind, 1, fault);
        life(&cloud, &mut client, &format!("pvc-{n}")).await;
        cloud.calm();
    }
    assert_eq!(cloud.service().twin().broken, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_null_and_refusals_with_any_status_change_nothing() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    cloud.service().twin().settings.has_nulls = true;
    for (n, status) in [None, Some(400), Some(404), Some(409), Some(422)]
        .into_iter()
        .enumerate()
    {
        cloud.service().twin().settings.refusal_status = status;
        life(&cloud, &mut client, &format!("pvc-{n}")).await;
    }
    cloud.service().twin().settings.lingers = true;
    life(&cloud, &mut client, "pvc-lingers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truth_that_comes_late_is_waited_for_and_never_acted_on() {
    let cloud = cloud(Duration::from_millis(100));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    cloud.service().twin().lag(CHANGE);
    for n in 0..3 {
        life(&cloud, &mut client, &format!("pvc-{n}")).await;
    }
    assert_eq!(cloud.service().twin().broken, [] as [&str; 0]);
    for kind in CHANGES.into_iter().filter(|kind| kind.starts_with("PUT")) {
        assert_eq!(cloud.count(kind), 3, "{kind}: {:?}", cloud.kinds());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_read_after_a_detach_takes_the_volume_from_no_other_node() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    cloud.service().twin().lag(CHANGE * 10);
    let moves = async {
        asked(&cloud, DETACH).await;
        let mut twin = cloud.service().twin();
        assert_eq!(twin.state().volumes[&id].status, Status::Available);
        let volume = twin.change().volumes.get_mut(&id).unwrap();
        (volume.status, volume.instance) = (Status::Attached, Some(instance(2)));
    };
    let node = instance(1);
    let (done, ()) = tokio::join!(detached(&mut client, &id, &node), moves);
    done.unwrap();
    assert_on_the_other_node(&cloud, &id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_detach_and_a_stale_read_take_the_volume_from_no_other_node() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    detached(&mut client, &id, &instance(1)).await.unwrap();
    attached(&mut client, &id, &instance(2)).await.unwrap();
    let set = |instance| {
        let mut twin = cloud.service().twin();
        twin.change().volumes.get_mut(&id).unwrap().instance = Some(instance);
    };
    // Reads show the first instance.
    set(instance(1));
    cloud.service().twin().lag(CHANGE * 10);
    set(instance(2));
    let node = instance(1);
    detached(&mut client, &id, &node).await.unwrap();
    assert_on_the_other_node(&cloud, &id);
}

const DETACH: &str = "PUT /v2/volumes/ID/detach";
/// The delay in seconds, far longer than a detach may wait for its turn.
const HOLD: &str = "4";

fn too_fast() -> Fault {
    let mut refusal = Refusal::Rate.response(None);
    refusal.headers.push(("retry-after", HOLD.to_owned()));
    Fault::Refused(refusal)
}

/// Checks that one detach was requested, and none after another controller had attached the volume.
fn assert_on_the_other_node(cloud: &Cloud, id: &str) {
    assert_eq!(cloud.count(DETACH), 1, "{:?}", cloud.kinds());
    let at = cloud.service().twin().state().volumes[id].clone();
    assert_eq!(
        (at.status, at.instance),
        (Status::Attached, Some(instance(2)))
    );
}

/// Moves the volume to another node, as another controller does.
fn moved(cloud: &Cloud, id: &str) {
    let mut twin = cloud.service().twin();
    let volume = twin.change().volumes.get_mut(id).unwrap();
    volume.instance = Some(instance(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_that_is_refused_for_its_pace_is_not_sent_again() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    cloud.disturb(DETACH, 1, too_fast());
    let moves = async {
        asked(&cloud, DETACH).await;
        moved(&cloud, &id);
    };
    let node = instance(1);
    let (late, ()) = tokio::join!(detached(&mut client, &id, &node), moves);
    late.unwrap();
    assert_on_the_other_node(&cloud, &id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_that_has_waited_long_for_its_turn_is_not_sent() {
    const SHORT: Duration = Duration::from_millis(200);
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    cloud.forget();
    // While the response to its read is delayed, another call is refused.
    let (look, other) = ("GET /v2/volumes/ID", "GET /v2/quota");
    cloud.disturb(look, 1, Fault::Slow(SHORT * 4));
    cloud.disturb(other, 1, too_fast());
    let mut hurried = client.clone();
    let moves = async {
        tokio::time::sleep(SHORT).await;
        let refused = hurried.get_capacity(csi::GetCapacityRequest::default());
        drop(tokio::time::timeout(SHORT, refused).await);
        moved(&cloud, &id);
    };
    let node = instance(1);
    let (late, ()) = tokio::join!(detached(&mut client, &id, &node), moves);
    late.unwrap();
    assert_eq!(cloud.count(DETACH), 0, "{:?}", cloud.kinds());
    let at = cloud.service().twin().state().volumes[&id].clone();
    assert_eq!(
        (at.status, at.instance),
        (Status::Attached, Some(instance(2)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_grows_when_it_is_detached() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    cloud.forget();
    let refused = grown(&mut client, &id, 2 * GIB).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&instance(1)), "{refused}");
    assert_eq!(cloud.count("PUT /v2/volumes/ID/resize"), 0);
    detached(&mut client, &id, &instance(1)).await.unwrap();
    assert_eq!(grown(&mut client, &id, 2 * GIB).await.unwrap(), 2 * GIB);
    // A second call finds that the expansion is done, even while the volume is attached.
    attached(&mut client, &id, &instance(1)).await.unwrap();
    assert_eq!(grown(&mut client, &id, 2 * GIB).await.unwrap(), 2 * GIB);
    assert_eq!(cloud.count("PUT /v2/volumes/ID/resize"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_has_failed_is_not_waited_for() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    cloud
        .service()
        .twin()
        .change()
        .volumes
        .get_mut(&id)
        .unwrap()
        .status = Status::Error;
    for refused in [
        created(&mut client, "pvc-1").await.map(drop),
        attached(&mut client, &id, &instance(1)).await.map(drop),
        grown(&mut client, &id, 2 * GIB).await.map(drop),
        client
            .create_snapshot(requests::cut("s", &id))
            .await
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("\"error\""), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_word_of_a_refusal_shows_the_key() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    for (status, body) in [
        (200, json!({"result": format!("no {KEY}")})),
        (400, json!({"code": format!("no {KEY}"), "reason": KEY})),
    ] {
        let fault = Fault::Refused(Response::json(status, &body));
        cloud.disturb("DELETE /v2/volumes/ID", 1, fault);
        let refused = deleted(&mut client, &id).await.unwrap_err();
        assert!(refused.message().contains("no ***"), "{refused}");
        assert!(!refused.message().contains(KEY), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_growing_is_waited_for() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    cloud.service().twin().settings.is_stuck = true;
    let lost = grown(&mut client, &id, 2 * GIB);
    let lost = tokio::time::timeout(Duration::from_secs(1), lost).await;
    assert!(lost.is_err(), "{lost:?}");
    // The job of the volume is still running.
    let busy = attached(&mut client, &id, &instance(1)).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted, "{busy}");
    cloud.service().twin().settings.is_stuck = false;
    let node = instance(1);
    repeated("attach", async || attached(&mut client, &id, &node).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_the_same_name_in_another_cluster_is_not_taken_over() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let other = {
        let mut twin = cloud.service().twin();
        let id = twin.change().add("data", 1);
        twin.change().volumes.get_mut(&id).unwrap().cluster = "other".to_owned();
        id
    };
    let refused = created(&mut client, "data").await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains(&other), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_cannot_exist_is_deleted_and_detached_without_a_call() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let beside = format!("../instances/{}", instance(1));
    for id in [
        "00000000-0000-4000-8000-0000000000ff",
        "not-a-uuid",
        "a/b",
        "..",
        &beside,
    ] {
        cloud.forget();
        deleted(&mut client, id).await.unwrap();
        detached(&mut client, id, &instance(1)).await.unwrap();
        let refused = client.controller_get_volume(requests::get(id)).await;
        assert_eq!(refused.unwrap_err().code(), Code::NotFound, "{id}");
        let refused = grown(&mut client, id, GIB).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{id}");
        let refused = attached(&mut client, id, &instance(1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{id}");
        let refused = client.create_snapshot(requests::cut("s", id)).await;
        assert_eq!(refused.unwrap_err().code(), Code::NotFound, "{id}");
        // No snapshot has the ID; the list is searched for the name.
        client.delete_snapshot(requests::discard(id)).await.unwrap();
        let paths = cloud.kinds().into_keys();
        let paths: Vec<_> = paths
            .filter(|kind| kind != "GET /v2/snapshots" && !kind.ends_with("/not-a-uuid"))
            .collect();
        let is_possible = id.starts_with("00000000");
        assert_eq!(paths.is_empty(), !is_possible, "{id}: {paths:?}");
    }
}
