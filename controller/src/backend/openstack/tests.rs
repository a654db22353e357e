//! Tests the backend with a simulated Keystone, Cinder and Nova (the twin) on the loopback
//! interface. The twin sends the responses of the real services, but completes every change before
//! it responds.

mod capacity;
mod dropped;
mod existing;
mod hints;
mod proxies;
mod renewal;
mod retype;
mod sharing;
mod snapshots;
mod zones;

use super::*;
use crate::backend::{AttachOrder, Attachment, AttachmentSpec, Attempt, Mark, Usage};
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::Certainty;
use belay_server::request::{AccessMode, MountFlags, NodeId, Secrets};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const PASSWORD: &str = "canary-password";

/// IDs of servers.
const S1: &str = "51000000-0000-4000-8000-000000000001";
const S2: &str = "51000000-0000-4000-8000-000000000002";
const S3: &str = "51000000-0000-4000-8000-000000000003";
const S4: &str = "51000000-0000-4000-8000-000000000004";

/// Returns the ID of a volume by the order of creation, from 0.
fn nth(volume: usize) -> String {
    format!("00000000-0000-4000-8000-{volume:012}")
}

/// Returns the response of a service for a missing object.
fn missing(what: &str, id: &str) -> (u16, Value) {
    let message = format!("{what} {id} could not be found.");
    (
        404,
        json!({"itemNotFound": {"code": 404, "message": message}}),
    )
}

fn bad_request(message: &str) -> (u16, Value) {
    (
        400,
        json!({"badRequest": {"code": 400, "message": message}}),
    )
}

#[derive(Default)]
struct State {
    address: String,
    logins: usize,
    password: &'static str,
    /// The project of the token; omitted if empty.
    project: &'static str,
    /// The method and path of each request.
    seen: Vec<String>,
    /// The text of the message about the first volume.
    message: &'static str,
    /// The event ID and the time of the message.
    event: Option<(&'static str, &'static str)>,
    /// The volumes by ID, in Cinder's form.
    volumes: BTreeMap<String, Value>,
    snapshots: BTreeMap<String, Value>,
    backups: BTreeMap<String, Value>,
    /// The extra specs of volume types by name, in Cinder's form. A null value means that users
    /// cannot see the extra specs.
    types: BTreeMap<&'static str, Value>,
    /// The status and body for calls whose method and path contain the first text, once per entry.
    refusals: Vec<(&'static str, &'static str, &'static str)>,
}

struct Twin {
    state: Arc<Mutex<State>>,
    backend: Arc<Cloud>,
    dir: TempDir,
}

impl Twin {
    async fn start() -> Self {
        Self::with("").await
    }

