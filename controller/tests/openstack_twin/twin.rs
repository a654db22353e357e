//! The twin: the states of Keystone, Cinder and Nova, as observed with the real services. A change
//! takes effect some time after the response. The twin checks each request: a volume or snapshot
//! that a caller has received is not deleted without a request of that caller, and no volume is
//! being attached to two servers.

mod backups;
mod snapshots;

use backups::Backup;
use serde_json::{Value, json};
use snapshots::Snapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The password of the clients.
pub(crate) const PASSWORD: &str = "secret-of-the-twin";
const TOKEN: &str = "gAAAAA-token-of-the-twin";

/// The cloud.
#[derive(Default)]
pub(crate) struct Twin {
    /// The duration of each change.
    delay: Duration,
    /// The URL, without a trailing slash.
    pub(crate) url: String,
    volumes: BTreeMap<String, Volume>,
    snapshots: BTreeMap<String, Snapshot>,
    backups: BTreeMap<String, Backup>,
    made: usize,
    /// A number in the IDs of volumes, which distinguishes clouds.
    pub(crate) number: u16,
    /// The number of requests, by method and kind of path.
    pub(crate) calls: BTreeMap<String, usize>,
    /// The volumes in the order of the attach requests to Nova, by server.
    pub(crate) attached: BTreeMap<String, Vec<String>>,
    /// The volumes and snapshots that callers have received, and whose deletion they have not
    /// requested.
    pub(crate) answered: BTreeSet<String>,
    /// Whether the policy hides backups from the driver's account.
    pub(crate) hides_backups: bool,
    /// The number of further attachments, detachments and expansions that are accepted but not
    /// made.
    pub(crate) drops: usize,
    /// The values in the response to the next creation, at these JSON pointers (RFC 6901).
    pub(crate) altered: Vec<(&'static str, Value)>,
    /// Cinder's messages about all volumes.
    pub(crate) messages: Vec<Value>,
    /// Violations of the rules.
    pub(crate) broken: Vec<String>,
}

struct Volume {
    name: String,
    description: Value,
    gib: u64,
    metadata: BTreeMap<String, String>,
    status: &'static str,
    server: Option<String>,
    /// The source snapshot and the source volume.
    from: (Value, Value),
    /// The change in progress, and the time of its end.
    next: Option<(Instant, Next)>,
}

/// Ends the change of a copy when its time has come; returns whether the copy still exists.
fn settle(next: &mut Option<(Instant, bool)>, status: &mut &'static str, now: Instant) -> bool {
    match next.take_if(|(at, _)| *at <= now) {
        Some((_, true)) => return false,
        Some((_, false)) => *status = "available",
        None => {}
    }
    true
}

enum Next {
    Rest {
        server: Option<String>,
        gib: u64,
    },
    /// A copy of a backup is complete, and has the metadata of the backup's volume.
    Restored(BTreeMap<String, String>),
    Gone,
}

/// A request.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    /// The token in the headers of the request, if there is one.
    pub(crate) token: Option<&'a str>,
    pub(crate) body: Value,
}

