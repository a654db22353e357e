//! The requests that OpenStack clients send for volumes: Keystone v3, Cinder v3, Nova v2.1 and the
//! metadata service (docs.openstack.org/api-ref). Other requests are not supported.

use std::collections::BTreeMap;
use std::net::IpAddr;

use belay_twins::http::{Request, Response};
use belay_twins::time::utc;
use serde_json::{Value, json};

use crate::server::Host;
use crate::volumes::{Refusal, Volume, Volumes, Work};

const TOKEN: &str = "token-of-the-bed";
/// The secret with which each client of the cloud logs in.
pub(crate) const SECRET: &str = "secret-of-the-bed";
const ZONE: &str = "nova";

/// A response, and the remaining work of the requested change, if any.
type Answer = Result<(Response, Option<Work>), Refusal>;

/// The cloud's API services. `url` is the common URL of the services, without a slash at the end.
pub(crate) struct Api<S> {
    pub(crate) volumes: Volumes<S>,
    pub(crate) url: String,
}

fn answer(status: u16, body: &Value) -> Answer {
    Ok((Response::json(status, body), None))
}

fn refusal(refused: &Refusal) -> Response {
    let (status, key, message) = match refused {
        Refusal::NotFound(why) => (404, "itemNotFound", why),
        Refusal::Invalid(why) => (400, "badRequest", why),
        Refusal::Forbidden(why) => (403, "forbidden", why),
    };
    let body = json!({ key: { "code": status, "message": message } });
    Response::json(status, &body)
}

fn json_of(request: &Request) -> Result<Value, Refusal> {
    serde_json::from_slice(&request.body).map_err(|error| Refusal::Invalid(error.to_string()))
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    pairs.filter_map(text).collect()
}

fn described(id: &str, volume: &Volume) -> Value {
    let attachments = volume.attachment.iter().map(|attachment| {
        json!({
            "server_id": attachment.server, "volume_id": id, "device": "/dev/vdb",
            "attached_at": utc(attachment.at),
        })
    });
    json!({
        "id": id, "name": volume.name, "size": volume.gib, "status": volume.status,
        "metadata": volume.metadata, "attachments": attachments.collect::<Vec<_>>(),
        "availability_zone": ZONE, "snapshot_id": null, "source_volid": null,
        "multiattach": false,
    })
}

impl<S: Host> Api<S> {
    /// Returns the response to a request from this address, and the remaining work of the change,
    /// if any.
    pub(crate) fn handle(&self, request: &Request, from: IpAddr) -> (Response, Option<Work>) {
        let answer = self.answer(request, from);
        answer.unwrap_or_else(|refused| (refusal(&refused), None))
    }

    fn answer(&self, request: &Request, from: IpAddr) -> Answer {
        let path: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        match (request.method.as_str(), &path[..]) {
            ("POST", ["identity", "v3", "auth", "tokens"]) => return self.log_in(request),
            ("GET", ["openstack", "latest", "meta_data.json"]) => return self.metadata(from),
            _ => {}
        }
        if request.header("x-auth-token") != Some(TOKEN) {
            return answer(
                401,
                &json!({ "error": { "code": 401, "message": "no token" } }),
            );
        }
        match path[..] {
            ["volume", "v3", "volumes", ref rest @ ..] => self.volume(request, rest),
            [
                "compute",
                "v2.1",
                "servers",
                id,
                "os-volume_attachments",
                ref rest @ ..,
            ] => self.attachment(request, id, rest),
            _ => Err(Refusal::NotFound("no such service".to_owned())),
        }
    }

