//! The bed by itself: the cloud works, disks appear, faults and counts are what was ordered.

use std::fs;

use belay_bed::patience::until;
use belay_openstack::{Bed, Cloud};
use serde_json::{Value, json};

use crate::site::opened;

const VOLUMES: &str = "volumev3";

fn create(cloud: &Cloud, name: &str) -> String {
    let order = json!({"volume": {"name": name, "size": 1, "availability_zone": "az-a"}});
    let body = cloud.expect(202, VOLUMES, ("POST", "/volumes"), &order);
    let id = body["volume"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(cloud.await_status(&id, "available").size, 1);
    id
}

fn delete(cloud: &Cloud, id: &str) {
    let path = format!("/volumes/{id}");
    let _body = cloud.expect(202, VOLUMES, ("DELETE", &path), &Value::Null);
    until("the volume is gone", || cloud.volume(id).is_none());
}

fn attachments(server: &str) -> String {
    format!("/servers/{server}/os-volume_attachments")
}

/// Bytes of the disk behind a link, as the kernel has it.
fn bytes_of(link: &std::path::Path) -> u64 {
    let device = fs::read_link(link).expect("a link to a device");
    let name = device.file_name().expect("a name").to_string_lossy();
    let sectors = fs::read_to_string(format!("/sys/class/block/{name}/size"));
    let sectors: u64 = sectors
        .expect("a block device")
        .trim()
        .parse()
        .expect("a number");
    sectors * 512
}

#[test]
#[ignore = "needs a bed: make openstack"]
fn a_volume_is_created_attached_extended_detached_and_deleted() {
    let bed = Bed::open();
    let cloud = Cloud::by_application_credential(&bed);
    let server = cloud.server("az-a");
    let id = create(&cloud, "whole-lifecycle");
    let order = json!({"volumeAttachment": {"volumeId": id}});
    let _body = cloud.expect(200, "compute", ("POST", &attachments(&server.id)), &order);
    assert_eq!(
        cloud.await_status(&id, "in-use").servers,
        [server.id.as_str()]
    );
    let disks = bed.disks(&server.id);
    assert_eq!(disks.len(), 1, "{disks:?}");
    assert!(
        disks[0].ends_with(format!("virtio-{}", &id[..20])),
        "{disks:?}"
    );
    assert_eq!(bytes_of(&disks[0]), 1 << 30);

    let extend = json!({"os-extend": {"new_size": 2}});
    let path = format!("/volumes/{id}/action");
    let _body = cloud.expect(202, VOLUMES, ("POST", &path), &extend);
    until("the volume has 2 GiB", || {
        cloud.volume(&id).is_some_and(|volume| volume.size == 2)
    });
    until("the disk has 2 GiB", || bytes_of(&disks[0]) == 2 << 30);

    let path = format!("{}/{id}", attachments(&server.id));
    until("Nova accepts the detach", || {
        let answer = cloud
            .call("compute", "DELETE", &path, None)
            .expect("an answer");
        answer.status == 202
    });
    assert_eq!(
        cloud.await_status(&id, "available").servers,
        [] as [&str; 0]
    );
    assert!(bed.disks(&server.id).is_empty(), "a disk is left");
    delete(&cloud, &id);
}

#[test]
#[ignore = "needs a bed: make openstack"]
fn a_deleted_server_leaves_no_disk_and_its_volume_available() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let id = create(&cloud, "of-a-deleted-server");
    let order = json!({"volumeAttachment": {"volumeId": id}});
    let _body = cloud.expect(200, "compute", ("POST", &attachments(&server.id)), &order);
    let _volume = cloud.await_status(&id, "in-use");
    let name = server.id.clone();
    drop(server);
    let _volume = cloud.await_status(&id, "available");
    assert!(bed.disks(&name).is_empty(), "a disk is left");
    delete(&cloud, &id);
}

#[test]
#[ignore = "needs a bed: make openstack"]
fn a_request_whose_answer_was_cut_has_gone_through() {
    let (bed, cloud) = opened();
    let fronts = bed.fronts();
    let name = "of-a-cut-answer";
    let order = json!({"volume": {"name": name, "size": 1}});
    fronts.obey(
        &json!([{"action": "cut_before", "method": "POST", "path": "/volumes$",
                         "times": 1}]),
    );
    assert!(
        cloud
            .call(VOLUMES, "POST", "/volumes", Some(&order))
            .is_err()
    );
    assert_eq!(cloud.volumes(Some(name)), []);
    fronts.obey(
        &json!([{"action": "cut_after", "method": "POST", "path": "/volumes$",
                         "times": 1}]),
    );
    assert!(
        cloud
            .call(VOLUMES, "POST", "/volumes", Some(&order))
            .is_err()
    );
    assert_eq!(fronts.applied(), [1]);
    let made = cloud.volumes(Some(name));
    assert_eq!(made.len(), 1, "{made:?}");
    let _volume = cloud.await_status(&made[0].id, "available");
    delete(&cloud, &made[0].id);
}

#[test]
#[ignore = "needs a bed: make openstack"]
fn ordered_answers_reach_the_client_and_are_counted() {
    let (bed, cloud) = opened();
    let fronts = bed.fronts();
    fronts.forget();
    let throttled = json!({"action": "answer", "status": 429, "retry_after": 3, "times": 1});
    fronts.obey(&json!([throttled, {"action": "truncate", "bytes": 5, "times": 1}]));
    let get = || cloud.call(VOLUMES, "GET", "/types", None);
    let answer = get().expect("an answer");
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (429, Some("3"))
    );
    assert!(
        get().is_err(),
        "a truncated answer was taken for a whole one"
    );
    assert_eq!(get().expect("an answer").status, 200);
    assert_eq!(fronts.count("cinder", "GET", "/v3/{id}/types"), 3);
    assert_eq!(fronts.count("nova", "", ""), 0);
}

#[test]
#[ignore = "needs a bed: make openstack"]
fn a_driver_fails_and_delays_on_order() {
    let (bed, cloud) = opened();
    let faults = bed.faults();
    faults.set("create_volume", &json!({"fail": true}));
    let order =
        json!({"volume": {"name": "of-a-driver-in-trouble", "size": 1, "volume_type": "file-a"}});
    let body = cloud.expect(202, VOLUMES, ("POST", "/volumes"), &order);
    let id = body["volume"]["id"].as_str().expect("an id");
    let _volume = cloud.await_status(id, "error");
    faults.set("create_volume", &json!({"delay": 5, "once": true}));
    let body = cloud.expect(202, VOLUMES, ("POST", "/volumes"), &order);
    let slow = body["volume"]["id"].as_str().expect("an id");
    until("the driver waits", || !faults.is_set("create_volume"));
    let status = cloud.volume(slow).expect("the volume").status;
    assert_eq!(status, "creating");
    let _volume = cloud.await_status(slow, "available");
    delete(&cloud, id);
    delete(&cloud, slow);
}
