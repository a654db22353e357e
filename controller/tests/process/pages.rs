//! The boundaries of pages of all lists, through the socket.

use crate::bed::{Bed, Client, MIB, ROOMY, create, created, ready, snapshot};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::fs;
use tonic::{Code, Status};

/// A list with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Volumes,
    Snapshots,
    Unhealthy,
}

/// The IDs of a page, and the token of the next one.
type Page = (Vec<String>, String);

async fn page(client: &mut Client, list: List, most: i32, token: &str) -> Result<Page, Code> {
    let asked = ask(client, list, most, token.to_owned()).await;
    asked.map_err(|status| status.code())
}

async fn ask(
    client: &mut Client,
    list: List,
    max_entries: i32,
    starting_token: String,
) -> Result<Page, Status> {
    Ok(match list {
        List::Volumes => {
            let request = csi::ListVolumesRequest {
                max_entries,
                starting_token,
            };
            let page = client.list_volumes(request).await?.into_inner();
            let ids = page.entries.into_iter();
            let ids = ids.map(|entry| entry.volume.unwrap().volume_id);
            (ids.collect(), page.next_token)
        }
        List::Snapshots => {
            let request = csi::ListSnapshotsRequest {
                max_entries,
                starting_token,
                ..Default::default()
            };
            let page = client.list_snapshots(request).await?.into_inner();
            let ids = page.entries.into_iter();
            let ids = ids.map(|entry| entry.snapshot.unwrap().snapshot_id);
            (ids.collect(), page.next_token)
        }
        List::Unhealthy => {
            let request = csi::ControllerListVolumeHealthRequest {
                max_entries,
                starting_token,
                ..Default::default()
            };
            let page = client.controller_list_volume_health(request).await?;
            let page = page.into_inner();
            let ids = page.entries.into_iter().map(|entry| entry.volume_id);
            (ids.collect(), page.next_token)
        }
    })
}

/// Creates three volumes, all of which have lost their files, and three snapshots.
async fn three_of_each(bed: &Bed, client: &mut Client) {
    for n in 0..3 {
        let volume = created(client, create(&format!("pvc-{n}"), MIB)).await;
        let id = volume.volume_id;
        ready(client, snapshot(&format!("snap-{n}"), &id)).await;
        fs::remove_file(bed.volumes_dir().join(id)).unwrap();
    }
}

async fn assert_lengths(client: &mut Client, list: List, all: &[String]) {
    let none = String::new();
    for (most, length, next) in [
        (0, 3, &none),
        (1, 1, &all[0]),
        (2, 2, &all[1]),
        (3, 3, &none),
        (4, 3, &none),
        (i32::MAX, 3, &none),
    ] {
        let expected = (all[..length].to_vec(), next.clone());
        let page = page(client, list, most, "").await;
        assert_eq!(page, Ok(expected), "{list:?} {most}");
    }
    for negative in [-1, i32::MIN] {
        let refused = page(client, list, negative, "").await;
        assert_eq!(refused, Err(Code::InvalidArgument), "{list:?} {negative}");
    }
}

async fn assert_tokens(client: &mut Client, list: List, all: &[String], foreign: &str) {
    let none = String::new();
    for (token, most, begin, length, next) in [
        (&all[0], 1, 1, 1, &all[1]),
        (&all[0], 2, 1, 2, &none),
        (&all[1], 1, 2, 1, &none),
        // This was the last entry when the page was created.
        (&all[2], 1, 3, 0, &none),
    ] {
        let expected = (all[begin..begin + length].to_vec(), next.clone());
        let page = page(client, list, most, token).await;
        assert_eq!(page, Ok(expected), "{list:?} {token} {most}");
    }
    let longer = format!("{}0", all[0]);
    let (shorter, upper) = (&all[0][..all[0].len() - 1], all[0].to_uppercase());
    for token in [foreign, &longer, shorter, &upper, " ", "7"] {
        let refused = page(client, list, 1, token).await;
        assert_eq!(refused, Err(Code::Aborted), "{list:?} {token:?}");
    }
}

#[tokio::test]
async fn a_page_ends_where_it_is_told_and_has_a_token_only_if_there_is_more() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    for list in [List::Volumes, List::Snapshots, List::Unhealthy] {
        let empty = page(&mut client, list, 1, "").await;
        assert_eq!(empty, Ok((vec![], String::new())), "{list:?}");
    }
    three_of_each(&bed, &mut client).await;
    let all = async |client: &mut Client, list| page(client, list, 0, "").await.unwrap().0;
    let volumes = all(&mut client, List::Volumes).await;
    let snapshots = all(&mut client, List::Snapshots).await;
    for (list, all, foreign) in [
        (List::Volumes, &volumes, &snapshots[0]),
        (List::Snapshots, &snapshots, &volumes[0]),
        (List::Unhealthy, &volumes, &snapshots[0]),
    ] {
        assert_lengths(&mut client, list, all).await;
        assert_tokens(&mut client, list, all, foreign).await;
    }
}

#[tokio::test]
async fn a_token_outlives_what_the_page_ended_with() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    three_of_each(&bed, &mut client).await;
    let (snapshots, _) = page(&mut client, List::Snapshots, 0, "").await.unwrap();
    let request = requests::discard(&snapshots[0]);
    client.delete_snapshot(request).await.unwrap();
    let (volumes, _) = page(&mut client, List::Volumes, 0, "").await.unwrap();
    // An operator does this to abandon the data.
    fs::write(bed.volumes_dir().join(&volumes[0]), "").unwrap();
    let request = requests::delete(&volumes[0]);
    client.delete_volume(request).await.unwrap();
    for (list, all) in [
        (List::Volumes, &volumes),
        (List::Snapshots, &snapshots),
        (List::Unhealthy, &volumes),
    ] {
        let rest = page(&mut client, list, 0, &all[0]).await;
        assert_eq!(rest, Ok((all[1..].to_vec(), String::new())), "{list:?}");
    }
}
