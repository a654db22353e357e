//! belay-controller on the real services: each verb, and the content that an attachment names.

use std::fs;
use std::path::Path;

use belay_bed::patience::until;
use belay_bed::requests;
use belay_contract::disk::DiskIdentity;
use belay_contract::drivers::OPENSTACK;
use belay_contract::publish_context::{Content, PublishContext, Transport};
use belay_openstack::Bed;
use belay_proto::csi::v1 as csi;
use belay_server::request::{Context, VolumeId};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::Code;

use crate::site::{
    Client, GIB, Site, assert_refused, attached, block, by_credential, by_trust, create, created,
    deleted, detached, opened, unique,
};

/// Parses the context like the node agent.
pub(crate) fn read(id: &str, context: HashMap<String, String>) -> PublishContext {
    let context = Context::new("publish_context", context).unwrap();
    PublishContext::read(&VolumeId::new(id).unwrap(), &context, &OPENSTACK).unwrap()
}

/// Bytes of the disk behind a link.
fn bytes_of(link: &Path) -> i64 {
    let device = fs::read_link(link).unwrap();
    let name = device.file_name().unwrap().to_string_lossy().into_owned();
    let sectors = fs::read_to_string(format!("/sys/class/block/{name}/size")).unwrap();
    sectors.trim().parse::<i64>().unwrap() * 512
}

