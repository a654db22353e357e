//! Known defects of civo-csi. The name of a test is the defect that it excludes; the tests of the
//! node agent cover those on the node.

use crate::site::{
    Client, Cloud, GIB, Site, attached, block, cloud, create, created, deleted, detached, files,
    grown, instance, made, nowhere,
};
use belay_bed::patience::until;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use belay_twins::civo::{KEY, Quota, Status};
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::Code;

const ATTACH: &str = "PUT /v2/volumes/ID/attach";
const DETACH: &str = "PUT /v2/volumes/ID/detach";
const CREATE: &str = "POST /v2/volumes";
const LIST: &str = "GET /v2/volumes";
const GET: &str = "GET /v2/volumes/ID";

/// Starts a cloud whose changes take this time, and a controller that serves.
async fn begin(delay: Duration) -> (Cloud, Site, belay_bed::programs::Running, Client) {
    let cloud = cloud(delay);
    let site = Site::new(&cloud);
    let running = site.start();
    let client = site.client().await;
    site.ready().await;
    cloud.forget();
    (cloud, site, running, client)
}

fn status_of(cloud: &Cloud, id: &str) -> (Status, Option<String>) {
    let twin = cloud.service().twin();
    let volume = &twin.state().volumes[id];
    (volume.status, volume.instance.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_concurrent_retries_make_duplicate_volumes() {
    let (cloud, _site, _running, client) = begin(Duration::from_millis(100)).await;
    cloud.service().twin().settings.has_unique_names = false;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let mut client = client.clone();
        calls.spawn(async move { created(&mut client, "pvc-1").await.unwrap() });
    }
    let ids = calls.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(cloud.service().twin().state().volumes.len(), 1);
    assert_eq!(cloud.count(CREATE), 1, "{:?}", cloud.kinds());
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_an_attach_waits_five_seconds_and_is_unavailable() {
    let (cloud, _site, _running, mut client) = begin(Duration::ZERO).await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    cloud.service().twin().settings.delay = Duration::from_secs(7);
    cloud.forget();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    // There is one poll before, and then one after 0.25 s, at intervals that grow with the elapsed
    // time.
    let polls = cloud.count(GET) - 1;
    assert!((4..=16).contains(&polls), "{:?}", cloud.kinds());
    assert_eq!(cloud.count(ATTACH), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn c6_a_volume_that_is_attaching_here_gets_a_second_attach_call() {
    let (cloud, site, mut running, mut client) = begin(Duration::ZERO).await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    cloud.service().twin().settings.is_stuck = true;
    let node = instance(1);
    let call = attached(&mut client, &id, &node);
    let given_up = tokio::time::timeout(Duration::from_secs(2), call).await;
    assert!(given_up.is_err(), "it waits: {given_up:?}");
    assert_eq!(status_of(&cloud, &id).0, Status::Attaching);
    running.kill().unwrap();
    running.wait().unwrap();
    let _running = site.start();
    let mut client = site.client().await;
    let (call, freed) = tokio::join!(attached(&mut client, &id, &node), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cloud.service().twin().settings.is_stuck = false;
    });
    let ((), context) = (freed, call.unwrap());
    assert_eq!(context["serial"], id);
    assert_eq!(cloud.count(ATTACH), 1, "{:?}", cloud.kinds());
}

#[tokio::test(flavor = "multi_thread")]
async fn c6_a_volume_that_is_attached_elsewhere_is_unavailable() {
    let (cloud, _site, _running, mut client) = begin(Duration::ZERO).await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    let refused = attached(&mut client, &id, &instance(2)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&instance(1)), "{refused}");
    // The result is the same if another controller attaches the volume in between.
    detached(&mut client, &id, &instance(1)).await.unwrap();
    let other = instance(3);
    let lag = Duration::from_secs(3600);
    cloud.service().twin().lag(lag);
    {
        let mut twin = cloud.service().twin();
        let volume = twin.change().volumes.get_mut(&id).unwrap();
        (volume.status, volume.instance) = (Status::Attached, Some(other.clone()));
    }
    let refused = attached(&mut client, &id, &instance(2)).await.unwrap_err();
    assert_ne!(refused.code(), Code::Ok);
    cloud.service().twin().lag(Duration::ZERO);
    let refused = attached(&mut client, &id, &instance(2)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&other), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_an_unpublish_without_a_node_is_ok_and_detaches_nothing() {
    let (cloud, _site, _running, mut client) = begin(Duration::from_millis(100)).await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    detached(&mut client, &id, "").await.unwrap();
    assert_eq!(status_of(&cloud, &id), (Status::Available, None));
    assert_eq!(cloud.count(DETACH), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_quota_is_out_of_range_and_other_refusals_are_unknown() {
    let (cloud, _site, _running, mut client) = begin(Duration::ZERO).await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    cloud.service().twin().settings.quota.gib = 1;
    // The status of the response does not matter.
    for status in [None, Some(400), Some(409), Some(422)] {
        cloud.service().twin().settings.refusal_status = status;
        let refused = created(&mut client, "pvc-2").await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{status:?}");
        assert!(
            refused.message().contains("quota_limit_reached"),
            "{refused}"
        );
        let refused = crate::site::grown(&mut client, &id, 5 << 30).await;
        assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);
        let absent = "00000000-0000-4000-8000-0000000000ff";
        let refused = attached(&mut client, &id, absent).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        assert!(refused.message().contains(absent), "{refused}");
        let refused = attached(&mut client, absent, &instance(1))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }
    let capacity = |client: &Client| {
        let mut client = client.clone();
        async move {
            let request = csi::GetCapacityRequest::default();
            let answer = client.get_capacity(request).await.unwrap();
            answer.into_inner().available_capacity
        }
    };
    let quota = |gib, volumes| Quota {
        gib,
        volumes,
        snapshots: 9,
    };
    for (limit, free) in [(quota(9, 9), 8), (quota(1, 9), 0), (quota(9, 1), 0)] {
        cloud.service().twin().settings.quota = limit.clone();
        assert_eq!(capacity(&client).await, free << 30, "{limit:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_the_whole_account_is_listed_for_each_volume() {
    let (cloud, _site, _running, client) = begin(Duration::ZERO).await;
    let mut calls = JoinSet::new();
    for n in 0..50 {
        let mut client = client.clone();
        calls.spawn(async move { created(&mut client, &format!("pvc-{n}")).await.unwrap() });
    }
    assert_eq!(calls.join_all().await.len(), 50);
    assert_eq!(cloud.count(CREATE), 50);
    assert!(cloud.count(LIST) <= 10, "{:?}", cloud.kinds());
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_the_key_is_in_the_log_and_a_probe_calls_the_cloud() {
    let cloud = cloud(Duration::ZERO);
    let mut site = Site::new(&cloud);
    site.flags.push("--log-level=debug");
    let running = site.start();
    let mut client = site.client().await;
    site.ready().await;
    cloud.forget();
    let mut identity = site.identity().await;
    for _ in 0..10 {
        let ready = identity.probe(csi::ProbeRequest {}).await.unwrap();
        assert_ne!(ready.into_inner().ready, Some(false));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(cloud.count(""), 0, "an idle driver: {:?}", cloud.kinds());
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    // The service repeats the key in its refusal.
    cloud.service().twin().settings.key = "another".to_owned();
    let words = serde_json::json!({"code": "x", "reason": format!("bearer {KEY} is old: {KEY}")});
    let refusal = belay_twins::http::Response::json(401, &words);
    cloud.disturb("", 2, belay_twins::Fault::Refused(refusal));
    let refused = created(&mut client, "pvc-2").await.unwrap_err();
    assert!(!refused.message().contains(KEY), "{refused}");
    drop(running);
    let log = site.log();
    assert!(log.contains("DEBUG") && !log.contains(KEY), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_a_new_key_needs_a_restart() {
    let (cloud, site, _running, mut client) = begin(Duration::ZERO).await;
    cloud.service().twin().settings.key = "a-new-key".to_owned();
    let refused = created(&mut client, "pvc-1").await.unwrap_err();
    // An earlier call may have created the volume.
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert!(refused.message().contains("CIVO_API_KEY"), "{refused}");
    let refused = grown(&mut client, &instance(1), GIB).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    std::fs::write(site.key_file(), "a-new-key\n").unwrap();
    created(&mut client, "pvc-1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_there_is_ext4_only_no_block_no_snapshot_and_no_topology() {
    let cloud = cloud(Duration::ZERO);
    let mut site = Site::new(&cloud);
    site.flags.push("--with-topology");
    let _running = site.start();
    let mut client = site.client().await;
    for kind in ["ext4", "xfs", "btrfs", "block", ""] {
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeSingleWriter;
        let capability = requests::capability(kind, mode);
        let volume = made(
            &mut client,
            csi::CreateVolumeRequest {
                volume_capabilities: vec![capability],
                ..create(&format!("pvc-{kind}"))
            },
        );
        let volume = volume.await.unwrap();
        let segments = &volume.accessible_topology[0].segments;
        assert_eq!(segments["region"], "LON1");
    }
    let elsewhere = csi::Topology {
        segments: [("region".to_owned(), "FRA1".to_owned())].into(),
    };
    let refused = made(
        &mut client,
        csi::CreateVolumeRequest {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![elsewhere],
                preferred: vec![],
            }),
            ..create("pvc-far")
        },
    );
    assert_eq!(refused.await.unwrap_err().code(), Code::ResourceExhausted);
    let mut identity = site.identity().await;
    let request = csi::GetPluginCapabilitiesRequest {};
    let answer = identity.get_plugin_capabilities(request).await.unwrap();
    let said = format!("{:?}", answer.into_inner().capabilities);
    for word in ["VolumeAccessibilityConstraints", "Offline"] {
        assert!(said.contains(word), "{said}");
    }
    let request = csi::ControllerGetCapabilitiesRequest {};
    let answer = client.controller_get_capabilities(request).await.unwrap();
    let said = format!("{:?}", answer.into_inner().capabilities);
    for word in [
        "CreateDeleteSnapshot",
        "ExpandVolume",
        "ListSnapshots",
        "GetCapacity",
    ] {
        assert!(said.contains(word), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c12_a_bad_key_at_the_start_is_logged_and_an_empty_one_ends_it() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let running = site.start_by_variables("wrong").unwrap();
    let is_told = |line: &str| line.contains("CIVO_API_KEY") && line.contains("401");
    until("the refusal is logged", || site.log().lines().any(is_told));
    drop(running);
    let site = Site::new(&cloud);
    site.start_by_variables("").unwrap_err();
    assert!(site.log().contains("CIVO_API_KEY"), "{}", site.log());
    // Surrounding white space is removed from the values.
    let site = Site::new(&cloud);
    let _running = site.start_by_variables(KEY).unwrap();
    created(&mut site.client().await, "pvc-1").await.unwrap();
    // The controller does not exit if the cloud does not respond.
    let site = Site::new(&cloud);
    let url = site.key_file().with_file_name("api-url");
    std::fs::write(url, nowhere()).unwrap();
    let _running = site.start();
    let down = created(&mut site.client().await, "pvc-2")
        .await
        .unwrap_err();
    assert_eq!(down.code(), Code::Unavailable, "{down}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_unpublish_detaches_the_new_node() {
    let (cloud, _site, _running, mut client) = begin(Duration::ZERO).await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(2)).await.unwrap();
    detached(&mut client, &id, &instance(1)).await.unwrap();
    assert_eq!(
        status_of(&cloud, &id),
        (Status::Attached, Some(instance(2)))
    );
    assert_eq!(cloud.count(DETACH), 0);
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert_eq!(cloud.count("DELETE /v2/volumes/ID"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_says_how_it_began_and_a_static_one_nothing() {
    let (cloud, _site, _running, mut client) = begin(Duration::ZERO).await;
    let volume = made(&mut client, create("pvc-1")).await.unwrap();
    // Both responses are equal.
    let again = made(&mut client, create("pvc-1")).await.unwrap();
    assert_eq!(volume, again);
    let publish = |id: &str, context: &csi::Volume| csi::ControllerPublishVolumeRequest {
        volume_context: context.volume_context.clone(),
        ..requests::attach(id, &instance(1), files())
    };
    let request = publish(&volume.volume_id, &volume);
    let answer = client.controller_publish_volume(request).await.unwrap();
    assert_eq!(answer.into_inner().publish_context["content"], "used");
    let id = cloud.service().twin().change().add("by-hand", 3);
    let request = publish(&id, &csi::Volume::default());
    let answer = client.controller_publish_volume(request).await.unwrap();
    let context = answer.into_inner().publish_context;
    assert_eq!(context["content"], "unknown");
    assert_eq!(
        context["bytes"].parse::<i64>().unwrap(),
        (3 << 30) / 1000 * 900 / 4096 * 4096
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_has_the_type_of_its_class_or_of_the_cluster() {
    let (cloud, _site, _running, mut client) = begin(Duration::ZERO).await;
    let typed = |name: &str, kind: &str| csi::CreateVolumeRequest {
        parameters: [("type".to_owned(), kind.to_owned())].into(),
        ..create(name)
    };
    let fast = made(&mut client, typed("pvc-1", "encrypted-standard"))
        .await
        .unwrap();
    let usual = created(&mut client, "pvc-2").await.unwrap();
    let volumes = cloud.service().twin().state().volumes.clone();
    assert_eq!(volumes[&fast.volume_id].volume_type, "encrypted-standard");
    assert_eq!(volumes[&usual].volume_type, "standard");
    assert_eq!(volumes[&usual].network, "n-1");
    let raw = csi::CreateVolumeRequest {
        volume_capabilities: vec![block()],
        ..create("pvc-4")
    };
    made(&mut client, raw).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_and_a_claim_of_civo_csi_keep_their_meaning() {
    let (_cloud, site, _running, mut client) = begin(Duration::ZERO).await;
    // The request has no size, and a parameter that civo-csi ignores.
    let request = csi::CreateVolumeRequest {
        capacity_range: None,
        parameters: [("colour".to_owned(), "red".to_owned())].into(),
        ..create("pvc-1")
    };
    let volume = made(&mut client, request).await.unwrap();
    assert_eq!(volume.capacity_bytes, 10 << 30);
    let log = site.log();
    assert!(log.contains("colour"), "{log}");
}
