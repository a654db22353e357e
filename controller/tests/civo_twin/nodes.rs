//! Nodes by the ID of their instance, and by their name.

use crate::site::{Cloud, Site, asked, attached, cloud, created, deleted, detached, instance};
use belay_proto::csi::v1 as csi;
use belay_twins::Fault;
use belay_twins::civo::{CLUSTER, Refusal, Status};
use belay_twins::http::Response;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::Code;

const NAME: &str = "k3s-twin-node-pool-1";
const DETACH: &str = "PUT /v2/volumes/ID/detach";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_named_by_its_instance_or_by_its_host_name() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, NAME).await.unwrap();
    let at = cloud.service().twin().state().volumes[&id].instance.clone();
    assert_eq!(at, Some(instance(1)));
    // The node is reported with the name that Kubernetes knows.
    let listed = client.list_volumes(csi::ListVolumesRequest::default());
    let listed = listed.await.unwrap().into_inner().entries.remove(0);
    assert_eq!(listed.status.unwrap().published_node_ids, [NAME]);
    // A name that is only a part of the instance's name belongs to another node.
    let refused = attached(&mut client, &id, "k3s-twin-node-pool").await;
    assert_eq!(refused.unwrap_err().code(), Code::NotFound);
    detached(&mut client, &id, "k3s-twin-node-pool")
        .await
        .unwrap();
    detached(&mut client, &id, "k3s-twin-node-pool-2")
        .await
        .unwrap();
    let status = |id: &str| cloud.service().twin().state().volumes[id].status;
    assert_eq!(status(&id), Status::Attached);
    detached(&mut client, &id, NAME).await.unwrap();
    let twin = cloud.service().twin();
    assert_eq!(twin.state().volumes[&id].instance, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_civo_itself_says_that_an_instance_or_a_volume_does_not_exist() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, &instance(1)).await.unwrap();
    let before = || Fault::Refused(Refusal::NoSuchPath.response(None));
    // The instance has left the cluster, so it is read separately.
    let set = |is_in_cluster: bool| {
        let mut twin = cloud.service().twin();
        let first = twin.change().instances.get_mut(&instance(1));
        first.unwrap().is_in_cluster = is_in_cluster;
    };
    set(false);
    for kind in ["GET /v2/instances/ID", "GET /v2/volumes/ID"] {
        cloud.disturb(kind, 1, before());
        let refused = detached(&mut client, &id, "another-node")
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{kind}: {refused}");
    }
    cloud.disturb("GET /v2/volumes/ID", 1, before());
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    // The instance is in the list under another name.
    set(true);
    cloud.forget();
    detached(&mut client, &id, "another-node").await.unwrap();
    assert_eq!(cloud.count("GET /v2/instances/ID"), 0);
    assert_eq!(cloud.count("PUT /v2/volumes/ID/detach"), 0);
    let at = cloud.service().twin().state().volumes[&id].clone();
    assert_eq!(
        (at.status, at.instance),
        (Status::Attached, Some(instance(1)))
    );
    detached(&mut client, &id, &instance(1)).await.unwrap();
    cloud.disturb("DELETE /v2/volumes/ID", 1, before());
    let refused = deleted(&mut client, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    deleted(&mut client, &id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_left_the_cluster_loses_its_volumes_by_its_name_too() {
    let cloud = cloud(Duration::from_millis(50));
    let site = Site::new(&cloud);
    let running = site.start();
    let mut client = site.client().await;
    let mut ids = Vec::new();
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        let id = created(&mut client, name).await.unwrap();
        attached(&mut client, &id, NAME).await.unwrap();
        ids.push(id);
    }
    drop(running);
    let _running = site.start();
    let mut client = site.client().await;
    let first = instance(1);
    // The instance is switched off and removed from the cluster, but still exists.
    let leave = |twin: &mut belay_twins::civo::Twin| {
        twin.change()
            .instances
            .get_mut(&first)
            .unwrap()
            .is_in_cluster = false;
    };
    leave(&mut cloud.service().twin());
    detached(&mut client, &ids[0], NAME).await.unwrap();
    // The instance is deleted, and Civo has not changed its volumes.
    drop(cloud.service().twin().change().instances.remove(&first));
    detached(&mut client, &ids[1], NAME).await.unwrap();
    detached(&mut client, &ids[2], &first).await.unwrap();
    let twin = cloud.service().twin();
    for id in &ids {
        assert_eq!(twin.state().volumes[id].instance, None, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_left_the_cluster_is_still_meant_when_a_new_one_has_its_name() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, NAME).await.unwrap();
    drop(running);
    let _running = site.start();
    let mut client = site.client().await;
    {
        let mut twin = cloud.service().twin();
        let instances = &mut twin.change().instances;
        instances.get_mut(&instance(1)).unwrap().is_in_cluster = false;
        instances.get_mut(&instance(2)).unwrap().hostname = NAME.to_owned();
    }
    // Civo accepts the first detach, but does not make it.
    let accepted = Response::json(200, &json!({"result": "success"}));
    cloud.disturb(DETACH, 1, Fault::Refused(accepted));
    detached(&mut client, &id, NAME).await.unwrap();
    let at = cloud.service().twin().state().volumes[&id].clone();
    assert_eq!((at.status, at.instance), (Status::Available, None));
    assert_eq!(cloud.count(DETACH), 2, "{:?}", cloud.kinds());
}

/// Moves an instance, with the host name of a node, to another cluster, which is not on the first
/// page.
fn another_cluster(cloud: &Cloud, n: usize) {
    let mut twin = cloud.service().twin();
    twin.settings.clusters_a_page = 1;
    let state = twin.change();
    let other = state.instances.get_mut(&instance(n)).unwrap();
    (other.is_in_cluster, other.hostname) = (false, NAME.to_owned());
    state.other_clusters.insert("a-empty".to_owned(), vec![]);
    state
        .other_clusters
        .insert("b".to_owned(), vec![instance(n)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_with_the_same_name_keeps_its_volume() {
    for is_hidden in [false, true] {
        keeps_its_volume(is_hidden).await;
    }
}

async fn keeps_its_volume(is_hidden: bool) {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    another_cluster(&cloud, 2);
    hide(&cloud, is_hidden);
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached_by_another(&cloud, &id, 2);
    let is_kept = || {
        let volume = cloud.service().twin().state().volumes[&id].clone();
        assert_eq!(volume.instance, Some(instance(2)));
        assert_eq!(cloud.count(DETACH), 0);
    };
    // A failed read does not prove that the instance belongs to another cluster.
    let failed = Fault::Refused(Refusal::Rate.response(Some(500)));
    cloud.disturb("GET /v2/kubernetes/clusters", 100, failed);
    let refused = detached(&mut client, &id, NAME).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    is_kept();
    cloud.calm();
    // The volume is not attached to the node with this name in this cluster.
    detached(&mut client, &id, NAME).await.unwrap();
    is_kept();
    let refused = attached(&mut client, &id, NAME).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(&instance(2)), "{refused}");
    assert_eq!(cloud.service().twin().broken, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_another_name_keeps_its_volume_while_no_list_has_it() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    hide(&cloud, true);
    let (id, node) = (
        created(&mut client, "pvc-1").await.unwrap(),
        "k3s-twin-node-pool-2",
    );
    attached(&mut client, &id, node).await.unwrap();
    let second = cloud
        .service()
        .twin()
        .change()
        .instances
        .remove(&instance(2));
    detached(&mut client, &id, NAME).await.unwrap();
    assert_eq!(cloud.count(DETACH), 0);
    let at = cloud.service().twin().state().volumes[&id].instance.clone();
    assert_eq!(at, second.map(|it| it.id));
    // The instance is deleted.
    detached(&mut client, &id, node).await.unwrap();
    assert_eq!(cloud.count(DETACH), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_volume_is_attached_to_an_instance_of_another_cluster() {
    for is_hidden in [false, true] {
        is_not_attached(is_hidden).await;
    }
}

async fn is_not_attached(is_hidden: bool) {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    another_cluster(&cloud, 2);
    hide(&cloud, is_hidden);
    let id = created(&mut client, "pvc-1").await.unwrap();
    let refused = attached(&mut client, &id, &instance(2)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    for part in ["of cluster b", "CIVO_CLUSTER_ID"] {
        assert!(refused.message().contains(part), "{part}: {refused}");
    }
    assert_eq!(cloud.count("PUT /v2/volumes/ID/attach"), 0);
    // The other instance with this name is in this cluster, and known from then on.
    for node in [NAME, &instance(1)] {
        attached(&mut client, &id, node).await.unwrap();
        detached(&mut client, &id, node).await.unwrap();
    }
    cloud.forget();
    attached(&mut client, &id, &instance(3)).await.unwrap();
    assert_eq!(cloud.count("GET /v2/kubernetes/clusters/ID/instances"), 0);
}

/// Sets whether Civo shows an instance of a cluster only with its cluster.
fn hide(cloud: &Cloud, is_hidden: bool) {
    let mut twin = cloud.service().twin();
    twin.settings.hides_instances_of_clusters = is_hidden;
}

fn set_in_cluster(cloud: &Cloud, n: usize, is_in_cluster: bool) {
    let mut twin = cloud.service().twin();
    let instance = twin.change().instances.get_mut(&instance(n));
    instance.unwrap().is_in_cluster = is_in_cluster;
}

/// Attaches the volume to an instance as another controller does.
fn attached_by_another(cloud: &Cloud, id: &str, n: usize) {
    let mut twin = cloud.service().twin();
    let volume = twin.change().volumes.get_mut(id).unwrap();
    (volume.status, volume.instance) = (Status::Attached, Some(instance(n)));
    twin.in_use.insert(id.to_owned(), instance(n));
}

const EMPTY: &str = "GET /v2/kubernetes/clusters/a-empty/instances";

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_cannot_be_read_hides_no_instance_of_another_one() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let running = site.start();
    let mut client = site.client().await;
    another_cluster(&cloud, 2);
    let id = created(&mut client, "pvc-1").await.unwrap();
    let failed = Refusal::Rate.response(Some(500));
    cloud.disturb(EMPTY, 1000, Fault::Refused(failed));
    let refused = attached(&mut client, &id, &instance(2)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    assert!(refused.message().contains("of cluster b"), "{refused}");
    attached_by_another(&cloud, &id, 2);
    detached(&mut client, &id, NAME).await.unwrap();
    let volume = cloud.service().twin().state().volumes[&id].clone();
    assert_eq!(volume.instance, Some(instance(2)));
    // An instance that is in no known cluster may belong to the unreadable one.
    drop(running);
    set_in_cluster(&cloud, 3, false);
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-2").await.unwrap();
    let refused = attached(&mut client, &id, &instance(3)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    // The cluster has no instances.
    cloud.calm();
    let null = Response {
        body: "null".to_owned(),
        ..Response::json(200, &serde_json::Value::Null)
    };
    cloud.disturb(EMPTY, 1000, Fault::Refused(null));
    attached(&mut client, &id, &instance(3)).await.unwrap();
    assert_eq!(cloud.service().twin().broken, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_of_the_cluster_that_either_list_shows_it_with() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    another_cluster(&cloud, 2);
    hide(&cloud, true);
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached_by_another(&cloud, &id, 2);
    let response = |body| Fault::Refused(Response::json(200, &body));
    let no_instances = response(json!([]));
    let no_members = response(json!({"pages": 1, "items": [{"id": "b"}]}));
    for (kind, fault) in [
        ("GET /v2/kubernetes/clusters/b/instances", no_instances),
        ("GET /v2/kubernetes/clusters", no_members),
    ] {
        cloud.disturb(kind, 1000, fault);
        detached(&mut client, &id, NAME).await.unwrap();
        cloud.calm();
        let at = cloud.service().twin().state().volumes[&id].instance.clone();
        assert_eq!((at, cloud.count(DETACH)), (Some(instance(2)), 0), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_only_the_list_of_clusters_shows_with_the_cluster_is_not_deleted() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    hide(&cloud, true);
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached_by_another(&cloud, &id, 2);
    let response = |body| Fault::Refused(Response::json(200, &body));
    let lacks_it = || response(json!([{"id": instance(1), "hostname": NAME}]));
    cloud.disturb(INSTANCES, 1000, lacks_it());
    let is_kept = || {
        let at = cloud.service().twin().state().volumes[&id].instance.clone();
        assert_eq!((at, cloud.count(DETACH)), (Some(instance(2)), 0));
    };
    // The instance is shown there with the name of another node.
    detached(&mut client, &id, NAME).await.unwrap();
    is_kept();
    // Without a name, the instance may be any node of the cluster.
    let members = json!([{"id": instance(2)}]);
    let members = json!({"pages": 1, "items": [{"id": CLUSTER, "instances": members}]});
    cloud.disturb("GET /v2/kubernetes/clusters", 1000, response(members));
    let refused = detached(&mut client, &id, NAME).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert!(refused.message().contains(&instance(2)), "{refused}");
    is_kept();
    assert_eq!(cloud.service().twin().broken, [] as [&str; 0]);
    // The node of this cluster is found in either list.
    cloud.calm();
    drop(cloud.service().twin().in_use.remove(&id));
    cloud.disturb(INSTANCES, 1000, lacks_it());
    let node = "k3s-twin-node-pool-2";
    detached(&mut client, &id, node).await.unwrap();
    assert_eq!(cloud.count(DETACH), 1);
    attached(&mut client, &id, &instance(2)).await.unwrap();
    assert_eq!(cloud.service().twin().broken, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_new_node_waits_for_the_search_for_another_one() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = site.client().await;
    another_cluster(&cloud, 2);
    set_in_cluster(&cloud, 3, false);
    let first = created(&mut client.clone(), "pvc-1").await.unwrap();
    let second = created(&mut client.clone(), "pvc-2").await.unwrap();
    cloud.disturb(EMPTY, 1, Fault::Slow(Duration::from_secs(20)));
    cloud.forget();
    let mut own = client.clone();
    let search = tokio::spawn(async move { attached(&mut own, &first, &instance(2)).await });
    asked(&cloud, "GET /v2/kubernetes/clusters").await;
    set_in_cluster(&cloud, 3, true);
    attached(&mut client.clone(), &second, &instance(3))
        .await
        .unwrap();
    assert!(!search.is_finished());
    search.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_that_the_list_of_its_cluster_shows_late_keeps_its_volume() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let mut client = site.client().await;
    hide(&cloud, true);
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached_by_another(&cloud, &id, 2);
    let new = cloud
        .service()
        .twin()
        .change()
        .instances
        .remove(&instance(2));
    let of = id.clone();
    let late = tokio::spawn(async move { detached(&mut client, &of, NAME).await });
    asked(&cloud, "GET /v2/kubernetes/clusters").await;
    // Lists are stale for a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    {
        let mut twin = cloud.service().twin();
        let instances = &mut twin.change().instances;
        instances.insert(instance(2), new.unwrap());
    }
    late.await.unwrap().unwrap();
    assert_eq!(cloud.count(DETACH), 0);
    let at = cloud.service().twin().state().volumes[&id].instance.clone();
    assert_eq!(at, Some(instance(2)));
}

const INSTANCES: &str = "GET /v2/kubernetes/clusters/ID/instances";
/// The number of concurrent attaches, each of another volume.
const ATTACHES: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn attaches_to_new_nodes_share_a_list_and_its_failure() {
    let cloud = cloud(Duration::ZERO);
    let site = Site::new(&cloud);
    let _running = site.start();
    let client = site.client().await;
    let failed = Fault::Refused(Refusal::Rate.response(Some(500)));
    cloud.disturb(INSTANCES, 1000, failed);
    cloud.forget();
    cloud.hold(true);
    let mut all = JoinSet::new();
    for n in 1..=ATTACHES {
        let mut client = client.clone();
        all.spawn(async move { attached(&mut client, &instance(n), &instance(1 + n % 3)).await });
    }
    // The list of the first call hangs, and the others do not wait for it.
    assert!(cloud.wait_for(2, Duration::from_secs(20)));
    cloud.hold(false);
    for refused in all.join_all().await {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    }
    let lists = cloud.count(INSTANCES);
    assert!(lists < ATTACHES, "{lists}");
}
