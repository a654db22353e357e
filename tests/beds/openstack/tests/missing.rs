//! Responses of the real services for a volume, snapshot, backup or server that does not exist, and
//! for IDs in other spellings; a proxy's 404 is different.

use belay_bed::requests;
use serde_json::{Value, json};
use tonic::Code;

use crate::site::{
    Site, assert_refused, attached, block, created, deleted, detached, opened, unique,
};

/// The ID of nothing.
const NONE: &str = "7f8b1c2d-1111-4222-8333-44445555aaff";

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn each_service_names_what_is_missing_and_no_other_404_does() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("there")).await.volume_id;
    let plugs = |server: &str, id: &str| format!("/servers/{server}/os-volume_attachments/{id}");
    let answer = |service, method, path: &str| {
        let answer = cloud.call(service, method, path, None).unwrap();
        (answer.status, answer.body)
    };
    for (service, method, path) in [
        ("volumev3", "GET", format!("/volumes/{NONE}")),
        ("volumev3", "DELETE", format!("/volumes/{NONE}")),
        ("volumev3", "GET", format!("/snapshots/{NONE}")),
        ("volumev3", "DELETE", format!("/snapshots/{NONE}")),
        ("volumev3", "GET", format!("/backups/{NONE}")),
        ("volumev3", "DELETE", format!("/backups/{NONE}")),
        ("compute", "DELETE", plugs(NONE, &id)),
        ("compute", "DELETE", plugs(&server.id, NONE)),
    ] {
        let (status, body) = answer(service, method, &path);
        let fault = &body["itemNotFound"];
        assert_eq!(
            (status, &fault["code"]),
            (404, &json!(404)),
            "{path}: {body}"
        );
        let message = fault["message"].as_str().unwrap();
        assert!(message.contains(NONE), "{path}: {message}");
    }
    // It is there, and not attached: Nova names both.
    let (status, body) = answer("compute", "DELETE", &plugs(&server.id, &id));
    let message = body["itemNotFound"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains(&id), "{body}");
    // A path without a resource.
    let (status, body) = answer("volumev3", "GET", &format!("/volumez/{id}"));
    assert_eq!(
        (status, &body["itemNotFound"]),
        (404, &Value::Null),
        "{body}"
    );
    deleted(client, &id).await;
}

/// The database of the bed is MariaDB, as that of most clouds: it ignores case.
#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn an_id_that_cinder_finds_in_another_spelling_is_refused_and_not_called_missing() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    // An ID without letters has no upper case.
    let id = loop {
        let id = created(client, &unique("spelled")).await.volume_id;
        if id.contains(|char: char| char.is_ascii_lowercase()) {
            break id;
        }
        deleted(client, &id).await;
    };
    let of_cinder = |spelled: &str| {
        let path = format!("/volumes/{}", spelled.replace(' ', "%20"));
        cloud.call("volumev3", "GET", &path, None).unwrap().status
    };
    for found in [id.to_uppercase(), format!("{id} ")] {
        assert_eq!(of_cinder(&found), 200, "{found:?}");
        let answer = client.delete_volume(requests::delete(&found)).await;
        assert_refused(answer, Code::InvalidArgument, "lower case");
        let detach = requests::detach(&found, &server.id);
        let answer = client.controller_unpublish_volume(detach).await;
        assert_refused(answer, Code::InvalidArgument, "lower case");
        let attach = requests::attach(&found, &server.id, block());
        let answer = client.controller_publish_volume(attach).await;
        assert_refused(answer, Code::InvalidArgument, "lower case");
    }
    let plain = id.replace('-', "");
    for (missing, encoded) in [
        (plain.clone(), plain),
        (format!("{{{id}}}"), format!("%7B{id}%7D")),
        (format!("urn:uuid:{id}"), format!("urn:uuid:{id}")),
    ] {
        assert_eq!(of_cinder(&encoded), 404, "{missing}");
        deleted(client, &missing).await;
        let answer = client.controller_get_volume(requests::get(&missing)).await;
        assert_refused(answer, Code::NotFound, &missing);
    }
    assert!(cloud.volume(&id).is_some());
    deleted(client, &id).await;
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_404_of_a_proxy_deletes_and_detaches_nothing() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    let id = created(client, &unique("there")).await.volume_id;
    let cut = requests::cut(&unique("there"), &id);
    let snapshot = client.create_snapshot(cut).await.unwrap().into_inner();
    let snapshot = snapshot.snapshot.unwrap().snapshot_id;
    attached(client, &id, &server.id).await;
    let fronts = bed.fronts();
    for body in ["<html><h1>404 Not Found</h1></html>", ""] {
        let rules = |method: &str, path: &str| {
            let rule = json!({"action": "answer", "status": 404, "body": body,
                              "method": method, "path": path});
            fronts.obey(&json!([rule]));
        };
        let path = format!("/volumes/{id}$");
        for method in ["GET", "DELETE"] {
            rules(method, &path);
            if method == "GET" {
                let detach = requests::detach(&id, &server.id);
                let answer = client.controller_unpublish_volume(detach).await;
                assert_refused(answer, Code::Unavailable, "a proxy on the way");
            } else {
                let answer = client.delete_volume(requests::delete(&id)).await;
                assert_refused(answer, Code::Unavailable, "a proxy on the way");
            }
        }
        rules("DELETE", "/os-volume_attachments/");
        let detach = requests::detach(&id, &server.id);
        let answer = client.controller_unpublish_volume(detach).await;
        assert_refused(answer, Code::Unavailable, "a proxy on the way");
        rules("DELETE", "/snapshots/");
        let discard = || requests::discard(&snapshot);
        let answer = client.delete_snapshot(discard()).await;
        assert_refused(answer, Code::Unavailable, "a proxy on the way");
        // Neither a snapshot nor, as far as is known, no backup.
        rules("GET", "/backups/");
        let answer = client.delete_snapshot(requests::discard(NONE)).await;
        assert_refused(answer, Code::Unavailable, "a proxy on the way");
        fronts.obey(&json!([]));
        let volume = cloud.volume(&id).unwrap();
        assert_eq!(volume.servers, [server.id.as_str()]);
    }
    client
        .delete_snapshot(requests::discard(&snapshot))
        .await
        .unwrap();
    detached(client, &id, &server.id).await;
    deleted(client, &id).await;
}
