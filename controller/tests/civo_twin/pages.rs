//! Pages of lists. Civo has no pages, so the controller divides its lists.

use crate::site::{Client, Cloud, Site, cloud};
use belay_proto::csi::v1 as csi;
use belay_twins::civo::Snapshot;
use std::time::{Duration, Instant};
use tonic::Code;

const ENTRIES: usize = 25;
/// The values of `max_entries`, each with the number of entries of each page.
const PAGES: [(i32, &[usize]); 5] = [
    (0, &[25]),
    (1, &[1; ENTRIES]),
    (7, &[7, 7, 7, 4]),
    (25, &[25]),
    (1000, &[25]),
];

/// The IDs of all pages, and the number of entries of each page.
type Listed = (Vec<String>, Vec<usize>);

async fn volumes(client: &mut Client, max_entries: i32) -> Listed {
    let (mut ids, mut sizes, mut starting_token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let request = csi::ListVolumesRequest {
            max_entries,
            starting_token,
        };
        let page = client.list_volumes(request).await.unwrap().into_inner();
        sizes.push(page.entries.len());
        let entries = page.entries.into_iter();
        ids.extend(entries.map(|entry| entry.volume.unwrap().volume_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return (ids, sizes);
        }
    }
}

async fn snapshots(client: &mut Client, max_entries: i32) -> Listed {
    let (mut ids, mut sizes, mut starting_token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let request = csi::ListSnapshotsRequest {
            max_entries,
            starting_token,
            ..Default::default()
        };
        let page = client.list_snapshots(request).await.unwrap().into_inner();
        sizes.push(page.entries.len());
        let entries = page.entries.into_iter();
        ids.extend(entries.map(|entry| entry.snapshot.unwrap().snapshot_id));
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return (ids, sizes);
        }
    }
}

/// Creates volumes, each with a snapshot; returns the IDs of both.
fn filled(cloud: &Cloud) -> (Vec<String>, Vec<String>) {
    let mut twin = cloud.service().twin();
    let state = twin.change();
    for n in 0..ENTRIES {
        let volume = state.add(&format!("pvc-{n}"), 1);
        let id = format!("5a000000-0000-4000-8000-{n:012}");
        let snapshot = Snapshot {
            id: id.clone(),
            name: format!("snapshot-{n}"),
            description: String::new(),
            volume,
            volume_name: format!("pvc-{n}"),
            gib: 1,
            region: crate::site::REGION.to_owned(),
            created: "2026-01-01T00:00:00Z".to_owned(),
            ready: Instant::now(),
            is_available: false,
        };
        state.snapshots.insert(id, snapshot);
    }
    let volumes = state.volumes.keys().cloned().collect();
    (volumes, state.snapshots.keys().cloned().collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_page_of_a_list_has_as_many_entries_as_were_asked_for_and_the_last_the_rest() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    site.ready().await;
    let (all_volumes, all_snapshots) = filled(&cloud);
    for (max_entries, sizes) in PAGES {
        cloud.forget();
        let listed = volumes(&mut client, max_entries).await;
        assert_eq!(
            listed,
            (all_volumes.clone(), sizes.to_vec()),
            "{max_entries}"
        );
        assert_eq!(cloud.count("GET /v2/volumes"), sizes.len());
        let listed = snapshots(&mut client, max_entries).await;
        assert_eq!(
            listed,
            (all_snapshots.clone(), sizes.to_vec()),
            "{max_entries}"
        );
        assert_eq!(cloud.count("GET /v2/snapshots"), sizes.len());
    }
    let foreign = || "7".to_owned();
    let request = csi::ListVolumesRequest {
        starting_token: foreign(),
        ..Default::default()
    };
    let refused = client.list_volumes(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let request = csi::ListSnapshotsRequest {
        starting_token: foreign(),
        ..Default::default()
    };
    let refused = client.list_snapshots(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
}
