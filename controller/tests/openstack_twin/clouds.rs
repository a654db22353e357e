//! The key `cloud` in the secrets of calls.

use crate::site::{Client, Site, attached, block, create, created, cut};
use crate::twin::PASSWORD;
use crate::wire::Cloud;
use belay_bed::patience::until;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};

const GIB: i64 = 1 << 30;
const NODE: &str = "5e000000-0000-4000-8000-000000000001";
/// The ID of a volume that no cloud has.
const NONE: &str = "00000000-0000-4000-8000-000000000000";

/// Returns the secrets of calls for this cloud.
fn of(cloud: &str) -> HashMap<String, String> {
    HashMap::from([("cloud".to_owned(), cloud.to_owned())])
}

/// Makes every call that can have secrets, with these; returns the responses.
async fn asked(
    client: &mut Client,
    [volume, snapshot]: [&str; 2],
    cloud: &str,
) -> Vec<(&'static str, Result<(), Status>)> {
    let secrets = || of(cloud);
    let (mut answers, id) = (Vec::new(), volume.to_owned());
    macro_rules! ask {
        ($call:ident, $request:expr) => {
            let mut request = $request;
            request.secrets = secrets();
            let answer = client.$call(request).await.map(drop);
            answers.push((stringify!($call), answer));
        };
    }
    ask!(create_volume, create("pvc-2"));
    ask!(
        validate_volume_capabilities,
        csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: vec![block()],
            ..Default::default()
        }
    );
    ask!(controller_expand_volume, requests::grow(volume, 2 * GIB));
    ask!(
        controller_modify_volume,
        csi::ControllerModifyVolumeRequest {
            volume_id: id.clone(),
            ..Default::default()
        }
    );
    ask!(create_snapshot, requests::cut("snap-2", volume));
    ask!(
        get_snapshot,
        csi::GetSnapshotRequest {
            snapshot_id: snapshot.to_owned(),
            ..Default::default()
        }
    );
    ask!(
        list_snapshots,
        csi::ListSnapshotsRequest {
            max_entries: 10,
            ..Default::default()
        }
    );
    ask!(delete_snapshot, requests::discard(snapshot));
    ask!(
        controller_publish_volume,
        requests::attach(volume, NODE, block())
    );
    ask!(controller_unpublish_volume, requests::detach(volume, NODE));
    ask!(delete_volume, requests::delete(volume));
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_another_cloud_is_refused_before_the_cloud_is_asked() {
    let cloud = Cloud::start(Duration::ZERO, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    let snapshot = cut(client, "snap-1", &id).await.unwrap();
    attached(client, &id, NODE).await.unwrap();
    let seen = || {
        let mut twin = cloud.twin();
        (twin.count(), twin.all())
    };
    let before = seen();
    for (call, answer) in asked(client, [&id, &snapshot], "canary-cloud").await {
        let refused = answer.expect_err(call);
        assert_eq!(refused.code(), Code::InvalidArgument, "{call}: {refused}");
        let message = refused.message();
        assert!(message.contains("secrets[cloud]: "), "{call}: {message}");
        assert!(!message.contains("canary"), "{call}: {message}");
    }
    assert_eq!(seen(), before);
    assert!(!site.log().contains("canary"));
}

/// Returns a section of `cloud.conf` for the cloud with this URL.
fn section(name: &str, url: &str) -> String {
    format!(
        "[Global \"{name}\"]\nauth-url={url}/identity\nusername=csi\npassword={PASSWORD}\n\
         tenant-name=k8s\ndomain-name=Default\nregion=one\n"
    )
}

/// Starts two clouds, `[Global]` and `b`.
pub(crate) fn clouds() -> [Cloud; 2] {
    let clouds = [(); 2].map(|()| Cloud::start(Duration::ZERO, None));
    clouds[1].twin().number = 1;
    clouds
}

/// Creates a site for both clouds, and another one that may be unreachable.
pub(crate) fn site([a, b]: &[Cloud; 2], down: Option<&str>) -> Site {
    let more = down.map(|url| section("down", url)).unwrap_or_default();
    let more = section("b", &b.url()) + &more + "[Global \"unused\"]\nregion=nowhere\n";
    let mut site = Site::new(&a.url(), &more);
    let names = if down.is_some() { "b,,down" } else { "b," };
    site.flags.push(format!("--cloud-name={names}"));
    site
}

pub(crate) async fn created_in(client: &mut Client, cloud: &str, name: &str) -> String {
    let secrets = of(cloud);
    let request = csi::CreateVolumeRequest {
        secrets,
        ..create(name)
    };
    let answer = client.create_volume(request).await.unwrap();
    answer.into_inner().volume.unwrap().volume_id
}

async fn deleted_in(client: &mut Client, cloud: &str, id: &str) -> Result<(), Status> {
    let secrets = of(cloud);
    let request = csi::DeleteVolumeRequest {
        secrets,
        ..requests::delete(id)
    };
    client.delete_volume(request).await.map(drop)
}

/// Checks that the refusal names the key, and the cloud that has the object.
#[track_caller]
fn is_elsewhere(answer: Result<(), Status>, cloud: &str) {
    let refused = answer.unwrap_err();
    let message = refused.message();
    assert_eq!(refused.code(), Code::InvalidArgument, "{message}");
    let expected = format!("is in another cloud, that of {cloud}:");
    assert!(
        message.contains("secrets[cloud]: ") && message.contains(&expected),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_for_the_cloud_of_its_secrets_and_a_change_in_another_one_is_refused() {
    let clouds = clouds();
    let site = site(&clouds, None);
    let _running = site.start();
    let client = &mut site.client().await;
    let a = created_in(client, "", "pvc-1").await;
    let b = created_in(client, "b", "pvc-1").await;
    for (cloud, id) in clouds.iter().zip([&a, &b]) {
        let all: Vec<_> = cloud.twin().all().into_keys().collect();
        assert_eq!(all, [id.as_str()]);
    }
    is_elsewhere(deleted_in(client, "b", &a).await, "[Global]");
    is_elsewhere(deleted_in(client, "", &b).await, "[Global \"b\"]");
    let attach = csi::ControllerPublishVolumeRequest {
        secrets: of("b"),
        ..requests::attach(&b, NODE, block())
    };
    client.controller_publish_volume(attach).await.unwrap();
    for node in [NODE, ""] {
        let detach = requests::detach(&b, node);
        let answer = client.controller_unpublish_volume(detach).await;
        is_elsewhere(answer.map(drop), "[Global \"b\"]");
    }
    assert_eq!(clouds[1].twin().all()[&b].as_deref(), Some(NODE));
    let detach = csi::ControllerUnpublishVolumeRequest {
        secrets: of("b"),
        ..requests::detach(&b, NODE)
    };
    for _ in 0..2 {
        let detach = detach.clone();
        client.controller_unpublish_volume(detach).await.unwrap();
    }
    let cut = csi::CreateSnapshotRequest {
        secrets: of("b"),
        ..requests::cut("snap-1", &b)
    };
    let snapshot = client.create_snapshot(cut).await.unwrap().into_inner();
    let snapshot = snapshot.snapshot.unwrap().snapshot_id;
    let answer = client.delete_snapshot(requests::discard(&snapshot)).await;
    is_elsewhere(answer.map(drop), "[Global \"b\"]");
    let discard = csi::DeleteSnapshotRequest {
        secrets: of("b"),
        ..requests::discard(&snapshot)
    };
    for _ in 0..2 {
        let discard = discard.clone();
        client.delete_snapshot(discard).await.unwrap();
    }
    for (cloud, id) in [("", &a), ("b", &b), ("b", &b)] {
        deleted_in(client, cloud, id).await.unwrap();
    }
    for cloud in &clouds {
        assert!(cloud.twin().all().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_secrets_see_the_volumes_of_all_clouds() {
    let clouds = clouds();
    let site = site(&clouds, None);
    let _running = site.start();
    let client = &mut site.client().await;
    let mut ids = Vec::new();
    for n in 0..2 {
        ids.push(created_in(client, "b", &format!("pvc-{n}")).await);
    }
    for id in &ids {
        client
            .controller_get_volume(requests::get(id))
            .await
            .unwrap();
    }
    let request = requests::get(NONE);
    let missing = client.controller_get_volume(request).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    ids.push(created(client, "pvc-2").await.unwrap());
    let (mut listed, mut token) = (Vec::new(), String::new());
    loop {
        let request = csi::ListVolumesRequest {
            max_entries: 1,
            starting_token: token,
        };
        let page = client.list_volumes(request).await.unwrap().into_inner();
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        listed.extend(volumes.map(|volume| volume.volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    listed.sort();
    ids.sort();
    assert_eq!(listed, ids);
    for token in [&ids[0], ":c", ""] {
        let request = csi::ListVolumesRequest {
            max_entries: 10,
            starting_token: token.to_owned(),
        };
        let answer = client.list_volumes(request).await;
        match token {
            "" => assert_eq!(answer.unwrap().into_inner().entries.len(), 1, "first cloud"),
            _ => assert_eq!(answer.unwrap_err().code(), Code::Aborted, "{token}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_volume_is_not_deleted_while_a_cloud_that_may_have_it_is_down() {
    let clouds = clouds();
    // No server listens on this port.
    let url = format!("http://{}", belay_bed::scrape::free_port().unwrap());
    let site = site(&clouds, Some(&url));
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created_in(client, "b", "pvc-1").await;
    client
        .controller_get_volume(requests::get(&id))
        .await
        .unwrap();
    deleted_in(client, "b", &id).await.unwrap();
    let missing = deleted_in(client, "b", &id).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unavailable, "{missing}");
    let message = missing.message();
    assert!(
        message.contains("may be in another cloud: [Global \"down\"]: "),
        "{message}"
    );
    let unknown = client.controller_get_volume(requests::get(&id)).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_unnamed_section_a_call_must_name_its_cloud() {
    let clouds = clouds();
    let mut site = Site::new("http://127.0.0.1:9", &section("b", &clouds[1].url()));
    site.flags.push("--cloud-name=b".to_owned());
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created_in(client, "b", "pvc-1").await;
    client
        .controller_get_volume(requests::get(&id))
        .await
        .unwrap();
    let refused = created(client, "pvc-2").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let message = refused.message();
    assert!(message.contains("secrets[cloud]: is missing"), "{message}");
    assert!(message.contains("it uses [Global \"b\"]:"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_credentials_of_each_cloud_are_its_section_s_and_can_be_corrected_without_a_restart() {
    let [a, b] = clouds();
    let good = section("b", &b.url());
    let mut site = Site::new(&a.url(), &good.replace(PASSWORD, "expired"));
    site.flags.push("--cloud-name=,b".to_owned());
    let _running = site.start();
    let client = &mut site.client().await;
    created(client, "pvc-1").await.unwrap();
    let request = || csi::CreateVolumeRequest {
        secrets: of("b"),
        ..create("pvc-2")
    };
    let created = client.create_volume(request()).await.map(drop);
    let deleted = deleted_in(client, "b", NONE).await;
    // An earlier call may have created the volume.
    for (answer, code) in [(created, Code::Aborted), (deleted, Code::Unauthenticated)] {
        let refused = answer.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        let message = refused.message();
        assert!(message.starts_with("[Global \"b\"]: "), "{message}");
        assert!(message.contains("401"), "{message}");
    }
    site.configure(&a.url(), &good);
    client.create_volume(request()).await.unwrap();
    assert_eq!(b.twin().all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_does_not_get_the_answer_of_one_for_another_cloud() {
    let clouds = clouds();
    let site = site(&clouds, None);
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created_in(client, "", "pvc-1").await;
    clouds[1].hold(true);
    let wrong = {
        let (mut client, id) = (client.clone(), id.clone());
        tokio::spawn(async move { deleted_in(&mut client, "b", &id).await })
    };
    until("the first call runs", || site.jobs() == 1);
    let second = deleted_in(client, "", &id).await.unwrap_err();
    assert_eq!(second.code(), Code::Aborted, "{second}");
    clouds[1].hold(false);
    is_elsewhere(wrong.await.unwrap(), "[Global]");
    deleted_in(client, "", &id).await.unwrap();
    assert!(clouds[0].twin().all().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_lines_and_metrics_name_the_cloud_where_there_are_several() {
    let clouds = clouds();
    let created_with = |section: &str, count: usize| {
        let labels = format!("cloud=\"openstack\",verb=\"create_volume\",code=\"202\"{section}");
        format!("belay_cloud_duration_seconds_count{{{labels}}} {count}\n")
    };
    let warning = "pods on servers in the zones";
    let mut alone = Site::new(&clouds[0].url(), "");
    alone.has_topology = true;
    let running = alone.start();
    created(&mut alone.client().await, "pvc-0").await.unwrap();
    let page = alone.metrics();
    assert!(page.contains(&created_with("", 1)), "{page}");
    until("the zones are compared", || alone.log().contains(warning));
    assert!(!alone.log().contains("cloud="), "{}", alone.log());
    drop(running);

    let mut site = site(&clouds, None);
    site.has_topology = true;
    let _running = site.start();
    let client = &mut site.client().await;
    for (cloud, name) in [("", "pvc-1"), ("b", "pvc-2"), ("b", "pvc-3")] {
        created_in(client, cloud, name).await;
    }
    let page = site.metrics();
    for (section, count) in [(",section=\"\"", 1), (",section=\"b\"", 2)] {
        assert!(page.contains(&created_with(section, count)), "{page}");
    }
    for (cloud, name) in [("[Global]", "pvc-1"), ("[Global \\\"b\\\"]", "pvc-2")] {
        let named = format!("cloud=\"{cloud}\"");
        let call = format!("rpc=\"CreateVolume\" subject=\"{name}\" {named} code=\"OK\"");
        assert!(site.log().contains(&call), "{call}: {}", site.log());
        let is_logged = |line: &str| line.contains(warning) && line.contains(&named);
        until(&named, || site.log().lines().any(is_logged));
    }
}
