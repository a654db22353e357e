//! Services of the cloud that are frozen or killed: the call ends well, or with the right code and
//! a message that names the cause, and a repeated call ends well once they go on.

use std::time::Duration;

use belay_bed::requests;
use belay_openstack::Bed;
use belay_proto::csi::v1 as csi;
use serde_json::json;
use tokio::time::sleep;
use tonic::Code;

use crate::site::{
    Client, Site, assert_refused, attached, block, by_password, create, created, deleted, detached,
    in_time, opened, unique,
};

/// A frozen service, which resumes when this is dropped.
struct Frozen<'a> {
    bed: &'a Bed,
    name: &'a str,
}

impl<'a> Frozen<'a> {
    fn new(bed: &'a Bed, name: &'a str) -> Self {
        bed.command(&["freeze", name]);
        Self { bed, name }
    }

    fn ends(self) {
        drop(self);
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(errors) = self.bed.try_command(&["thaw", self.name]) {
            eprintln!("thaw {}: {errors}", self.name);
        }
    }
}

/// A killed service, which is started again when this is dropped.
struct Killed<'a> {
    bed: &'a Bed,
    start: Vec<&'a str>,
}

impl<'a> Killed<'a> {
    fn new(bed: &'a Bed, name: &'a str) -> Self {
        bed.command(&["kill", name]);
        let start = vec!["start", name];
        Self { bed, start }
    }

    fn ends(self) {
        drop(self);
    }
}

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        if let Err(errors) = self.bed.try_command(&self.start) {
            eprintln!("{:?}: {errors}", self.start);
        }
    }
}

