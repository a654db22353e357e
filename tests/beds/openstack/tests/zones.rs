//! Scheduling by zone, on the real services: `az-a` and `az-b` have volumes and servers.

use std::collections::HashMap;

use belay_bed::requests;
use belay_openstack::{Bed, Cloud};
use belay_proto::csi::v1 as csi;
use serde_json::Value;
use tonic::Code;

use crate::site::{
    Client, GIB, Site, assert_refused, block, by_password, create, deleted, opened, unique,
};

const KEY: &str = "topology.cinder.csi.openstack.org/zone";

fn topology(zone: &str) -> csi::Topology {
    csi::Topology {
        segments: HashMap::from([(KEY.to_owned(), zone.to_owned())]),
    }
}

/// For a pod on a node of the first of these zones, in a cluster that has them all.
fn placed(zones: &[&str]) -> csi::CreateVolumeRequest {
    let all: Vec<_> = zones.iter().map(|zone| topology(zone)).collect();
    csi::CreateVolumeRequest {
        capacity_range: requests::range(GIB, GIB),
        parameters: HashMap::from([("type".to_owned(), "file".to_owned())]),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: all.clone(),
            preferred: all,
        }),
        ..requests::create(&unique("zone"), block(), None)
    }
}

/// The zone of a volume, as Cinder shows it.
fn zone_of(cloud: &Cloud, id: &str) -> Value {
    let path = format!("/volumes/{id}");
    let shown = cloud.expect(200, "volumev3", ("GET", &path), &Value::Null);
    shown["volume"]["availability_zone"].clone()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_is_in_the_zone_of_its_pods_node_and_one_that_does_not_exist_is_reported() {
    let (bed, cloud) = opened();
    let mut site = Site::new(&by_password(&bed));
    site.has_topology = true;
    let _controller = site.start();
    let client = &mut site.client().await;
    for zones in [["az-a", "az-b"], ["az-b", "az-a"]] {
        let request = placed(&zones);
        let mut id = String::new();
        for _ in 0..2 {
            let answer = client.create_volume(request.clone()).await.unwrap();
            let volume = answer.into_inner().volume.unwrap();
            assert_eq!(volume.accessible_topology, [topology(zones[0])]);
            id = volume.volume_id;
        }
        assert_eq!(zone_of(&cloud, &id), zones[0]);
        deleted(client, &id).await;
    }
    let nowhere = client.create_volume(placed(&["az-z"])).await;
    assert_refused(nowhere, Code::ResourceExhausted, "az-z");
    let mut of_class = placed(&["az-a"]);
    of_class
        .parameters
        .insert("availability".to_owned(), "az-z".to_owned());
    let nowhere = client.create_volume(of_class).await;
    assert_refused(nowhere, Code::InvalidArgument, "az-z");
    assert!(!site.log().contains("cannot use volumes"), "{}", site.log());

    let ignoring = format!(
        "{}[BlockStorage]\nignore-volume-az = true\n",
        by_password(&bed)
    );
    let mut site = Site::new(&ignoring);
    site.has_topology = true;
    let _controller = site.start();
    let client = &mut site.client().await;
    let answer = client.create_volume(placed(&["az-b", "az-a"])).await;
    let volume = answer.unwrap().into_inner().volume.unwrap();
    let both = [topology("az-b"), topology("az-a")];
    assert_eq!(volume.accessible_topology, both);
    deleted(client, &volume.volume_id).await;
}

/// In GiB, for volumes of that zone, or of any.
async fn free_gib(client: &mut Client, zone: Option<&str>) -> i64 {
    let request = csi::GetCapacityRequest {
        accessible_topology: zone.map(topology),
        ..csi::GetCapacityRequest::default()
    };
    let room = client.get_capacity(request).await.unwrap().into_inner();
    room.available_capacity / GIB
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn the_capacity_is_what_the_quota_of_the_project_leaves() {
    let (bed, cloud) = opened();
    let mut site = Site::new(&by_password(&bed));
    site.has_topology = true;
    let _controller = site.start();
    let client = &mut site.client().await;
    let before = free_gib(client, None).await;
    let order = create(&unique("counted"), 2);
    let volume = client.create_volume(order).await.unwrap().into_inner();
    let shown = cloud.expect(200, "volumev3", ("GET", "/limits"), &Value::Null);
    let limits = &shown["limits"]["absolute"];
    let of = |name: &str| limits[name].as_i64().unwrap();
    let left = of("maxTotalVolumeGigabytes") - of("totalGigabytesUsed");
    assert_eq!(free_gib(client, None).await, left);
    assert_eq!(before - left, 2);
    assert_eq!(free_gib(client, Some("az-a")).await, left);
    assert_eq!(free_gib(client, Some("az-none")).await, 0);
    deleted(client, &volume.volume.unwrap().volume_id).await;
}

/// Larger than the quota of the project.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_beyond_the_quota_is_refused_with_the_clouds_words() {
    let bed = Bed::open();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let large = create(&unique("large"), 1_000_000);
    let refused = client.create_volume(large).await;
    assert_refused(
        refused,
        Code::ResourceExhausted,
        "exceeds allowed gigabytes quota",
    );
}
