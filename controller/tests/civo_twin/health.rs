//! The health of volumes that have failed without a call of the driver.

use crate::site::{Site, cloud, created};
use belay_bed::patience::{PATIENCE, pause};
use belay_bed::scrape;
use belay_proto::csi::v1 as csi;
use belay_twins::civo::Status;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_volume_is_named_by_its_health_the_list_the_metric_and_the_log() {
    let cloud = cloud(Duration::ZERO);
    let mut site = Site::new(&cloud);
    let pages = scrape::free_port().unwrap();
    site.flags.push(format!("--http-endpoint={pages}").leak());
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let whole = created(&mut client, "pvc-2").await.unwrap();
    {
        let mut twin = cloud.service().twin();
        twin.change().volumes.get_mut(&id).unwrap().status = Status::Error;
        // The meaning of a word that Civo does not document is not guessed.
        let other = twin.change().volumes.get_mut(&whole).unwrap();
        other.status = Status::Perplexed;
    }
    let calls = cloud.count("GET /v2/volumes/ID");
    let request = csi::ControllerListVolumeHealthRequest::default();
    let listed = client.controller_list_volume_health(request).await;
    let listed = listed.unwrap().into_inner().entries;
    assert_eq!(cloud.count("GET /v2/volumes/ID"), calls);
    let [entry] = &listed[..] else {
        panic!("{listed:?}");
    };
    assert_eq!(entry.volume_id, id);
    for (volume, reasons) in [(&id, &["CloudError"][..]), (&whole, &[])] {
        let request = csi::ControllerGetVolumeHealthRequest {
            volume_id: volume.clone(),
            ..Default::default()
        };
        let health = client.controller_get_volume_health(request).await.unwrap();
        let statuses = health.into_inner().volume_health.unwrap().health_statuses;
        let found: Vec<_> = statuses.iter().map(|it| it.reason.as_str()).collect();
        assert_eq!(found, reasons, "{statuses:?}");
    }
    let line = "belay_volumes_unhealthy{driver=\"csi.civo.com\",reason=\"CloudError\"} 1";
    // The controller reads the list once a minute.
    let end = Instant::now() + 2 * PATIENCE;
    loop {
        let (_, page) = scrape::get(pages, "/metrics").unwrap();
        if page.lines().any(|it| it == line) {
            break;
        }
        assert!(Instant::now() < end, "{page}");
        pause();
    }
    let log = site.log();
    let mut lines = log.lines().filter(|it| it.contains("unhealthy"));
    assert!(lines.all(|it| it.contains(&id)), "{log}");
}