    fn log_in(&self, request: &Request) -> Answer {
        let asked = json_of(request)?;
        let given = &asked["auth"]["identity"]["application_credential"]["secret"];
        if given != SECRET {
            let body = json!({ "error": { "code": 401, "message": "wrong secret" } });
            return answer(401, &body);
        }
        let service = |kind: &str, path: &str| {
            let url = format!("{}/{path}", self.url);
            let endpoint = json!({ "interface": "public", "region": "bed", "url": url });
            json!({ "type": kind, "endpoints": [endpoint] })
        };
        let hour = ["2026-01-01T00:00:00.000000Z", "2026-01-01T01:00:00.000000Z"];
        let token = json!({
            "issued_at": hour[0], "expires_at": hour[1],
            "catalog": [
                service("block-storage", "volume/v3"), service("compute", "compute/v2.1"),
                // The service catalog of most clouds still contains this older service type, too.
                service("volumev3", "volume/v3"),
            ],
        });
        let mut created = Response::json(201, &json!({ "token": token }));
        created.headers.push(("x-subject-token", TOKEN.to_owned()));
        Ok((created, None))
    }

    /// Returns the metadata of the server with this address, in the format of the real metadata
    /// service.
    fn metadata(&self, from: IpAddr) -> Answer {
        let mut servers = self.volumes.servers.iter();
        let server = servers.find(|server| server.address() == from);
        let server = server.ok_or_else(|| Refusal::NotFound(format!("{from}: no server")))?;
        answer(
            200,
            &json!({ "uuid": server.id(), "availability_zone": ZONE }),
        )
    }

    fn volume(&self, request: &Request, path: &[&str]) -> Answer {
        let volumes = &self.volumes;
        let one = |id: &str| -> Result<Value, Refusal> {
            Ok(json!({ "volume": described(id, &volumes.get(id)?) }))
        };
        match (request.method.as_str(), path) {
            ("GET", ["detail"]) => self.list(request),
            ("GET", [id]) => answer(200, &one(id)?),
            ("POST", []) => {
                let volume = &json_of(request)?["volume"];
                let (name, gib) = (volume["name"].as_str(), volume["size"].as_u64());
                let metadata = texts(&volume["metadata"]);
                let id = volumes.create(name.unwrap_or(""), gib.unwrap_or(0), metadata)?;
                answer(202, &one(&id)?)
            }
            ("POST", [id, "metadata"]) => {
                let metadata = volumes.mark(id, texts(&json_of(request)?["metadata"]))?;
                answer(200, &json!({ "metadata": metadata }))
            }
            ("POST", [id, "action"]) => {
                let size = json_of(request)?["os-extend"]["new_size"].as_u64();
                volumes.extend(id, size.unwrap_or(0))?;
                answer(202, &Value::Null)
            }
            ("DELETE", [id]) => {
                volumes.delete(id)?;
                answer(202, &Value::Null)
            }
            _ => Err(Refusal::NotFound(request.path.clone())),
        }
    }

    fn list(&self, request: &Request) -> Answer {
        let limit = request.asked("limit").and_then(|limit| limit.parse().ok());
        let limit = limit.unwrap_or(1000);
        let mut found = self.volumes.list();
        if let Some(name) = request.asked("name") {
            found.retain(|(_, volume)| volume.name == name);
        }
        if let Some(marker) = request.asked("marker") {
            let _exists = self.volumes.get(marker)?;
            found.retain(|(id, _)| id.as_str() > marker);
        }
        let has_more = found.len() > limit;
        let page = found.iter().take(limit);
        let page: Vec<_> = page.map(|(id, volume)| described(id, volume)).collect();
        let mut body = json!({ "volumes": page });
        if has_more {
            body["volumes_links"] = json!([{ "rel": "next" }]);
        }
        answer(200, &body)
    }

    fn attachment(&self, request: &Request, server: &str, path: &[&str]) -> Answer {
        match (request.method.as_str(), path) {
            ("POST", []) => {
                let asked = json_of(request)?;
                let id = asked["volumeAttachment"]["volumeId"].as_str().unwrap_or("");
                let work = self.volumes.attach(id, server)?;
                let attachment = json!({ "volumeId": id, "serverId": server, "device": null });
                let body = json!({ "volumeAttachment": attachment });
                Ok((Response::json(200, &body), Some(work)))
            }
            ("DELETE", [id]) => {
                let work = self.volumes.detach(id, server)?;
                Ok((Response::json(202, &Value::Null), Some(work)))
            }
            _ => Err(Refusal::NotFound(request.path.clone())),
        }
    }
}
