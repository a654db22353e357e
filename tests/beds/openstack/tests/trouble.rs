//! Faults that the real services have shown: the call ends well, or with the right code and
//! a message that names the cause.

use std::collections::HashMap;

use belay_bed::requests;
use belay_contract::publish_context::Content;
use belay_openstack::Bed;
use belay_proto::csi::v1 as csi;
use serde_json::json;
use tokio::time::{Duration, sleep};
use tonic::{Code, Status};

use crate::lifecycle::read;
use crate::site::{
    Client, GIB, Site, assert_refused, attached, block, by_password, create, created, deleted,
    detached, opened, unique,
};

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_that_takes_long_is_waited_for_and_not_deleted_meanwhile() {
    let (bed, cloud) = opened();
    let (site, other) = (Site::new(&by_password(&bed)), Site::new(&by_password(&bed)));
    let _controllers = [site.start(), other.start()];
    let faults = bed.faults();
    faults.set("create_volume", &json!({"delay": 6, "once": true}));
    let name = unique("slow");
    let mut client = site.client().await;
    let (volume, ()) = tokio::join!(created(&mut client, &name), async {
        while faults.is_set("create_volume") {
            sleep(Duration::from_millis(100)).await;
        }
        let id = cloud.volumes(Some(&name)).remove(0).id;
        // Another controller knows no job of this volume, and Cinder refuses.
        let deletion = requests::delete(&id);
        let refused = other.client().await.delete_volume(deletion).await;
        assert_refused(refused, Code::Aborted, &id);
    });
    deleted(&mut client, &volume.volume_id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_that_fails_is_deleted_and_the_final_code_has_the_clouds_reason() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let faults = bed.faults();
    faults.set("create_volume", &json!({"fail": true}));
    let name = unique("fails");
    let refused = client.create_volume(create(&name, 1)).await;
    // The scheduler has tried all backends of the type and zone.
    assert_refused(refused, Code::ResourceExhausted, "weighted backend");
    assert!(cloud.volumes(Some(&name)).is_empty(), "{name} is left");
    faults.clear("create_volume");
    let id = created(client, &name).await.volume_id;
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn an_expansion_that_fails_keeps_the_volume_and_says_what_to_do() {
    let bed = Bed::open();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("fails")).await.volume_id;
    let faults = bed.faults();
    faults.set("extend_volume", &json!({"fail": true, "once": true}));
    for _ in 0..2 {
        let grown = client.controller_expand_volume(requests::grow(&id, 2 * GIB));
        assert_refused(grown.await, Code::FailedPrecondition, "error_extending");
    }
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_with_a_bad_status_is_named_by_its_health_and_the_metric() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("broken")).await.volume_id;
    for (status, reason) in [("maintenance", "CloudMaintenance"), ("error", "CloudError")] {
        cloud.reset(&id, status, "detached");
        let health = client.controller_get_volume_health(csi::ControllerGetVolumeHealthRequest {
            volume_id: id.clone(),
            ..Default::default()
        });
        let health = health.await.unwrap().into_inner().volume_health.unwrap();
        assert_eq!(health.health_statuses[0].reason, reason);
        let listed =
            client.controller_list_volume_health(csi::ControllerListVolumeHealthRequest::default());
        let listed = listed.await.unwrap().into_inner().entries;
        assert!(listed.contains(&health), "{listed:?}");
    }
    // The controller reads the list once a minute. Other tests may have failed volumes, too.
    let line = "reason=\"CloudError\"} ";
    for seconds in 0.. {
        let page = site.metrics();
        let mut values = page.lines().filter_map(|it| it.split_once(line));
        if values.any(|(_, value)| value != "0") {
            break;
        }
        assert!(seconds < 90, "{page}");
        sleep(Duration::from_secs(1)).await;
    }
    let log = site.log();
    let is_named = |it: &str| it.contains("unhealthy") && it.contains(&id);
    assert_eq!(log.lines().filter(|it| is_named(it)).count(), 1, "{log}");
    cloud.reset(&id, "available", "detached");
    deleted(client, &id).await;
}

