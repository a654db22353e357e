//! Services of the cloud that are frozen: the call ends well, or with the right code and a message
//! that names the cause, and a repeated call ends well once they go on.

use std::time::Duration;

use belay_openstack::{Bed, Cloud};
use belay_proto::csi::v1 as csi;
use tokio::time::sleep;
use tonic::Code;

use crate::site::{Client, Site, by_password, create, created, deleted, in_time, unique};

/// A frozen service, which goes on when this is dropped.
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
    let site = Site::new(&by_password(&bed));
    let _controller = site.start();
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
    let bed = Bed::open();
    let cloud = Cloud::by_password(&bed);
    let site = Site::new(&by_password(&bed));
    let _controller = site.start();
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
