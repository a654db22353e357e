//! Two projects of the real services as two clouds.

use std::collections::HashMap;

use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use tonic::{Code, Status};

use crate::site::{Client, Site, assert_refused, by_password, create, deleted, opened, unique};

/// The name of the second one's section.
const SECOND: &str = "second";

fn secrets() -> HashMap<String, String> {
    HashMap::from([("cloud".to_owned(), SECOND.to_owned())])
}

async fn deleted_there(client: &mut Client, id: &str) -> Result<(), Status> {
    let request = csi::DeleteVolumeRequest {
        secrets: secrets(),
        ..requests::delete(id)
    };
    client.delete_volume(request).await.map(drop)
}

/// How many volumes are listed with that ID.
async fn listed(client: &mut Client, id: &str) -> usize {
    let (mut count, mut token) = (0, String::new());
    loop {
        let request = csi::ListVolumesRequest {
            max_entries: 0,
            starting_token: token,
        };
        let page = client.list_volumes(request).await.unwrap().into_inner();
        let volumes = page
            .entries
            .iter()
            .filter_map(|entry| entry.volume.as_ref());
        count += volumes.filter(|volume| volume.volume_id == id).count();
        token = page.next_token;
        if token.is_empty() {
            return count;
        }
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_of_one_cloud_is_not_deleted_in_the_other_one() {
    let (bed, cloud) = opened();
    let project = unique("second");
    cloud.join_project(&project);
    let first = by_password(&bed);
    let second = first
        .replace("[Global]", &format!("[Global \"{SECOND}\"]"))
        .replace(bed.text("/project"), &project);
    let mut site = Site::new(&(first + &second));
    site.clouds = Some(",second");
    let _controller = site.start();
    let client = &mut site.client().await;
    let name = unique("cloud");
    let request = csi::CreateVolumeRequest {
        secrets: secrets(),
        ..create(&name, 1)
    };
    let mut ids = Vec::new();
    for request in [create(&name, 1), request] {
        let answer = client.create_volume(request).await.unwrap();
        ids.push(answer.into_inner().volume.unwrap().volume_id);
    }
    assert_ne!(ids[0], ids[1]);
    for id in &ids {
        assert_eq!(listed(client, id).await, 1);
        client
            .controller_get_volume(requests::get(id))
            .await
            .unwrap();
    }
    let answer = deleted_there(client, &ids[0]).await;
    assert_refused(answer, Code::InvalidArgument, "that of [Global]");
    let answer = client.delete_volume(requests::delete(&ids[1])).await;
    assert_refused(answer, Code::InvalidArgument, "that of [Global \"second\"]");
    for id in &ids {
        assert_eq!(listed(client, id).await, 1);
    }
    deleted(client, &ids[0]).await;
    for _ in 0..2 {
        deleted_there(client, &ids[1]).await.unwrap();
    }
    for id in &ids {
        assert_eq!(listed(client, id).await, 0);
        let missing = client.controller_get_volume(requests::get(id)).await;
        assert_refused(missing, Code::NotFound, id);
    }
}
