//! The health of volumes whose status an administrator or a failure has changed.

use crate::clouds::{clouds, created_in, site};
use crate::site::{Client, Site, created};
use crate::wire::Cloud;
use belay_bed::patience::{PATIENCE, pause};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::time::{Duration, Instant};
use tonic::Code;

/// Returns the IDs of the unhealthy volumes, each with its only reason, from pages of one entry.
async fn unhealthy(client: &mut Client) -> Vec<(String, String)> {
    let (mut all, mut request) = (
        Vec::new(),
        csi::ControllerListVolumeHealthRequest {
            max_entries: 1,
            ..Default::default()
        },
    );
    loop {
        let page = client.controller_list_volume_health(request.clone()).await;
        let page = page.unwrap().into_inner();
        for entry in page.entries {
            let [status] = &entry.health_statuses[..] else {
                panic!("{entry:?}");
            };
            all.push((entry.volume_id.clone(), status.reason.clone()));
        }
        if page.next_token.is_empty() {
            all.sort();
            return all;
        }
        request.starting_token = page.next_token;
    }
}

fn pair(id: &str, reason: &str) -> (String, String) {
    (id.to_owned(), reason.to_owned())
}

/// Waits for the next list, which the controller reads once a minute, until the page has the line.
fn wait_for(site: &Site, line: &str) {
    let end = Instant::now() + 2 * PATIENCE;
    while !site.metrics().lines().any(|it| it == line) {
        assert!(Instant::now() < end, "{line}: {}", site.metrics());
        pause();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_with_a_bad_status_is_named_by_its_health_the_list_the_metric_and_the_log() {
    let cloud = Cloud::start(Duration::ZERO, None);
    let site = Site::new(&cloud.url(), "");
    let _running = site.start();
    let client = &mut site.client().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        ids.push(created(client, &format!("pvc-{n}")).await.unwrap());
    }
    assert_eq!(unhealthy(client).await, []);
    let broken = [
        (0, "error", "CloudError"),
        (1, "error_deleting", "CloudError"),
        (2, "error_restoring", "CloudError"),
        (3, "maintenance", "CloudMaintenance"),
        (4, "deleting", "CloudDeleting"),
    ];
    for (n, status, _) in broken {
        cloud.twin().set_status(&ids[n], status);
    }
    cloud.twin().set_status(&ids[5], "retyping");
    let mut expected: Vec<_> = broken.map(|(n, _, it)| pair(&ids[n], it)).into();
    expected.sort();
    assert_eq!(unhealthy(client).await, expected);
    for (n, status, reason) in broken {
        let request = csi::ControllerGetVolumeHealthRequest {
            volume_id: ids[n].clone(),
            ..Default::default()
        };
        let health = client.controller_get_volume_health(request).await.unwrap();
        let health = health.into_inner().volume_health.unwrap();
        assert_eq!(health.volume_id, ids[n]);
        assert_eq!(health.health_statuses[0].reason, reason);
        let message = &health.health_statuses[0].message;
        assert!(message.contains(status), "{message}");
    }
    let found = client.controller_get_volume(requests::get(&ids[0])).await;
    let condition = found.unwrap().into_inner().status.unwrap().volume_condition;
    assert!(condition.unwrap().abnormal);
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: "00000000-0000-4000-8000-000000000000".to_owned(),
        ..Default::default()
    };
    let missing = client.controller_get_volume_health(request).await;
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);

    let metric = |reason: &str, count: usize| {
        let driver = "cinder.csi.openstack.org";
        format!("belay_volumes_unhealthy{{driver=\"{driver}\",reason=\"{reason}\"}} {count}")
    };
    wait_for(&site, &metric("CloudError", 3));
    wait_for(&site, &metric("CloudMaintenance", 1));
    // A deletion that takes less than the time between two lists is no fault.
    wait_for(&site, &metric("CloudDeleting", 0));
    let log = site.log();
    let lines = |words: &str, id: &str| {
        let is_about = |line: &&str| line.contains(words) && line.contains(id);
        log.lines().filter(is_about).count()
    };
    for (n, ..) in &broken[..4] {
        assert_eq!(lines("the volume is unhealthy: ", &ids[*n]), 1, "{log}");
    }
    for id in &ids[4..] {
        assert_eq!(lines("unhealthy", id), 0, "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_any_cloud_is_named() {
    let both = clouds();
    let site = site(&both, None);
    let _running = site.start();
    let client = &mut site.client().await;
    let ids = [
        created_in(client, "", "pvc-1").await,
        created_in(client, "b", "pvc-2").await,
    ];
    for (cloud, id) in both.iter().zip(&ids) {
        cloud.twin().set_status(id, "error_extending");
    }
    let mut expected = ids.each_ref().map(|id| pair(id, "CloudError"));
    expected.sort();
    assert_eq!(unhealthy(client).await, expected);
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: ids[1].clone(),
        ..Default::default()
    };
    let health = client.controller_get_volume_health(request).await.unwrap();
    let health = health.into_inner().volume_health.unwrap();
    assert_eq!(health.health_statuses[0].reason, "CloudError");
}