    /// Starts a twin with additional lines in `cloud.conf`.
    async fn with(more: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let state = State {
            address: address.to_string(),
            password: PASSWORD,
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cloud.conf");
        std::fs::write(&file, conf(address, PASSWORD) + more).unwrap();
        let config = Config {
            files: vec![file],
            clouds: Vec::new(),
            cluster: "k8s".to_owned(),
            topology_key: Some("zone"),
            volumes_max: 256,
        };
        let backend = Arc::new(Cloud::open(&config, "", None).unwrap());
        Self {
            state,
            backend,
            dir,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn created(&self, name: &str) -> VolumeId {
        self.backend.create(order(name)).await.unwrap().id
    }

    async fn get(&self, id: &VolumeId) -> Result<Option<Volume>, Failure> {
        self.backend.get(id.clone(), Secrets::default()).await
    }

    async fn delete(&self, id: &VolumeId) -> Result<Progress<()>, Failure> {
        self.backend.delete(id.clone(), Secrets::default()).await
    }

    /// Creates a volume, and claims the volume for its name.
    async fn claimed(&self, name: &str) -> VolumeId {
        let id = self.created(name).await;
        self.backend
            .claim(id.clone(), Secrets::default())
            .await
            .unwrap();
        id
    }
}

fn conf(address: SocketAddr, password: &str) -> String {
    format!(
        "[Global]\nauth-url=http://{address}/identity\nusername=csi\npassword={password}\n\
         tenant-name=k8s\ndomain-name=Default\nregion=one\n"
    )
}

fn order(name: &str) -> Arc<Order> {
    Arc::new(Order {
        name: Name::new(name).unwrap(),
        attempt: Attempt::new(1, 1),
        bytes: 2 * GIB,
        usage: Usage::Block,
        mount_flags: MountFlags::default(),
        shared: false,
        parameters: Context::new("parameters", [("type".to_owned(), "fast".to_owned())]).unwrap(),
        topology: None,
        secrets: Secrets::default(),
    })
}

fn to(id: &VolumeId, node: &str) -> Arc<AttachOrder> {
    Arc::new(AttachOrder {
        id: id.clone(),
        node: NodeId::new(node).unwrap(),
        spec: AttachmentSpec {
            read_only: false,
            block: true,
            mode: AccessMode::SingleNodeWriter,
        },
        context: Context::default(),
        secrets: Secrets::default(),
    })
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut text = Vec::new();
    while stream.read_buf(&mut text).await.is_ok_and(|read| read > 0) {
        let whole = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = whole.split_once("\r\n\r\n") else {
            continue;
        };
        let lower = head.to_lowercase();
        let length = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() < length.map_or(0, |length| length.parse().unwrap()) {
            continue;
        }
        let (status, more, body) = state.lock().unwrap().answer(head, body);
        if status == "silence" {
            std::future::pending::<()>().await;
        }
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\n{more}content-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        text.clear();
    }
}

impl State {
    /// Returns the status, additional headers and the body of a response.
    fn answer(&mut self, head: &str, body: &str) -> (String, String, String) {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let call = format!("{method} {path}");
        self.seen.push(call.clone());
        let refusal = self
            .refusals
            .iter()
            .position(|(part, ..)| call.contains(part));
        if let Some(at) = refusal {
            let (_, status, text) = self.refusals.remove(at);
            return (status.to_owned(), String::new(), text.to_owned());
        }
        let body: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        if path == "/identity/v3/auth/tokens" {
            return self.log_in(&body);
        }
        let token = format!("x-auth-token: token-canary-{}", self.logins);
        assert!(head.contains(&token), "{head}");
        let (status, body) = self.serve(method, path, head, &body);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        (status.to_string(), String::new(), body)
    }

    fn log_in(&mut self, body: &Value) -> (String, String, String) {
        let user = &body["auth"]["identity"]["password"]["user"];
        if user["password"] != self.password {
            let message = format!("{} is wrong", user["password"]);
            let error = json!({"error": {"code": 401, "message": message}});
            return ("401".to_owned(), String::new(), error.to_string());
        }
        assert_eq!(user["domain"]["name"], "Default");
        self.logins += 1;
        let service = |kind: &str, path: &str| {
            let url = format!("http://{}/{path}/", self.address);
            json!({"type": kind, "endpoints": [
                {"interface": "admin", "region": "one", "url": "http://nowhere"},
                {"interface": "public", "region": "two", "url": "http://nowhere"},
                {"interface": "public", "region": "one", "url": url},
            ]})
        };
        let token = json!({"token": {
            "issued_at": "2026-11-22T23:00:00.000000Z",
            "expires_at": "2026-11-23T00:00:00.000000Z",
            "project": (!self.project.is_empty()).then(|| json!({"id": self.project})),
            "catalog": [service("volumev3", "volume/v3"), service("compute", "compute/v2.1")],
        }});
        let header = format!("x-subject-token: token-canary-{}\r\n", self.logins);
        ("201".to_owned(), header, token.to_string())
    }

    fn serve(&mut self, method: &str, path: &str, head: &str, body: &Value) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        if let Some(answer) = self.except_volumes(method, &parts, query, body) {
            return answer;
        }
        match (method, &parts[..]) {
            ("POST", ["volume", "v3", "volumes"]) => self.create(head, body),
            ("GET", ["volume", "v3", "volumes", "detail"]) => list(&self.volumes, "volumes", query),
            ("GET", ["volume", "v3", "volumes", id]) => match self.volumes.get(*id) {
                Some(volume) => (200, json!({ "volume": volume })),
                None => missing("Volume", id),
            },
            ("DELETE", ["volume", "v3", "volumes", id]) => self.delete(id),
            ("POST", ["volume", "v3", "volumes", id, "metadata"]) => {
                let Some(volume) = self.volumes.get_mut(*id) else {
                    return missing("Volume", id);
                };
                for (key, value) in body["metadata"].as_object().unwrap() {
                    volume["metadata"][key] = value.clone();
                }
                (200, json!({ "metadata": volume["metadata"] }))
            }
            ("POST", ["volume", "v3", "volumes", id, "action"]) => {
                assert!(head.contains("volume 3.42"), "{head}");
                let volume = self.volumes.get_mut(*id).unwrap();
                if body["os-retype"]["migration_policy"] == "never" {
                    if volume["ignores_retypes"] != true {
                        volume["volume_type"] = body["os-retype"]["new_type"].clone();
                    }
                } else {
                    volume["size"] = body["os-extend"]["new_size"].clone();
                }
                (202, Value::Null)
            }
            (
                _,
                [
                    "compute",
                    "v2.1",
                    "servers",
                    server,
                    "os-volume_attachments",
                    rest @ ..,
                ],
            ) => {
                assert!(head.contains("compute 2.60"), "{head}");
                let id = body["volumeAttachment"]["volumeId"].as_str();
                let id = id.unwrap_or_else(|| rest[0]);
                self.attachment(method, server, id)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Handles a request for attachments as Nova does.
    fn attachment(&mut self, method: &str, server: &str, id: &str) -> (u16, Value) {
        let volume = self.volumes.get_mut(id).unwrap();
        if method == "DELETE" {
            let attachments = volume["attachments"].as_array_mut().unwrap();
            attachments.retain(|attachment| attachment["server_id"] != server);
            if attachments.is_empty() {
                volume["status"] = "available".into();
            }
            return (202, Value::Null);
        }
        let is_known = volume["known_to_nova"].take() == true;
        let takes = volume["multiattach"] == true && volume["status"] == "in-use";
        if is_known || !takes && volume["status"] != "available" {
            return bad_request(&format!(
                "volume {id} is already attached to instances: {S1}"
            ));
        }
        let attachments = volume["attachments"].as_array_mut().unwrap();
        attachments.push(json!({"server_id": server, "device": "/dev/sdb"}));
        volume["status"] = "in-use".into();
        (200, json!({"volumeAttachment": {"device": "/dev/vdz"}}))
    }

    /// Creates a volume, empty or from a snapshot, a volume or a backup.
    fn create(&mut self, head: &str, body: &Value) -> (u16, Value) {
        let id = nth(self.volumes.len());
        let mut volume = body["volume"].clone();
        let snapshot = volume["snapshot_id"].as_str();
        if let Some(id) = snapshot.filter(|id| !self.snapshots.contains_key(*id)) {
            return missing("Snapshot", id);
        }
        if let Some(backup) = volume["backup_id"].as_str().map(str::to_owned) {
            assert!(head.contains("volume 3.47"), "{head}");
            let of = self.backups[&backup]["carries"].clone();
            volume["metadata"] = of;
            volume["metadata"]["src_backup_id"] = backup.into();
        }
        volume["id"] = id.clone().into();
        volume["status"] = "available".into();
        volume["attachments"] = json!([]);
        volume["hints"] = body["OS-SCH-HNT:scheduler_hints"].clone();
        let specs = volume["volume_type"].as_str();
        let specs = specs.and_then(|name| self.types.get(name));
        volume["multiattach"] = specs
            .is_some_and(|it| it["multiattach"] == "<is> True")
            .into();
        if volume["availability_zone"].is_null() {
            volume["availability_zone"] = "nova".into();
        }
        self.volumes.insert(id, volume.clone());
        (202, json!({ "volume": volume }))
    }

    /// Handles requests for messages, zones, types and snapshots.
    fn except_volumes(
        &mut self,
        method: &str,
        parts: &[&str],
        query: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        Some(match (method, parts) {
            ("GET", ["volume", "v3", "messages"]) => {
                let is_asked = query.contains(&format!("resource_uuid={}&", nth(0)));
                let mut message = json!({"user_message": self.message, "message_level": "ERROR"});
                if let Some((event, at)) = self.event {
                    message["event_id"] = event.into();
                    message["created_at"] = at.into();
                }
                let messages = is_asked.then_some(message);
                (200, json!({ "messages": messages.as_slice() }))
            }
            ("GET", ["volume", "v3", "os-availability-zone"]) => {
                let zone = |name: &str| json!({"zoneName": name, "zoneState": {"available": true}});
                let down = json!({"zoneName": "down", "zoneState": {"available": false}});
                let zones = [zone("nova"), zone("zone a/1"), down];
                (200, json!({ "availabilityZoneInfo": zones }))
            }
            ("GET", ["volume", "v3", "limits"]) => {
                let used: i64 = self
                    .volumes
                    .values()
                    .filter_map(|it| it["size"].as_i64())
                    .sum();
                let absolute = json!({"maxTotalVolumes": 3, "maxTotalVolumeGigabytes": 10,
                    "totalVolumesUsed": self.volumes.len(), "totalGigabytesUsed": used});
                (200, json!({ "limits": {"rate": [], "absolute": absolute} }))
            }
            ("GET", ["volume", "v3", "types", rest @ ..]) => {
                let shown = |(name, specs): (&&str, &Value)| match specs {
                    Value::Null => json!({"id": format!("id-of-{name}"), "name": name}),
                    specs => json!({"id": format!("id-of-{name}"), "name": name,
                                    "extra_specs": specs}),
                };
                match rest {
                    ["default"] => match self.types.get_key_value("default") {
                        Some(default) => (200, json!({ "volume_type": shown(default) })),
                        None => missing("Default volume type", "none"),
                    },
                    _ => {
                        let types: Vec<_> = self.types.iter().map(shown).collect();
                        (200, json!({ "volume_types": types }))
                    }
                }
            }
            (_, ["volume", "v3", "snapshots", ..] | ["volume", "v3", "backups", ..]) => {
                self.snapshot(method, &parts[2..], query, body)
            }
            _ => return None,
        })
    }

    fn delete(&mut self, id: &str) -> (u16, Value) {
        let Some(volume) = self.volumes.get_mut(id) else {
            return missing("Volume", id);
        };
        if volume["status"] == "available" {
            self.volumes.remove(id);
            return (202, Value::Null);
        }
        if volume["settles"] == true {
            volume["status"] = "available".into();
        }
        bad_request("Invalid volume")
    }
}

/// Returns a page of objects, which Cinder calls `kind`.
fn list(all: &BTreeMap<String, Value>, kind: &str, query: &str) -> (u16, Value) {
    let asked = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(known, _)| *known == key)
            .map(|(_, value)| value.to_owned())
    };
    let marker = asked("marker");
    if marker
        .as_ref()
        .is_some_and(|marker| !all.contains_key(marker))
    {
        return missing("Marker", &marker.unwrap_or_default());
    }
    let mut shown: Vec<_> = all.iter().collect();
    shown.retain(|(id, _)| marker.as_ref().is_none_or(|marker| *id > marker));
    if let Some(name) = asked("name") {
        shown.retain(|(_, one)| one["name"].as_str().unwrap().contains(&name));
    }
    if let Some(id) = asked("volume_id") {
        shown.retain(|(_, one)| one["volume_id"] == id.as_str());
    }
    let limit = asked("limit").map_or(1000, |limit| limit.parse().unwrap());
    let has_more = shown.len() > limit;
    shown.truncate(limit);
    let shown: Vec<_> = shown.into_iter().map(|(_, one)| one).collect();
    match has_more {
        true => {
            let links = format!("{kind}_links");
            (200, json!({kind: shown, links: [{"rel": "next"}]}))
        }
        false => (200, json!({ kind: shown })),
    }
}

#[tokio::test]
async fn a_volume_is_created_found_claimed_grown_and_deleted() {
    let twin = Twin::start().await;
    let made = twin.backend.create(order("pvc-1")).await.unwrap();
    assert_eq!(
        (made.bytes, made.mark),
        (2 * GIB, Mark::Open(Attempt::new(1, 1)))
    );
    twin.created("pvc-12").await;
    let found = twin
        .backend
        .find(Name::new("pvc-1").unwrap(), Secrets::default())
        .await
        .unwrap();
    assert_eq!(found.len(), 1, "not the one with a similar name");
    assert_eq!(found[0].id, made.id);
    twin.backend
        .claim(made.id.clone(), Secrets::default())
        .await
        .unwrap();
    let seen = twin.get(&made.id).await.unwrap().unwrap();
    assert_eq!(seen.mark, Mark::Claimed);
    {
        let state = twin.state();
        let volume = &state.volumes[made.id.as_str()];
        assert_eq!(volume["volume_type"], "fast");
        assert_eq!(volume["metadata"][CLUSTER], "k8s");
        assert_eq!(state.logins, 1);
    }
    let resize = |bytes| {
        twin.backend
            .resize(made.id.clone(), bytes, Secrets::default())
    };
    assert_eq!(resize(GIB).await.unwrap(), Progress::Done(2 * GIB));
    assert_eq!(resize(5 * GIB).await.unwrap(), Progress::Begun);
    assert_eq!(resize(5 * GIB).await.unwrap(), Progress::Done(5 * GIB));
    let delete = || twin.delete(&made.id);
    assert_eq!(delete().await.unwrap(), Progress::Begun);
    assert_eq!(delete().await.unwrap(), Progress::Done(()));
    assert_eq!(twin.get(&made.id).await.unwrap(), None);
}

#[tokio::test]
async fn only_a_volume_that_we_made_and_that_was_never_attached_is_new() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    let node = || NodeId::new(S1).unwrap();
    let content = async |id: &VolumeId| {
        assert_eq!(
            twin.backend.attach(to(id, S1)).await.unwrap(),
            Progress::Begun
        );
        let attached = twin.backend.attach(to(id, S1)).await.unwrap();
        let Progress::Done(attachment) = attached else {
            panic!("not attached")
        };
        let serial = DiskIdentity::Serial(id.to_string());
        assert_eq!(attachment.transport, Transport::Disk(serial));
        let detach = || twin.backend.detach(id.clone(), node(), Secrets::default());
        assert_eq!(detach().await.unwrap(), Progress::Begun);
        assert_eq!(detach().await.unwrap(), Progress::Done(()));
        attachment.content
    };
    assert_eq!(content(&id).await, Content::New);
    assert_eq!(content(&id).await, Content::Used);
    let others = twin.created("pvc-2").await;
    assert_eq!(content(&others).await, Content::Unknown, "not claimed");
    // Another program has created the volume, and this driver has only claimed its name.
    let claimed = twin.claimed("pvc-3").await;
    twin.state().volumes.get_mut(claimed.as_str()).unwrap()["metadata"]
        .as_object_mut()
        .unwrap()
        .remove(wire::ATTEMPT);
    assert_eq!(content(&claimed).await, Content::Unknown);
    // The mark that the volume was used is written before the volume is detached.
    let seen = twin.state().seen.join("\n");
    let marked = seen.rfind(&format!("/{id}/metadata")).unwrap();
    assert!(marked < seen.rfind(&format!("volume_attachments/{id}")).unwrap());
}

#[tokio::test]
async fn a_volume_is_used_also_if_nova_has_detached_it_with_its_server() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    twin.backend.attach(to(&id, S1)).await.unwrap();
    {
        let mut state = twin.state();
        let volume = state.volumes.get_mut(id.as_str()).unwrap();
        volume["attachments"] = json!([]);
        volume["status"] = "available".into();
    }
    let node = NodeId::new(S1).unwrap();
    let detach = twin.backend.detach(id.clone(), node, Secrets::default());
    assert_eq!(detach.await.unwrap(), Progress::Done(()));
    twin.backend.attach(to(&id, S2)).await.unwrap();
    let attached = twin.backend.attach(to(&id, S2)).await.unwrap();
    let Progress::Done(attachment) = attached else {
        panic!("not attached")
    };
    assert_eq!(attachment.content, Content::Used);
}

#[tokio::test]
async fn a_volume_is_attached_to_one_node_and_not_deleted_meanwhile() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    twin.backend.attach(to(&id, S1)).await.unwrap();
    let refused = twin.backend.attach(to(&id, S2)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains(S1), "{refused}");
    let refused = twin.delete(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.ends_with("Invalid volume"), "{refused}");
    for (status, is_refused) in [("detaching", true), ("deleting", false)] {
        {
            let mut state = twin.state();
            state.volumes.get_mut(id.as_str()).unwrap()["status"] = status.into();
            state.seen.clear();
        }
        let deleted = twin.delete(&id).await;
        match is_refused {
            true => assert_eq!(deleted.unwrap_err().kind, Kind::Busy),
            false => assert_eq!(deleted, Ok(Progress::Begun)),
        }
        // The twin has received two requests: the deletion and one read of the volume.
        assert_eq!(twin.state().seen.len(), 2, "{status}");
    }
}

#[tokio::test]
async fn a_volume_that_another_controller_has_just_detached_is_deleted() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    {
        let mut state = twin.state();
        let volume = state.volumes.get_mut(id.as_str()).unwrap();
        volume["status"] = "detaching".into();
        // The status changes after the first refused deletion.
        volume["settles"] = true.into();
    }
    assert_eq!(twin.delete(&id).await, Ok(Progress::Begun));
}

