//! The health of volumes: a real store inspects the files, and the controller reports them.

use super::{Front, LONG, PATIENCE, SMALL, place_of, request};
use crate::server::Server;
use crate::store::{Node, is_served};
use belay_proto::csi::v1 as csi;
use csi::controller_server::Controller as _;
use csi::volume_health::VolumeHealthEntry;
use std::fs;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Request;

/// Returns the conditions of the volume, and checks that the list of unhealthy volumes agrees.
async fn conditions(front: &Front, id: &str) -> Vec<VolumeHealthEntry> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let health = front.call(|service| async move {
        let one = service.controller_get_volume_health(Request::new(request));
        let one = one.await?.into_inner().volume_health.unwrap();
        let request = csi::ControllerListVolumeHealthRequest::default();
        let all = service.controller_list_volume_health(Request::new(request));
        Ok((one, all.await?.into_inner()))
    });
    let (one, all) = health.await.unwrap().unwrap();
    let mut listed = all.entries.iter();
    let is_listed = listed.any(|it| it.volume_id == id);
    assert_eq!(is_listed, !one.health_statuses.is_empty(), "{all:?}");
    one.health_statuses
}

/// Waits until the volume has conditions or has none, and returns them.
async fn becomes(front: &Front, id: &str, is_healthy: bool) -> Vec<VolumeHealthEntry> {
    let reached = timeout(PATIENCE, async {
        loop {
            let conditions = conditions(front, id).await;
            if conditions.is_empty() == is_healthy {
                return conditions;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    reached.await.unwrap()
}

pub(crate) async fn a_removed_file_is_reported_until_it_is_restored(server: &Server) {
    let front = Front::start(server, LONG).await;
    let mut node = Node::new(server, "health");
    node.start();
    node.begin().await;
    node.disk_shows("default", is_served).await;
    let created = front.create(request("health-1", &["health"])).await;
    let id = created.unwrap().unwrap().volume_id;
    assert_eq!(conditions(&front, &id).await, []);

    // A store checks its volumes soon after its start.
    let (file, away) = (node.file(&id), node.file("vol-away"));
    fs::rename(&file, &away).unwrap();
    node.kill();
    node.start();
    let found = becomes(&front, &id, false).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].reason, "BackingFileMissing");
    let message = &found[0].message;
    let path = file.display().to_string();
    assert!(message.contains("disk health.default"), "{message}");
    assert!(message.contains(&path), "{message}");

    // Other reports keep the conditions.
    let object = front.when("health-1", |_| true).await;
    assert_eq!(place_of(&object), "health");
    front.grow(&id, 2 * SMALL).await.unwrap().unwrap_err();
    assert_eq!(conditions(&front, &id).await, found);

    fs::rename(&away, &file).unwrap();
    node.kill();
    node.start();
    becomes(&front, &id, true).await;
    let object = front.when("health-1", |_| true).await;
    assert_eq!(object.known_status().unwrap().conditions, None);
    front.delete(&id).await.unwrap().unwrap();
}
