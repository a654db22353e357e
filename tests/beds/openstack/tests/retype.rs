//! Volume types of real volumes, changed as by a VolumeAttributesClass.

use std::collections::HashMap;

use belay_bed::requests;
use belay_openstack::Cloud;
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use serde_json::Value;
use tonic::{Code, Status};

use crate::site::{
    Client, Site, assert_refused, attached, create, created, deleted, detached, opened, unique,
};
use crate::snapshots::{content, pattern, write};

fn kind(name: &str) -> HashMap<String, String> {
    HashMap::from([("type".to_owned(), name.to_owned())])
}

/// Modifies as the resizer does, which repeats a call that was ABORTED.
async fn modified(client: &mut Client, id: &str, to: &str) -> Result<(), Status> {
    loop {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: kind(to),
            ..csi::ControllerModifyVolumeRequest::default()
        };
        match client.controller_modify_volume(request).await {
            Err(status) if status.code() == Code::Aborted => {}
            answer => return answer.map(drop),
        }
    }
}

fn type_of(cloud: &Cloud, id: &str) -> String {
    let path = format!("/volumes/{id}");
    let shown = cloud.expect(200, "volumev3", ("GET", &path), &Value::Null);
    shown["volume"]["volume_type"].as_str().unwrap().to_owned()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_gets_the_type_of_its_attributes_class_or_an_error_says_why_not() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("retyped")).await.volume_id;
    assert_eq!(type_of(&cloud, &id), "file-a");
    for _ in 0..2 {
        modified(client, &id, "file").await.unwrap();
        assert_eq!(type_of(&cloud, &id), "file");
    }
    // Cinder answers 202 and leaves the type: it would have to move the volume.
    let refused = modified(client, &id, "file-b").await;
    assert_refused(refused, Code::InvalidArgument, "\"file-b\"");
    assert_eq!(type_of(&cloud, &id), "file");
    let refused = modified(client, &id, "gold").await;
    assert_refused(refused, Code::InvalidArgument, "\"gold\"");
    modified(client, &id, "file-a").await.unwrap();

    // In use: within the storage; but not to a type that several servers can have.
    attached(client, &id, &server.id).await;
    modified(client, &id, "file").await.unwrap();
    assert_eq!(type_of(&cloud, &id), "file");
    let refused = modified(client, &id, "multi").await;
    assert_refused(refused, Code::FailedPrecondition, &id);
    assert_eq!(type_of(&cloud, &id), "file");
    assert_eq!(cloud.volume(&id).unwrap().servers, [server.id.as_str()]);
    detached(client, &id, &server.id).await;
    modified(client, &id, "multi").await.unwrap();
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: vec![requests::capability("block", Mode::MultiNodeMultiWriter)],
        ..csi::ValidateVolumeCapabilitiesRequest::default()
    };
    let judged = client.validate_volume_capabilities(request).await.unwrap();
    assert!(judged.into_inner().confirmed.is_some());
    deleted(client, &id).await;
    let gone = modified(client, &id, "file").await;
    assert_refused(gone, Code::NotFound, &id);
}

/// Belay never asks Cinder to move data to other storage, so that a type of which the volume's
/// storage has none is refused: then too the data stay where they are.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_retype_and_one_that_is_refused_change_no_data_of_a_volume_in_use_or_detached() {
    let (bed, cloud) = opened();
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("retyped")).await.volume_id;
    attached(client, &id, &here.id).await;
    let first = pattern();
    write(&bed, &here, &first);
    modified(client, &id, "file").await.unwrap();
    assert_eq!(type_of(&cloud, &id), "file");
    assert!(content(&bed, &here) == first, "retyped in use");
    let moved = modified(client, &id, "file-b").await;
    assert_refused(moved, Code::InvalidArgument, "moving the data");
    assert!(content(&bed, &here) == first, "refused in use");
    // The type that it has now takes writes as the one before.
    let second = pattern();
    write(&bed, &here, &second);
    detached(client, &id, &here.id).await;

    for (kind, is_made) in [("file-a", true), ("file-b", false), ("file", true)] {
        let retyped = modified(client, &id, kind).await;
        match is_made {
            true => retyped.unwrap(),
            false => assert_refused(retyped, Code::InvalidArgument, "moving the data"),
        }
        assert_eq!(type_of(&cloud, &id) == kind, is_made, "{kind}");
        attached(client, &id, &there.id).await;
        assert!(content(&bed, &there) == second, "after {kind}");
        detached(client, &id, &there.id).await;
    }
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_new_volume_has_the_type_of_its_attributes_class() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let name = unique("attributes");
    let order = |name: &str, to: &str| csi::CreateVolumeRequest {
        mutable_parameters: kind(to),
        ..create(name, 1)
    };
    let volume = client.create_volume(order(&name, "file")).await.unwrap();
    let id = volume.into_inner().volume.unwrap().volume_id;
    assert_eq!(
        type_of(&cloud, &id),
        "file",
        "not that of the storage class"
    );
    let again = client.create_volume(order(&name, "file")).await.unwrap();
    assert_eq!(again.into_inner().volume.unwrap().volume_id, id);
    let other = client.create_volume(order(&name, "file-a")).await;
    assert_refused(other, Code::AlreadyExists, &id);
    let unknown = client.create_volume(order(&unique("attributes"), "gold"));
    assert_refused(unknown.await, Code::InvalidArgument, "gold");
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_repeated_creation_finds_its_volume_by_type_and_zone_also_after_a_retype() {
    let (bed, cloud) = opened();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let name = unique("alike");
    let order = |key: &str, value: &str| {
        let mut order = create(&name, 1);
        order.parameters.insert(key.to_owned(), value.to_owned());
        order
    };
    let id = created(client, &name).await.volume_id;
    let types = cloud.expect(200, "volumev3", ("GET", "/types"), &Value::Null);
    let types = types["volume_types"].as_array().unwrap();
    let by_id = types.iter().find(|it| it["name"] == "file-a").unwrap();
    for same in ["file-a", by_id["id"].as_str().unwrap(), "FILE-A"] {
        let again = client.create_volume(order("type", same)).await.unwrap();
        assert_eq!(again.into_inner().volume.unwrap().volume_id, id, "{same}");
    }
    for (key, other) in [("type", "multi"), ("availability", "az-b")] {
        let refused = client.create_volume(order(key, other)).await;
        assert_refused(refused, Code::AlreadyExists, &format!("parameters[{key}]"));
    }
    assert_eq!(type_of(&cloud, &id), "file-a");
    modified(client, &id, "multi").await.unwrap();
    for class in ["file-a", "multi"] {
        let again = client.create_volume(order("type", class)).await.unwrap();
        assert_eq!(again.into_inner().volume.unwrap().volume_id, id, "{class}");
    }
    assert_eq!(cloud.volumes(Some(&name)).len(), 1);
    deleted(client, &id).await;
}