/// All volumes, in pages of that many.
async fn listed(client: &mut Client, max_entries: i32) -> HashMap<String, Vec<String>> {
    let (mut found, mut starting_token) = (HashMap::new(), String::new());
    loop {
        let request = csi::ListVolumesRequest {
            max_entries,
            starting_token,
        };
        let page = client.list_volumes(request).await.unwrap().into_inner();
        for entry in page.entries {
            let nodes = entry.status.unwrap().published_node_ids;
            found.insert(entry.volume.unwrap().volume_id, nodes);
        }
        starting_token = page.next_token;
        if starting_token.is_empty() {
            return found;
        }
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_is_created_attached_expanded_detached_and_deleted() {
    let (bed, cloud) = opened();
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let name = unique("lifecycle");
    let volume = created(client, &name).await;
    let id = volume.volume_id;
    assert_eq!(volume.capacity_bytes, GIB);
    assert_eq!(
        created(client, &name).await.volume_id,
        id,
        "the same volume"
    );
    let larger = client.create_volume(create(&name, 2)).await;
    assert_refused(larger, Code::AlreadyExists, &id);
    let other = created(client, &unique("lifecycle")).await.volume_id;
    let all = listed(client, 1).await;
    assert!(all[&id].is_empty() && all.contains_key(&other), "{all:?}");
    deleted(client, &other).await;

    let context = attached(client, &id, &here.id).await;
    let plan = read(&id, context.clone());
    let serial = DiskIdentity::Serial(id.clone());
    assert_eq!(plan.transport, Transport::Disk(serial));
    assert_eq!((plan.content, plan.bytes), (Content::New, 1 << 30));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(plan.is_new_at(now.as_secs()), "{plan:?}");
    let disks = bed.disks(&here.id);
    assert_eq!(disks.len(), 1, "{disks:?}");
    assert!(disks[0].ends_with(format!("virtio-{}", &id[..20])));
    assert_eq!(attached(client, &id, &here.id).await, context, "as before");
    let request = requests::attach(&id, &there.id, block());
    let second = client.controller_publish_volume(request).await;
    assert_refused(second, Code::FailedPrecondition, &here.id);
    assert_eq!(listed(client, 0).await[&id], [here.id.as_str()]);

    let grown = client.controller_expand_volume(requests::grow(&id, 2 * GIB));
    assert_eq!(grown.await.unwrap().into_inner().capacity_bytes, 2 * GIB);
    until("the disk has 2 GiB", || bytes_of(&disks[0]) == 2 * GIB);
    let attached_still = client.delete_volume(requests::delete(&id)).await;
    let by_server = format!("volume {id}: attached to node {}; detach it", here.id);
    assert_refused(attached_still, Code::FailedPrecondition, &by_server);

    detached(client, &id, &here.id).await;
    assert!(bed.disks(&here.id).is_empty(), "a disk is left");
    detached(client, &id, &here.id).await;
    let plan = read(&id, attached(client, &id, &there.id).await);
    assert_eq!((plan.content, plan.bytes), (Content::Used, 2 << 30));
    detached(client, &id, &there.id).await;
    deleted(client, &id).await;
    assert_eq!(cloud.volume(&id), None);
    deleted(client, &id).await;
    let metrics = site.metrics();
    let count = r#"belay_cloud_duration_seconds_count{cloud="openstack",verb="attach_volume""#;
    assert!(metrics.contains(count), "{metrics}");
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_of_another_program_is_attached_with_unknown_content() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let id = bed.text("/application_credential/id");
    let secret = bed.text("/application_credential/secret");
    let site = Site::new(&by_credential(&bed, id, secret));
    let _controller = site.start();
    let client = &mut site.client().await;
    let name = unique("foreign");
    let order = json!({"volume": {"name": name, "size": 1, "availability_zone": "az-a",
                                  "volume_type": "file-a"}});
    let body = cloud.expect(202, "volumev3", ("POST", "/volumes"), &order);
    let id = body["volume"]["id"].as_str().unwrap().to_owned();
    let _volume = cloud.await_status(&id, "available");
    for _ in 0..2 {
        let plan = read(&id, attached(client, &id, &server.id).await);
        assert_eq!(plan.content, Content::Unknown);
        detached(client, &id, &server.id).await;
    }
    // It is the volume of its name, but that does not make it one of ours.
    assert_eq!(created(client, &name).await.volume_id, id);
    let plan = read(&id, attached(client, &id, &server.id).await);
    assert_eq!(plan.content, Content::Unknown);
    detached(client, &id, &server.id).await;
    let path = format!("/volumes/{id}/metadata");
    let shown = cloud.expect(200, "volumev3", ("GET", &path), &Value::Null);
    assert_eq!(shown["metadata"]["belay.dev/used"], Value::Null, "{shown}");
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_whose_server_was_deleted_is_not_new_again() {
    let (bed, cloud) = opened();
    let (gone, next) = (cloud.server("az-a"), cloud.server("az-a"));
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("orphan")).await.volume_id;
    let node = gone.id.clone();
    assert_eq!(
        read(&id, attached(client, &id, &node).await).content,
        Content::New
    );
    drop(gone);
    let _volume = cloud.await_status(&id, "available");
    detached(client, &id, &node).await;
    let to_nothing = || requests::attach(&id, &node, block());
    let mut refused = client.controller_publish_volume(to_nothing()).await;
    // Nova answers 409 until it has deleted the server.
    while refused
        .as_ref()
        .is_err_and(|status| status.code() == Code::Aborted)
    {
        refused = client.controller_publish_volume(to_nothing()).await;
    }
    assert_refused(refused, Code::NotFound, &node);
    let plan = read(&id, attached(client, &id, &next.id).await);
    assert_eq!(plan.content, Content::Used);
    detached(client, &id, &next.id).await;
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_trust_is_enough_to_create_and_to_attach() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let site = Site::new(&by_trust(&bed, &cloud.trust()));
    let _controller = site.start();
    let client = &mut site.client().await;
    let id = created(client, &unique("trusted")).await.volume_id;
    attached(client, &id, &server.id).await;
    assert_eq!(cloud.volume(&id).unwrap().servers, [server.id.as_str()]);
    detached(client, &id, &server.id).await;
    deleted(client, &id).await;
}

/// The scheduler of the bed ignores hints; Cinder judges their form.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn cinder_accepts_the_hints_of_a_class() {
    let bed = Bed::open();
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let (first, second) = (unique("hinted"), unique("hinted"));
    let id = created(client, &first).await.volume_id;
    let hinted = |near: &str| {
        let mut request = create(&second, 1);
        for (key, volume) in [("affinity", near), ("anti-affinity", &*id)] {
            let key = format!("cinder.csi.openstack.org/{key}");
            request.parameters.insert(key, volume.to_owned());
        }
        request
    };
    let refused = client.create_volume(hinted("gone")).await;
    assert_refused(refused, Code::InvalidArgument, "\"gone\"");
    let made = client.create_volume(hinted(&first)).await.unwrap();
    let volume = made.into_inner().volume.unwrap();
    deleted(client, &volume.volume_id).await;
    deleted(client, &id).await;
}