#[tokio::test]
async fn an_attach_is_repeated_while_nova_has_a_record_of_an_attachment_that_cinder_has_not() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    twin.state().volumes.get_mut(id.as_str()).unwrap()["known_to_nova"] = true.into();
    let refused = twin.backend.attach(to(&id, S1)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    let cause = format!("volume {id}: Nova has a record of an attachment that Cinder");
    assert!(refused.message.starts_with(&cause), "{refused}");
    assert!(refused.message.contains(S1), "{refused}");
    let begun = twin.backend.attach(to(&id, S1)).await;
    assert_eq!(begun.unwrap(), Progress::Begun);
}

#[tokio::test]
async fn pages_follow_each_other_and_one_that_begins_nowhere_is_refused() {
    let twin = Twin::start().await;
    for n in 0..5 {
        twin.created(&format!("pvc-{n}")).await;
    }
    let (mut after, mut ids) = (None, Vec::new());
    loop {
        let page = twin
            .backend
            .list(after, 2, Secrets::default())
            .await
            .unwrap();
        ids.extend(page.volumes.into_iter().map(|volume| volume.id.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(ids, [0, 1, 2, 3, 4].map(nth));
    let refused = twin
        .backend
        .list(Some("gone".to_owned()), 2, Secrets::default())
        .await
        .unwrap_err();
    assert_eq!(refused.kind, Kind::BadToken);
}

/// Searches for this number of existing volumes concurrently. Returns the requests.
async fn searched(twin: &Twin, names: usize) -> Vec<String> {
    twin.state().seen.clear();
    let names = (0..names).map(|n| format!("pvc-{n}"));
    let searches = names.map(|name| {
        let backend = Arc::clone(&twin.backend);
        tokio::spawn(async move {
            let name = Name::new(name.as_str()).unwrap();
            let found = backend.find(name, Secrets::default()).await;
            assert_eq!(found.unwrap().len(), 1);
        })
    });
    for search in searches.collect::<Vec<_>>() {
        search.await.unwrap();
    }
    twin.state().seen.clone()
}

#[tokio::test]
async fn searches_at_one_time_share_a_list_unless_it_is_long() {
    let twin = Twin::start().await;
    for n in 0..40 {
        twin.created(&format!("pvc-{n}")).await;
    }
    let seen = searched(&twin, 1).await;
    assert!(seen[0].contains("?name=pvc"), "{seen:?}");
    let seen = searched(&twin, 20).await;
    assert!(seen.len() <= 2, "{seen:?}");
    for n in 40..70 {
        twin.created(&format!("pvc-{n}")).await;
    }
    // The list is too long to be read for two searches, which the backend then remembers, but not
    // for twenty searches.
    assert_eq!(searched(&twin, 2).await.len(), 3);
    assert_eq!(searched(&twin, 2).await.len(), 2);
    assert_eq!(searched(&twin, 20).await.len(), 1);
}

#[tokio::test]
async fn a_refused_token_is_renewed_once_and_new_credentials_are_read() {
    let twin = Twin::start().await;
    let id = twin.created("pvc-1").await;
    twin.state().refusals = vec![("GET /volume", "401", "token canary")];
    twin.get(&id).await.unwrap().unwrap();
    assert_eq!(twin.state().logins, 2);

    let file = twin.dir.path().join("cloud.conf");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(PASSWORD, "other-canary")).unwrap();
    twin.state().refusals = vec![("GET /volume", "401", "")];
    let refused = twin.get(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Unauthenticated);
    assert!(refused.message.contains("401"), "{refused}");
    assert!(!refused.message.contains("canary"), "{refused}");
}

/// Advances the clock by this time. Sockets can be used again afterwards.
async fn later(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_changed_file_is_used_soon_and_one_that_cannot_be_used_stops_no_call() {
    let twin = Twin::start().await;
    let id = twin.created("pvc-1").await;
    let file = twin.dir.path().join("cloud.conf");
    let text = std::fs::read_to_string(&file).unwrap();
    let get = || twin.get(&id);
    std::fs::write(&file, "[Global").unwrap();
    later(6).await;
    get().await.unwrap();
    std::fs::write(&file, text.replace(PASSWORD, "other-canary")).unwrap();
    later(6).await;
    get().await.unwrap();
    assert_eq!(
        twin.state().logins,
        1,
        "refused, and the old token is valid"
    );
    twin.state().password = "other-canary";
    get().await.unwrap();
    assert_eq!(twin.state().logins, 1, "it is not tried again at once");
    later(6).await;
    get().await.unwrap();
    assert_eq!(twin.state().logins, 2);
    later(6).await;
    get().await.unwrap();
    assert_eq!(twin.state().logins, 2, "the file has not changed again");
    // The token lasts an hour, and is renewed after three quarters of it.
    later(46 * 60).await;
    get().await.unwrap();
    assert_eq!(twin.state().logins, 3);
    std::fs::remove_file(&file).unwrap();
    later(50 * 60).await;
    get().await.unwrap();
    later(20 * 60).await;
    let failure = get().await.unwrap_err();
    assert!(failure.message.contains("cloud.conf: "), "{failure}");
}

#[tokio::test]
async fn what_the_services_refuse_has_its_kind_and_what_may_be_begun_is_uncertain() {
    use Certainty::{MayBeRunning, NothingHappened};
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    let quota = r#"{"overLimit": {"code": 413, "message": "no gigabytes left"}}"#;
    let bad = r#"{"badRequest": {"code": 400, "message": "no such type"}}"#;
    let forbidden = r#"{"forbidden": {"code": 403, "message": "not allowed"}}"#;
    for (status, text, kind, certainty) in [
        ("413", quota, Kind::Quota, NothingHappened),
        ("400", bad, Kind::Invalid, NothingHappened),
        ("403", forbidden, Kind::Denied, NothingHappened),
        ("400", "{}", Kind::Unreachable, MayBeRunning),
        ("404", "<html>", Kind::Unreachable, MayBeRunning),
        ("413", "<html>", Kind::Unreachable, NothingHappened),
        ("500", "{}", Kind::Unreachable, MayBeRunning),
        ("503", "not JSON", Kind::Unreachable, MayBeRunning),
        ("202", "{\"volume", Kind::Unreachable, MayBeRunning),
    ] {
        twin.state().refusals = vec![("POST /volume/v3/volumes", status, text)];
        let refused = twin.backend.create(order("pvc-2")).await.unwrap_err();
        assert_eq!(
            (refused.kind, refused.certainty),
            (kind, certainty),
            "{refused}"
        );
    }
    let missing = r#"{"itemNotFound": {"code": 404, "message": "Instance not found"}}"#;
    for (status, text, kind) in [
        ("403", forbidden, Kind::Quota),
        ("404", missing, Kind::NotFound),
        ("409", "", Kind::Busy),
        ("400", bad, Kind::Precondition),
        ("403", "", Kind::Unreachable),
        ("404", "", Kind::Unreachable),
    ] {
        twin.state().refusals = vec![("POST /compute", status, text)];
        let refused = twin.backend.attach(to(&id, S1)).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{refused}");
    }
}

#[tokio::test]
async fn a_volume_that_has_failed_has_the_clouds_reason_and_without_room_another_node_may_do() {
    let twin = Twin::start().await;
    let (id, other) = (twin.created("pvc-1").await, twin.created("pvc-2").await);
    for id in [&id, &other] {
        twin.state().volumes.get_mut(id.as_str()).unwrap()["status"] = "error".into();
    }
    let failure = |seen: Volume| match seen.phase {
        Phase::Failed(failure) => failure,
        other => panic!("{other:?}"),
    };
    for (message, kind) in [
        (
            "create volume:Driver failed to create the volume.",
            Kind::System,
        ),
        (
            "schedule allocate volume:Could not find any available weighted backend.",
            Kind::Quota,
        ),
    ] {
        twin.state().message = message;
        let seen = failure(twin.get(&id).await.unwrap().unwrap());
        assert_eq!(seen.kind, kind);
        assert!(seen.message.contains(message), "{seen}");
        let name = Name::new("pvc-1").unwrap();
        let found = twin.backend.find(name, Secrets::default()).await;
        assert_eq!(failure(found.unwrap().remove(0)), seen);
        // Cinder has no message about the second volume.
        let seen = failure(twin.get(&other).await.unwrap().unwrap());
        assert_eq!(seen.kind, Kind::System);
        assert!(!seen.message.contains("the latest"), "{seen}");
    }
    twin.state().refusals = vec![("GET /volume/v3/messages", "403", "{}")];
    let seen = failure(twin.get(&id).await.unwrap().unwrap());
    assert!(!seen.message.contains("the latest"), "{seen}");
}