/// The context of the attachment. Repeats a call that finds what Nova is about to forget of the
/// attachment that it has just dropped.
async fn attached_or_dropped(
    client: &mut Client,
    id: &str,
    node: &str,
) -> Result<HashMap<String, String>, Status> {
    loop {
        let request = requests::attach(id, node, block());
        match client.controller_publish_volume(request).await {
            Err(status) if status.message().contains("Nova has a record") => {
                assert_eq!(status.code(), Code::Aborted, "{status}");
            }
            answer => return answer.map(|answer| answer.into_inner().publish_context),
        }
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn an_attachment_that_nova_drops_is_named_and_made_again_and_a_slow_one_is_waited_for() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let (faults, fronts) = (bed.faults(), bed.fronts());
    let path = "/v2.1/servers/{id}/os-volume_attachments";
    let attaches = || fronts.count("nova", "POST", path);

    // Nova accepts each of these attachments, and none comes about.
    let dropped = created(client, &unique("dropped")).await.volume_id;
    faults.set("initialize_connection", &json!({"fail": true}));
    fronts.forget();
    let refused = attached_or_dropped(client, &dropped, &server.id).await;
    let drops = format!(
        "volume {dropped}: Nova accepted the attachment to server {} and dropped it: the volume \
         is available, attached to no server, and has 1 GiB; Cinder has no message about it; see \
         the logs of nova-compute of that server and of cinder-volume",
        server.id
    );
    assert_refused(refused, Code::Aborted, &drops);
    assert!(attaches() >= 2, "{}", attaches());
    let volume = cloud.volume(&dropped).unwrap();
    assert_eq!((&*volume.status, volume.servers.len()), ("available", 0));
    // The first one is dropped, and a later one is made.
    fronts.forget();
    let repeated = async {
        loop {
            match attached_or_dropped(client, &dropped, &server.id).await {
                Err(status) if status.code() == Code::Aborted => {}
                answer => break answer.unwrap(),
            }
        }
    };
    let (context, ()) = tokio::join!(repeated, async {
        while attaches() < 2 {
            sleep(Duration::from_millis(100)).await;
        }
        faults.clear("initialize_connection");
    });
    assert_eq!(read(&dropped, context).content, Content::New);
    assert_eq!(bed.disks(&server.id).len(), 1);
    detached(client, &dropped, &server.id).await;

    let slow = created(client, &unique("slow")).await.volume_id;
    faults.set("initialize_connection", &json!({"delay": 4, "once": true}));
    fronts.forget();
    let plan = read(&slow, attached(client, &slow, &server.id).await);
    assert_eq!(plan.content, Content::New);
    assert_eq!((attaches(), bed.disks(&server.id).len()), (1, 1));
    detached(client, &slow, &server.id).await;
    for id in [dropped, slow] {
        deleted(client, &id).await;
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_detachment_that_the_guest_refuses_is_named_and_made_once_the_guest_agrees() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("refuses")).await.volume_id;
    attached(client, &id, &server.id).await;
    let faults = bed.faults();
    faults.set("detach_volume", &json!({"fail": true}));
    let detach = requests::detach(&id, &server.id);
    let refused = client.controller_unpublish_volume(detach).await;
    let left = format!(
        "Nova accepted the detachment from server {0} and did not make it, such as when the guest \
         does not release the disk: the volume is in-use, attached to server {0}",
        server.id
    );
    assert_refused(refused, Code::Aborted, &left);
    assert_eq!(bed.disks(&server.id).len(), 1);
    faults.clear("detach_volume");
    detached(client, &id, &server.id).await;
    assert!(bed.disks(&server.id).is_empty());
    assert_eq!(cloud.volume(&id).unwrap().status, "available");
    deleted(client, &id).await;
}

/// The scheduler knows it only after Cinder has accepted the expansion.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn an_expansion_that_no_storage_has_room_for_says_so_and_leaves_the_volume() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("large")).await.volume_id;
    let grown = client.controller_expand_volume(requests::grow(&id, 30_000 * GIB));
    assert_refused(grown.await, Code::Internal, "weighted backend");
    let volume = cloud.volume(&id).unwrap();
    assert_eq!((&*volume.status, volume.size), ("available", 1));
    let grown = client.controller_expand_volume(requests::grow(&id, 2 * GIB));
    assert_eq!(grown.await.unwrap().into_inner().capacity_bytes, 2 * GIB);
    deleted(client, &id).await;
}

/// Nova deletes a server that it has answered with 204 for a while.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_server_that_is_being_deleted_gets_no_volume_and_is_named() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("late")).await.volume_id;
    let server = cloud.server("az-a");
    let node = server.id.clone();
    drop(server);
    let mut codes = Vec::new();
    while codes.last() != Some(&Code::NotFound) {
        let request = requests::attach(&id, &node, block());
        let status = client.controller_publish_volume(request).await.unwrap_err();
        assert!(status.message().contains(&node), "{status}");
        codes.push(status.code());
        assert!(
            matches!(codes.last(), Some(Code::Aborted | Code::NotFound)),
            "{codes:?}"
        );
        sleep(Duration::from_millis(50)).await;
    }
    detached(client, &id, &node).await;
    assert_eq!(cloud.volume(&id).unwrap().status, "available");
    deleted(client, &id).await;
}
