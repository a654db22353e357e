//! The requests that clients of OpenStack send for volumes: of Keystone v3, Cinder v3, Nova v2.1
//! and the metadata service (docs.openstack.org/api-ref). What no client asks for is missing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::http::{Request, Response};
use crate::server::Host;
use crate::volumes::{Refusal, Volume, Volumes, Work};

const TOKEN: &str = "token-of-the-bed";
/// What each client logs in with.
pub(crate) const SECRET: &str = "secret-of-the-bed";
const ZONE: &str = "nova";

/// A response, and the rest of the change that was requested.
type Answer = Result<(Response, Option<Work>), Refusal>;

/// The services; `url` is theirs, without a slash at the end.
pub(crate) struct Api<S> {
    pub(crate) volumes: Volumes<S>,
    pub(crate) url: String,
}

fn answer(status: u16, body: &Value) -> Answer {
    Ok((response(status, body), None))
}

fn response(status: u16, body: &Value) -> Response {
    let text = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    Response {
        status,
        headers: Vec::new(),
        body: text,
    }
}

fn refusal(refused: &Refusal) -> Response {
    let (status, key, message) = match refused {
        Refusal::NotFound(why) => (404, "itemNotFound", why),
        Refusal::Invalid(why) => (400, "badRequest", why),
        Refusal::Forbidden(why) => (403, "forbidden", why),
    };
    let body = json!({ key: { "code": status, "message": message } });
    response(status, &body)
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

/// As Cinder writes times. The date is by Howard Hinnant's `civil_from_days`.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day = day_of_era - (365 * year + year / 4 - year / 100);
    // Counted from March.
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = year + era * 400 + u64::from(month <= 2);
    let [hour, minute, second] = [rest / 3600, rest / 60 % 60, rest % 60];
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}")
}

impl<S: Host> Api<S> {
    /// The response to a request from that address, and the rest of the change, if any.
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
        if request.token.as_deref() != Some(TOKEN) {
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
                // As most clouds still name it, too.
                service("volumev3", "volume/v3"),
            ],
        });
        let mut created = response(201, &json!({ "token": token }));
        created.headers.push(("x-subject-token", TOKEN.to_owned()));
        Ok((created, None))
    }

    /// A server is known by its address, as in the real service.
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
                Ok((response(200, &body), Some(work)))
            }
            ("DELETE", [id]) => {
                let work = self.volumes.detach(id, server)?;
                Ok((response(202, &Value::Null), Some(work)))
            }
            _ => Err(Refusal::NotFound(request.path.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000"),
            (951_782_399, "2000-02-28T23:59:59.000000"),
            (951_782_400, "2000-02-29T00:00:00.000000"),
            (1_798_761_599, "2026-12-31T23:59:59.000000"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(time), text);
        }
    }
}