/// Creates the volume, as the provisioner does: it repeats what may still be running.
async fn patient(client: &mut Client, name: &str) -> csi::Volume {
    let repeated = async {
        loop {
            match client.create_volume(create(name, 1)).await {
                Ok(answer) => return answer.into_inner().volume.unwrap(),
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    in_time("a created volume", repeated).await
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_frozen_keystone_is_named_by_a_call_that_must_log_in() {
    let bed = Bed::open();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let trouble = Frozen::new(&bed, "keystone");
    let name = unique("late");
    let refused = client.create_volume(create(&name, 1)).await;
    let status = refused.unwrap_err();
    let code = status.code();
    assert!(
        matches!(code, Code::Unavailable | Code::DeadlineExceeded),
        "{status}"
    );
    assert!(status.message().contains("/auth/tokens"), "{status}");
    trouble.ends();
    let id = created(client, &name).await.volume_id;
    deleted(client, &id).await;
}

/// Cinder records the volume, and then waits for the queue.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_create_that_timed_out_at_a_frozen_queue_is_found_by_its_name() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    // With a session, and tokens that the services know.
    let first = created(client, &unique("first")).await.volume_id;
    let fronts = bed.fronts();
    let searches = || fronts.count("cinder", "GET", "/v3/volumes/detail");
    let name = unique("lost");
    fronts.forget();
    let trouble = Frozen::new(&bed, "rabbitmq");
    let (volume, ()) = tokio::join!(patient(client, &name), async {
        // One before the creation, and the next after its time-out.
        let searched = async {
            while searches() < 2 {
                sleep(Duration::from_millis(500)).await;
            }
        };
        in_time("a second search", searched).await;
        trouble.ends();
    });
    assert_eq!(
        fronts.count("cinder", "POST", "/v3/volumes"),
        2,
        "a creation and a claim"
    );
    assert_eq!(cloud.volumes(Some(&name)).len(), 1);
    for id in [first, volume.volume_id] {
        deleted(client, &id).await;
    }
}

/// The queue keeps what was asked of it. Once the scheduler sees that no service of the storage is
/// up, after 15 s, new volumes fail at once.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_killed_storage_service_delays_a_volume_and_later_fails_new_ones_without_a_trace() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let trouble = Killed::new(&bed, "cinder-volume");
    let (early, late) = (unique("early"), unique("late"));
    let waits = async {
        let mut client = site.client().await;
        patient(&mut client, &early).await
    };
    let (early_made, ()) = tokio::join!(waits, async {
        let down = async {
            loop {
                match client.create_volume(create(&late, 1)).await {
                    Err(status) if status.code() == Code::Aborted => {}
                    answer => break assert_refused(answer, Code::ResourceExhausted, "weighted"),
                }
            }
        };
        // Volumes of other names were begun while the service still counted as up.
        let down = async {
            sleep(Duration::from_secs(20)).await;
            down.await;
        };
        in_time("a refusal", down).await;
        assert!(cloud.volumes(Some(&late)).is_empty(), "{late} is left");
        assert_eq!(cloud.volumes(Some(&early))[0].status, "creating");
        trouble.ends();
    });
    assert_eq!(cloud.volumes(Some(&early)).len(), 1);
    let late_made = in_time("a created volume", async {
        loop {
            match client.create_volume(create(&late, 1)).await {
                Ok(answer) => break answer.into_inner().volume.unwrap(),
                // The scheduler has not heard of the new service yet.
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
            }
            sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    for id in [early_made.volume_id, late_made.volume_id] {
        deleted(client, &id).await;
    }
}

/// The record that Nova makes when the service resumes stays as long as the server does.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_frozen_compute_service_is_reported_and_so_is_the_record_that_it_leaves() {
    let (bed, cloud) = opened();
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("frozen")).await.volume_id;
    let other = created(client, &unique("other")).await.volume_id;
    let trouble = Frozen::new(&bed, "nova-compute-a");
    let attach = |node: &str| requests::attach(&id, node, block());
    let refused = client.controller_publish_volume(attach(&here.id)).await;
    assert_refused(refused, Code::Unavailable, "os-volume_attachments: 500");
    trouble.ends();
    // The service resumes.
    attached(client, &other, &here.id).await;
    for node in [&here.id, &there.id] {
        let stale = client.controller_publish_volume(attach(node)).await;
        let status = stale.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status}");
        for part in ["Nova has a record", &*id, &*here.id] {
            assert!(status.message().contains(part), "{part}: {status}");
        }
    }
    let volume = cloud.volume(&id).unwrap();
    assert_eq!((&*volume.status, volume.servers.len()), ("available", 0));
    // Nothing is attached, so that a detach has nothing to do.
    detached(client, &id, &here.id).await;
    detached(client, &other, &here.id).await;
    drop(here);
    let moved = async {
        while let Err(status) = client.controller_publish_volume(attach(&there.id)).await {
            assert_eq!(status.code(), Code::Aborted, "{status}");
            sleep(Duration::from_secs(1)).await;
        }
    };
    in_time("an attachment", moved).await;
    assert_eq!(bed.disks(&there.id).len(), 1);
    assert_eq!(cloud.volume(&id).unwrap().servers, [there.id.as_str()]);
    detached(client, &id, &there.id).await;
    for id in [id, other] {
        deleted(client, &id).await;
    }
}

/// Cinder has seen the token and caches that; Nova asks Keystone, and answers in plain text.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_killed_keystone_stops_only_calls_that_need_it_and_they_say_so() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, later) = (Site::new(&by_password(&bed)), Site::new(&by_password(&bed)));
    let (_controller, _later) = (site.start(), later.start());
    let client = &mut site.client().await;
    let id = created(client, &unique("known")).await.volume_id;
    let trouble = Killed::new(&bed, "keystone");
    let known = client.controller_get_volume(requests::get(&id)).await;
    assert!(known.is_ok(), "{known:?}");
    let request = || requests::attach(&id, &server.id, block());
    let refused = client.controller_publish_volume(request()).await;
    assert_refused(refused, Code::Unavailable, "os-volume_attachments: 503");
    let login = later.client().await.create_volume(create("later", 1)).await;
    assert_refused(login, Code::Unavailable, "/auth/tokens");
    trouble.ends();
    attached(client, &id, &server.id).await;
    detached(client, &id, &server.id).await;
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn tokens_of_ten_seconds_are_renewed_and_no_call_sees_that() {
    let bed = Bed::open();
    let mut trouble = Killed::new(&bed, "keystone");
    trouble.start.extend(["--token-seconds", "10"]);
    trouble.ends();
    // Whatever follows, the next tests have long tokens.
    let restored = Killed {
        bed: &bed,
        start: vec!["start", "keystone"],
    };
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let fronts = bed.fronts();
    fronts.forget();
    let logins = || fronts.count("keystone", "POST", "/v3/auth/tokens");
    let mut renewed = 0;
    while logins() < 4 {
        let id = created(client, &unique("brief")).await.volume_id;
        deleted(client, &id).await;
        sleep(Duration::from_secs(2)).await;
        renewed += 1;
        assert!(renewed < 60, "{} logins", logins());
    }
    bed.command(&["kill", "keystone"]);
    restored.ends();
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_login_to_an_unknown_project_is_refused_in_keystones_words() {
    let bed = Bed::open();
    let conf = by_password(&bed);
    let project = format!("tenant-name = {}", bed.text("/project"));
    assert!(conf.contains(&project));
    let site = Site::new(&conf.replace(&project, "tenant-name = nowhere"));
    let _controller = site.start();
    let client = &mut site.client().await;
    let refused = client.create_volume(create("nowhere", 1)).await;
    assert_refused(refused, Code::Aborted, "/auth/tokens: 401");
}

/// The proxy in front cuts the connection then, as the kernel would.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_killed_api_is_named_and_the_repeated_call_ends_well() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("killed")).await.volume_id;
    let trouble = Killed::new(&bed, "cinder");
    let name = unique("killed");
    let refused = client.create_volume(create(&name, 1)).await;
    assert_refused(refused, Code::Unavailable, "/volumes/detail");
    let refused = client.delete_volume(requests::delete(&id)).await;
    assert_refused(
        refused,
        Code::Unavailable,
        &format!("DELETE /v3/volumes/{id}"),
    );
    let attach = || requests::attach(&id, &server.id, block());
    let refused = client.controller_publish_volume(attach()).await;
    assert_refused(refused, Code::Unavailable, &format!("/volumes/{id}"));
    trouble.ends();
    let trouble = Killed::new(&bed, "nova");
    let refused = client.controller_publish_volume(attach()).await;
    assert_refused(refused, Code::Unavailable, "os-volume_attachments");
    assert_eq!(cloud.volume(&id).unwrap().status, "available");
    trouble.ends();
    attached(client, &id, &server.id).await;
    detached(client, &id, &server.id).await;
    deleted(client, &id).await;
    let id = created(client, &name).await.volume_id;
    assert_eq!(cloud.volumes(Some(&name)).len(), 1);
    deleted(client, &id).await;
}

/// Takes as long as a call waits.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_detach_that_the_storage_fails_is_not_called_done_and_its_cure_is_in_the_docs() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("stuck")).await.volume_id;
    attached(client, &id, &server.id).await;
    let faults = bed.faults();
    faults.set("terminate_connection", &json!({"fail": true}));
    let detach = || requests::detach(&id, &server.id);
    // Nova has accepted it, and Cinder keeps the attachment.
    let first = client.controller_unpublish_volume(detach()).await;
    assert_refused(
        first,
        Code::Aborted,
        "still in progress in the storage (detaching); repeat the call; if this persists, the logs \
         of cinder-volume, nova-compute or cinder-backup say why",
    );
    let volume = cloud.volume(&id).unwrap();
    assert_eq!((&*volume.status, volume.servers.len()), ("detaching", 1));
    let deletion = client.delete_volume(requests::delete(&id)).await;
    assert_refused(deletion, Code::Aborted, &id);
    faults.clear("terminate_connection");
    cloud.reset(&id, "in-use", "attached");
    detached(client, &id, &server.id).await;
    assert_eq!(cloud.volume(&id).unwrap().status, "available");
    deleted(client, &id).await;
}
