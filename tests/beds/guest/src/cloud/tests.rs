//! Tests of the cloud without guests: the volumes that its clients see, and the plugged disks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use belay_guest::Medium;
use belay_twins::http::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::{Api, SECRET};
use crate::server::{Host, lock};
use crate::volumes::{Volumes, Work};

/// A server with one slot.
struct Fake {
    id: &'static str,
    address: IpAddr,
    plugged: Mutex<BTreeMap<String, u64>>,
}

impl Host for Fake {
    fn id(&self) -> &str {
        self.id
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn plug(&self, serial: &str, medium: &Arc<Medium>) -> Result<(), String> {
        let mut plugged = lock(&self.plugged);
        if !plugged.is_empty() {
            return Err("full".to_owned());
        }
        plugged.insert(serial.to_owned(), medium.bytes());
        Ok(())
    }

    fn unplug(&self, serial: &str) {
        lock(&self.plugged).remove(serial);
    }

    fn grow(&self, serial: &str, bytes: u64) {
        lock(&self.plugged).insert(serial.to_owned(), bytes);
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

struct Bed {
    api: Api<Fake>,
    directory: TempDir,
}

fn bed() -> Bed {
    let directory = tempfile::tempdir().unwrap();
    let fake = |id, last| Fake {
        id,
        address: address(last),
        plugged: Mutex::default(),
    };
    let servers = vec![fake("s-1", 1), fake("s-2", 2)];
    let api = Api {
        volumes: Volumes::new(servers, directory.path().to_owned()),
        url: "http://10.0.0.9:80".to_owned(),
    };
    Bed { api, directory }
}

impl Bed {
    /// Returns the status and the body of the response, and the remaining work of the change. This
    /// work is not carried out.
    fn begin(&self, method: &str, target: &str, body: &Value) -> (u16, Value, Option<Work>) {
        let text = body.to_string();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nx-auth-token: token-of-the-bed\r\n\
             content-length: {}\r\n\r\n{text}",
            text.len()
        );
        let request = Request::read(&mut head.as_bytes()).unwrap().unwrap();
        let (response, work) = self.api.handle(&request, address(1));
        let body = serde_json::from_str(&response.body).unwrap_or(Value::Null);
        (response.status, body, work)
    }

    fn call(&self, method: &str, target: &str, body: &Value) -> (u16, Value) {
        let (status, body, work) = self.begin(method, target, body);
        if let Some(work) = work {
            self.api.volumes.perform(&work);
        }
        (status, body)
    }

    fn created(&self, name: &str) -> String {
        let asked = json!({ "volume": { "name": name, "size": 1, "metadata": { "a": "b" } } });
        let (status, body) = self.call("POST", "/volume/v3/volumes", &asked);
        assert_eq!(status, 202);
        body["volume"]["id"].as_str().unwrap().to_owned()
    }

    fn seen(&self, id: &str) -> Value {
        let (_, body) = self.call("GET", &format!("/volume/v3/volumes/{id}"), &json!({}));
        body["volume"].clone()
    }

    fn attach(&self, id: &str, server: &str) -> (u16, Value, Option<Work>) {
        let asked = json!({ "volumeAttachment": { "volumeId": id } });
        self.begin("POST", &attachments(server), &asked)
    }

    fn attached(&self, id: &str, server: &str) -> u16 {
        let (status, _, work) = self.attach(id, server);
        if let Some(work) = work {
            self.api.volumes.perform(&work);
        }
        status
    }

    fn detached(&self, id: &str, server: &str) -> u16 {
        let target = format!("{}/{id}", attachments(server));
        self.call("DELETE", &target, &json!({})).0
    }

    fn plugged(&self, server: usize) -> BTreeMap<String, u64> {
        lock(&self.api.volumes.servers[server].plugged).clone()
    }
}

fn attachments(server: &str) -> String {
    format!("/compute/v2.1/servers/{server}/os-volume_attachments")
}

#[test]
fn a_login_needs_the_secret_and_returns_token_and_catalog() {
    let bed = bed();
    let login = |secret: &str| {
        let identity = json!({ "application_credential": { "secret": secret } });
        let body = json!({ "auth": { "identity": identity } });
        bed.call("POST", "/identity/v3/auth/tokens", &body)
    };
    assert_eq!(login("guess").0, 401);
    let (status, body) = login(SECRET);
    assert_eq!(status, 201);
    let url = &body["token"]["catalog"][1]["endpoints"][0]["url"];
    assert_eq!(url, "http://10.0.0.9:80/compute/v2.1");
    let anonymous = Request {
        method: "GET".to_owned(),
        path: "/volume/v3/volumes/detail".to_owned(),
        ..Request::default()
    };
    assert_eq!(bed.api.handle(&anonymous, address(1)).0.status, 401);
}

#[test]
fn a_server_learns_its_id_by_its_address() {
    let bed = bed();
    let of = |last| {
        let request = Request {
            method: "GET".to_owned(),
            path: "/openstack/latest/meta_data.json".to_owned(),
            ..Request::default()
        };
        bed.api.handle(&request, address(last)).0
    };
    assert!(of(2).body.contains("\"uuid\":\"s-2\""));
    assert_eq!(of(3).status, 404);
}

#[test]
fn a_volume_is_listed_by_pages_and_found_by_name() {
    let bed = bed();
    let mut ids = ["pvc-1", "pvc-2", "pvc-2"].map(|name| bed.created(name));
    ids.sort();
    let listed = |query: &str| {
        let target = format!("/volume/v3/volumes/detail?{query}");
        let body = bed.call("GET", &target, &json!({})).1;
        let volumes = body["volumes"].as_array().unwrap().iter();
        let ids: Vec<String> = volumes
            .map(|volume| volume["id"].as_str().unwrap().to_owned())
            .collect();
        (ids, body["volumes_links"].is_array())
    };
    assert_eq!(listed("limit=2"), (ids[..2].to_vec(), true));
    let rest = listed(&format!("limit=2&marker={}", ids[1]));
    assert_eq!(rest, (ids[2..].to_vec(), false));
    assert_eq!(listed("name=pvc%2D2").0.len(), 2);
    assert!(listed("name=pvc").0.is_empty());
}

#[test]
fn a_volume_is_plugged_into_one_server_and_deleted_only_when_it_is_free() {
    let bed = bed();
    let id = bed.created("pvc-1");
    let (status, _, work) = bed.attach(&id, "s-1");
    assert_eq!(
        (status, bed.seen(&id)["status"].as_str()),
        (200, Some("attaching"))
    );
    assert_eq!(bed.attached(&id, "s-2"), 400);
    bed.api.volumes.perform(&work.unwrap());
    let seen = bed.seen(&id);
    assert_eq!(seen["status"], "in-use");
    assert_eq!(seen["attachments"][0]["server_id"], "s-1");
    let serial = BTreeMap::from([(id[..20].to_owned(), 1 << 30)]);
    assert_eq!(bed.plugged(0), serial);

    let (status, body, _) = bed.attach(&id, "s-2");
    let message = body["badRequest"]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("is already attached to instances"));
    let path = format!("/volume/v3/volumes/{id}");
    assert_eq!(bed.call("DELETE", &path, &json!({})).0, 400);
    assert_eq!(bed.detached(&id, "s-2"), 404);
    assert_eq!(bed.detached(&id, "s-1"), 202);
    assert!(bed.plugged(0).is_empty());
    assert_eq!(bed.seen(&id)["attachments"], json!([]));
    assert_eq!(bed.attached(&id, "s-2"), 200);
    assert_eq!(bed.plugged(1), serial);
    assert_eq!(bed.detached(&id, "s-2"), 202);
    assert_eq!(bed.call("DELETE", &path, &json!({})).0, 202);
    assert_eq!(bed.call("GET", &path, &json!({})).0, 404);
    assert_eq!(bed.directory.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_volume_without_a_slot_is_available_again() {
    let bed = bed();
    let ids = ["pvc-1", "pvc-2"].map(|name| bed.created(name));
    assert_eq!(bed.attached(&ids[0], "s-1"), 200);
    assert_eq!(bed.attached(&ids[1], "s-1"), 200);
    assert_eq!(bed.seen(&ids[1])["status"], "available");
    assert_eq!(bed.seen(&ids[1])["attachments"], json!([]));
    assert_eq!(bed.attached(&ids[1], "s-3"), 404);
}

#[test]
fn a_volume_grows_where_it_is_and_metadata_is_added() {
    let bed = bed();
    let id = bed.created("pvc-1");
    let extend = |gib: u64| {
        let asked = json!({ "os-extend": { "new_size": gib } });
        bed.call("POST", &format!("/volume/v3/volumes/{id}/action"), &asked)
            .0
    };
    assert_eq!([extend(1), extend(2)], [400, 202]);
    let file = bed.directory.path().join(&id);
    assert_eq!(file.metadata().unwrap().len(), 2 << 30);
    assert_eq!(bed.attached(&id, "s-1"), 200);
    assert_eq!(extend(3), 202);
    assert_eq!(bed.plugged(0).into_values().collect::<Vec<_>>(), [3 << 30]);
    assert_eq!(bed.seen(&id)["size"], 3);

    let path = format!("/volume/v3/volumes/{id}/metadata");
    let more = json!({ "metadata": { "c": "d" } });
    assert_eq!(bed.call("POST", &path, &more).0, 200);
    assert_eq!(bed.seen(&id)["metadata"], json!({ "a": "b", "c": "d" }));
}
