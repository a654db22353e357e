//! Volume health as the controller reports it, by the calls of CSI 1.13 and by the older flag.

use crate::bed::{Bed, Client, MIB, ROOMY, create, created, one_volume};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use csi::VolumeHealthErrorType as Status;
use std::fs::{self, OpenOptions};
use tonic::Code;

type Told = Vec<(Status, String)>;

fn told(health: &csi::VolumeHealth) -> Told {
    let all = health.health_statuses.iter();
    all.map(|entry| (entry.status(), entry.reason.clone()))
        .collect()
}

async fn health(client: &mut Client, id: &str) -> Result<Told, Code> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let answer = client.controller_get_volume_health(request).await;
    let answer = answer.map_err(|status| status.code())?.into_inner();
    let health = answer.volume_health.unwrap();
    assert_eq!(health.volume_id, id);
    Ok(told(&health))
}

async fn page(
    client: &mut Client,
    max_entries: i32,
    token: &str,
) -> Result<(Vec<String>, String), Code> {
    let request = csi::ControllerListVolumeHealthRequest {
        max_entries,
        starting_token: token.to_owned(),
        ..Default::default()
    };
    let answer = client.controller_list_volume_health(request).await;
    let answer = answer.map_err(|status| status.code())?.into_inner();
    let ids = answer.entries.into_iter().map(|entry| {
        assert!(!entry.health_statuses.is_empty(), "{}", entry.volume_id);
        entry.volume_id
    });
    Ok((ids.collect(), answer.next_token))
}

/// Returns the flag of versions before 1.13, from the list and from the volume itself.
async fn is_abnormal(client: &mut Client, id: &str) -> bool {
    let request = csi::ListVolumesRequest::default();
    let list = client.list_volumes(request).await.unwrap().into_inner();
    let is_it = |entry: &csi::list_volumes_response::Entry| {
        entry.volume.as_ref().is_some_and(|v| v.volume_id == id)
    };
    let listed = list.entries.into_iter().find(is_it).unwrap();
    let listed = listed.status.unwrap().volume_condition.unwrap();
    let request = requests::get(id);
    let found = client.controller_get_volume(request).await.unwrap();
    let found = found.into_inner().status.unwrap().volume_condition.unwrap();
    assert_eq!(listed, found);
    assert!(!found.message.is_empty());
    found.abnormal
}

#[tokio::test]
async fn a_volume_is_unhealthy_as_long_as_its_file_is() {
    let (bed, _controller, mut client, id) = one_volume(5 * MIB).await;
    let file = bed.volumes_dir().join(&id);
    let away = bed.volumes_dir().join("away");
    assert_eq!(health(&mut client, &id).await, Ok(vec![]));
    assert!(!is_abnormal(&mut client, &id).await);

    fs::rename(&file, &away).unwrap();
    let missing = (Status::DataLoss, "BackingFileMissing".to_owned());
    assert_eq!(health(&mut client, &id).await, Ok(vec![missing]));
    assert!(is_abnormal(&mut client, &id).await);
    fs::create_dir(&file).unwrap();
    let foreign = (Status::Inaccessible, "BackingFileForeign".to_owned());
    assert_eq!(health(&mut client, &id).await, Ok(vec![foreign]));
    fs::remove_dir(&file).unwrap();
    fs::rename(&away, &file).unwrap();
    assert_eq!(health(&mut client, &id).await, Ok(vec![]));
    assert!(!is_abnormal(&mut client, &id).await);

    let cut = OpenOptions::new().write(true).open(&file).unwrap();
    cut.set_len(4 << 20).unwrap();
    let short = (Status::DataLoss, "BackingFileShort".to_owned());
    assert_eq!(health(&mut client, &id).await, Ok(vec![short]));
    cut.set_len(5 << 20).unwrap();
    assert_eq!(health(&mut client, &id).await, Ok(vec![]));
}

#[tokio::test]
async fn what_does_not_exist_is_not_found() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    assert_eq!(health(&mut client, "vol-0").await, Err(Code::NotFound));
    assert_eq!(health(&mut client, "").await, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn only_unhealthy_volumes_are_listed_page_by_page() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    assert_eq!(page(&mut client, 0, "").await, Ok((vec![], String::new())));
    let mut unhealthy = Vec::new();
    for number in 0..7 {
        let name = format!("pvc-{number}");
        let id = created(&mut client, create(&name, MIB)).await.volume_id;
        if number % 2 == 0 {
            fs::remove_file(bed.volumes_dir().join(&id)).unwrap();
            unhealthy.push(id);
        }
    }
    unhealthy.sort();
    let all = page(&mut client, 0, "").await.unwrap();
    assert_eq!(all, (unhealthy.clone(), String::new()));
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let (ids, next) = page(&mut client, 3, &token).await.unwrap();
        assert!(ids.len() <= 3);
        paged.extend(ids);
        token = next;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, unhealthy);
    assert_eq!(page(&mut client, 0, "x").await, Err(Code::Aborted));
    assert_eq!(page(&mut client, -1, "").await, Err(Code::InvalidArgument));
}