/// The status, the value of X-Subject-Token, and the body.
pub(crate) type Answer = (u16, Option<&'static str>, Value);

type Refusal = (u16, &'static str);

fn ok(status: u16, body: Value) -> Answer {
    (status, None, body)
}

impl Twin {
    pub(crate) fn new(delay: Duration, url: String) -> Self {
        Self {
            delay,
            url,
            ..Self::default()
        }
    }

    /// Adds existing volumes, as created by another program.
    pub(crate) fn fill(&mut self, count: usize) {
        for n in 0..count {
            let volume = json!({"name": format!("other-{n}"), "size": 1});
            self.create(&volume, Duration::ZERO);
        }
    }

    /// Returns the IDs of all volumes, with the servers of attached ones.
    pub(crate) fn all(&mut self) -> BTreeMap<String, Option<String>> {
        self.settle();
        let seen = |(id, volume): (&String, &Volume)| (id.clone(), volume.server.clone());
        self.volumes.iter().map(seen).collect()
    }

    /// Deletes the server to which the volume is attached, in Nova.
    pub(crate) fn delete_server(&mut self, id: &str) {
        self.settle();
        let volume = self.volumes.get_mut(id).unwrap();
        (volume.server, volume.status) = (None, "available");
    }

    /// Sets the status of the volume, as an administrator can do.
    pub(crate) fn set_status(&mut self, id: &str, status: &'static str) {
        self.settle();
        self.volumes.get_mut(id).unwrap().status = status;
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> usize {
        self.calls.values().sum()
    }

    fn settle(&mut self) {
        let now = Instant::now();
        self.snapshots.retain(|_, snapshot| snapshot.settle(now));
        self.backups.retain(|_, backup| backup.settle(now));
        self.volumes.retain(|_, volume| {
            match volume.next.take_if(|(at, _)| *at <= now) {
                Some((_, Next::Gone)) => return false,
                Some((_, Next::Rest { server, gib })) => {
                    let is_attached = server.is_some();
                    volume.status = if is_attached { "in-use" } else { "available" };
                    (volume.server, volume.gib) = (server, gib);
                }
                Some((_, Next::Restored(metadata))) => {
                    (volume.status, volume.metadata) = ("available", metadata);
                }
                None => {}
            }
            true
        });
    }

    /// Returns the response to a request.
    pub(crate) fn answer(&mut self, request: &Request<'_>) -> Answer {
        self.settle();
        let path: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let kind = match path[..] {
            ["volume", "v3", "volumes", _, "metadata"] => "metadata",
            ["volume", "v3", "volumes", _, "action"] => "action",
            ["volume", "v3", "volumes", "detail"] if request.query.contains("name=") => "search",
            ["volume", "v3", "volumes", "detail"] => "list",
            [_, _, "os-availability-zone"] => "zones",
            ["volume", "v3", "snapshots" | "backups", ..] => "snapshot",
            ["volume", "v3", "messages"] => "message",
            ["volume", ..] => "volume",
            ["compute", ..] => "attachment",
            _ => "token",
        };
        let kind = format!("{} {kind}", request.method);
        *self.calls.entry(kind).or_default() += 1;
        if request.path == "/identity/v3/auth/tokens" {
            return self.log_in(&request.body);
        }
        if request.token != Some(TOKEN) {
            return ok(401, json!({"error": {"code": 401, "message": "no token"}}));
        }
        let answer = match path[..] {
            ["volume", "v3", "os-availability-zone"] => Ok(zones(&["nova", "az-b"])),
            ["compute", "v2.1", "os-availability-zone"] => Ok(zones(&["edge-1", "nova"])),
            ["volume", "v3", "messages"] => Ok(ok(200, json!({ "messages": self.messages }))),
            ["volume", "v3", "volumes", ref rest @ ..] => self.volume(request, rest),
            ["volume", "v3", "snapshots", ref rest @ ..] => self.snapshot(request, rest),
            ["volume", "v3", "backups", ..] if self.hides_backups => {
                Err((403, "Policy doesn't allow backup:get to be performed."))
            }
            ["volume", "v3", "backups", ref rest @ ..] => self.backup(request, rest),
            [
                "compute",
                "v2.1",
                "servers",
                server,
                "os-volume_attachments",
                ref rest @ ..,
            ] => self.attachment(request, server, rest),
            _ => Err((404, "no such service")),
        };
        let refused = |(code, message): Refusal| {
            // Like the real services, the message names the missing object.
            let (name, message) = match code {
                404 => ("itemNotFound", format!("{message}: {}", request.path)),
                403 => ("forbidden", message.to_owned()),
                _ => ("badRequest", message.to_owned()),
            };
            ok(code, json!({ name: {"code": code, "message": message} }))
        };
        let (status, token, mut body) = answer.unwrap_or_else(refused);
        if request.method == "POST" && status == 202 {
            for (place, value) in std::mem::take(&mut self.altered) {
                *body.pointer_mut(place).unwrap() = value;
            }
        }
        (status, token, body)
    }

    fn log_in(&self, body: &Value) -> Answer {
        if body["auth"]["identity"]["password"]["user"]["password"] != PASSWORD {
            let error = json!({"code": 401, "message": "wrong password"});
            return ok(401, json!({ "error": error }));
        }
        let service = |kind: &str, path: &str| {
            let url = format!("{}/{path}", self.url);
            let endpoint = json!({"interface": "public", "region": "one", "url": url});
            json!({"type": kind, "endpoints": [endpoint]})
        };
        let token = json!({
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": "2026-01-01T01:00:00.000000Z",
            "catalog": [service("block-storage", "volume/v3"), service("compute", "compute/v2.1")],
        });
        (201, Some(TOKEN), json!({ "token": token }))
    }

    fn volume(&mut self, request: &Request<'_>, path: &[&str]) -> Result<Answer, Refusal> {
        let body = &request.body;
        match (request.method, path) {
            ("GET", ["detail"]) => {
                let seen = |(id, volume): (&String, &Volume)| {
                    (id.clone(), (volume.name.clone(), volume.described(id)))
                };
                let all = self.volumes.iter().map(seen).collect();
                Ok(list("volumes", &all, request.query))
            }
            ("GET", [id]) => {
                let volume = self.volumes.get(*id).ok_or((404, "not found"))?;
                Ok(ok(200, json!({ "volume": volume.described(id) })))
            }
            ("POST", []) => {
                let id = match body["volume"]["backup_id"].as_str() {
                    Some(backup) => self.restore(&body["volume"], backup)?,
                    None => self.copy(&body["volume"])?,
                };
                let described = self.volumes[&id].described(&id);
                Ok(ok(202, json!({ "volume": described })))
            }
            ("POST", [id, "metadata"]) => {
                let volume = self.volumes.get_mut(*id).ok_or((404, "not found"))?;
                volume.metadata.extend(texts(&body["metadata"]));
                Ok(ok(200, json!({ "metadata": volume.metadata })))
            }
            ("POST", [id, "action"]) => {
                let gib = body["os-extend"]["new_size"].as_u64().unwrap();
                let (at, drops) = (Instant::now() + self.delay, self.drops > 0);
                let volume = self.at_rest(id)?;
                let server = volume.server.clone();
                let gib = if drops { volume.gib } else { gib };
                volume.begin("extending", at, Next::Rest { server, gib });
                self.drops = self.drops.saturating_sub(1);
                Ok(ok(202, Value::Null))
            }
            ("DELETE", [id]) => self.delete(id),
            _ => Err((404, "no such resource")),
        }
    }

    /// Returns an ID that does not follow the order of creation, like random IDs.
    fn new_id(&mut self) -> String {
        self.made += 1;
        let first = self.made.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
        format!(
            "{first:08x}-{:04x}-4000-8000-{:012}",
            self.number, self.made
        )
    }

    fn create(&mut self, order: &Value, delay: Duration) -> String {
        let (id, server) = (self.new_id(), None);
        let gib = order["size"].as_u64().unwrap();
        let mut volume = Volume {
            name: order["name"].as_str().unwrap().to_owned(),
            description: order["description"].clone(),
            gib,
            metadata: texts(&order["metadata"]),
            status: "available",
            server: None,
            from: (order["snapshot_id"].clone(), order["source_volid"].clone()),
            next: None,
        };
        let at = Instant::now() + delay;
        volume.begin("creating", at, Next::Rest { server, gib });
        self.volumes.insert(id.clone(), volume);
        id
    }

    /// Returns the volume, if it is not being changed.
    fn at_rest(&mut self, id: &str) -> Result<&mut Volume, Refusal> {
        let volume = self.volumes.get_mut(id).ok_or((404, "not found"))?;
        match volume.next {
            None => Ok(volume),
            Some(_) => Err((400, "Invalid volume: it is being changed")),
        }
    }

    fn delete(&mut self, id: &str) -> Result<Answer, Refusal> {
        let (at, is_wanted) = (Instant::now() + self.delay, self.answered.contains(id));
        let volume = self.at_rest(id)?;
        if volume.server.is_some() {
            return Err((400, "Invalid volume: it is attached"));
        }
        volume.begin("deleting", at, Next::Gone);
        if is_wanted {
            self.broken
                .push(format!("{id} is deleted, and a caller has it"));
        }
        Ok(ok(202, Value::Null))
    }

    fn attachment(
        &mut self,
        request: &Request<'_>,
        server: &str,
        path: &[&str],
    ) -> Result<Answer, Refusal> {
        let (at, drops) = (Instant::now() + self.delay, self.drops > 0);
        match (request.method, path) {
            ("POST", []) => {
                let id = request.body["volumeAttachment"]["volumeId"]
                    .as_str()
                    .unwrap();
                let volume = self.at_rest(id)?;
                if volume.server.is_some() {
                    return Err((400, "volume is already attached to instances"));
                }
                let (gib, to) = (volume.gib, (!drops).then(|| server.to_owned()));
                volume.begin("attaching", at, Next::Rest { server: to, gib });
                self.drops = self.drops.saturating_sub(1);
                let order = self.attached.entry(server.to_owned()).or_default();
                order.push(id.to_owned());
                Ok(ok(200, json!({"volumeAttachment": {"device": "/dev/sdz"}})))
            }
            ("DELETE", [id]) => {
                let volume = self.at_rest(id)?;
                if volume.server.as_deref() != Some(server) {
                    return Err((404, "no such attachment"));
                }
                let (server, gib) = (volume.server.clone().filter(|_| drops), volume.gib);
                volume.begin("detaching", at, Next::Rest { server, gib });
                self.drops = self.drops.saturating_sub(1);
                Ok(ok(202, Value::Null))
            }
            _ => Err((404, "no such resource")),
        }
    }
}

/// Returns a page of objects, given by ID with name and description, which Cinder calls `kind`.
fn list(kind: &str, all: &BTreeMap<String, (String, Value)>, query: &str) -> Answer {
    let asked = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let limit = asked("limit").map_or(1000, |limit| limit.parse().unwrap());
    let (marker, name) = (asked("marker"), asked("name"));
    if marker.is_some_and(|marker| !all.contains_key(marker)) {
        let fault = json!({"code": 404, "message": "no such marker"});
        return ok(404, json!({ "itemNotFound": fault }));
    }
    let mut found: Vec<_> = all.iter().collect();
    found.retain(|(id, (named, _))| {
        marker.is_none_or(|marker| id.as_str() > marker) && name.is_none_or(|name| named == name)
    });
    let has_more = found.len() > limit;
    let page = found.into_iter().take(limit);
    let page: Vec<_> = page.map(|(_, (_, described))| described).collect();
    let mut body = json!({ kind: page });
    if has_more {
        body[format!("{kind}_links")] = json!([{"rel": "next"}]);
    }
    ok(200, body)
}

fn zones(names: &[&str]) -> Answer {
    let zone = |name: &&str| json!({"zoneName": name, "zoneState": {"available": true}});
    let zones: Vec<_> = names.iter().map(zone).collect();
    ok(200, json!({ "availabilityZoneInfo": zones }))
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

impl Volume {
    fn begin(&mut self, status: &'static str, at: Instant, next: Next) {
        self.status = status;
        self.next = Some((at, next));
    }

    /// Returns a volume with the fields of Cinder 29 that a member of the project sees, so that it
    /// has the same length.
    fn described(&self, id: &str) -> Value {
        let attachments = self.server.iter().map(|server| {
            json!({"id": id, "attachment_id": id, "volume_id": id, "server_id": server,
                   "host_name": "compute-1", "device": "/dev/sdz",
                   "attached_at": "2026-01-01T00:00:00.000000"})
        });
        let link = "http://10.0.0.1:8776/v3/0123456789abcdef0123456789abcdef/volumes";
        json!({
            "id": id, "name": self.name, "size": self.gib, "status": self.status,
            "metadata": self.metadata, "attachments": attachments.collect::<Vec<_>>(),
            "availability_zone": "nova", "snapshot_id": self.from.0, "source_volid": self.from.1,
            "multiattach": false, "bootable": "false", "encrypted": false,
            "description": self.description, "volume_type": "__DEFAULT__",
            "created_at": "2026-01-01T00:00:00.000000", "updated_at": "2026-01-01T00:00:00.000000",
            "consistencygroup_id": null, "group_id": null, "replication_status": null,
            "user_id": "0123456789abcdef0123456789abcdef", "shared_targets": null,
            "os-vol-tenant-attr:tenant_id": "0123456789abcdef0123456789abcdef",
            "service_uuid": null, "cluster_name": null, "provider_id": null,
            "links": [{"rel": "self", "href": format!("{link}/{id}")},
                      {"rel": "bookmark", "href": format!("{link}/{id}")}],
        })
    }
}
