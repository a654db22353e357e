//! Calls to Cinder and Nova, and the interpretation of their refusals.

mod backups;
mod project;
mod snapshots;

use super::id::{path, path_of};
use super::session::{Account, Session};
use super::wire::{self, CinderVolume, Message, Messages, OneVolume, Restored, TYPE, Volumes};
use crate::backend::Order;
use crate::backend::cloud::ids::same;
use crate::http::{Answer, Call, encoded};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Name, NodeId, VolumeId};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode, Uri};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// Cinder 3.42 can extend volumes in use (release Ocata).
const VOLUME_VERSION: &str = "volume 3.42";
/// Cinder 3.47 can create volumes from backups (release Pike).
const RESTORE_VERSION: &str = "volume 3.47";
/// Nova 2.60 can attach volumes to several servers (release Queens).
const COMPUTE_VERSION: &str = "compute 2.60";

/// The deadline of a call. An attachment waits for the compute node, by default up to 60 s
/// (`rpc_response_timeout` of Nova); other calls wait for a database.
const DEADLINE: Duration = Duration::from_secs(30);
const ATTACH_DEADLINE: Duration = Duration::from_secs(75);
/// The deadline of a claim, including logins before or during it. The engine's `CLAIMS_SETTLE`
/// relies on it.
const CLAIM_DEADLINE: Duration = Duration::from_secs(10);

/// The client for an account.
pub(super) struct Client(Account);

/// A service of the cloud.
#[derive(Clone, Copy)]
pub(super) enum Service {
    Volumes,
    Compute,
}

/// A call that is not yet bound to a session.
struct Request {
    verb: &'static str,
    service: Service,
    method: Method,
    path: String,
    /// The API version, if it differs from the service's default.
    version: Option<&'static str>,
    body: Option<Value>,
    deadline: Duration,
}

impl Request {
    fn new(verb: &'static str, service: Service, method: Method, path: String) -> Self {
        Self {
            verb,
            service,
            method,
            path,
            version: None,
            body: None,
            deadline: DEADLINE,
        }
    }

    fn call<'a>(&self, session: &Session, secrets: &'a [&'a str]) -> Result<Call<'a>, Failure> {
        let (base, key, version) = match self.service {
            Service::Volumes => (&session.volumes, "openstack-api-version", VOLUME_VERSION),
            Service::Compute => (&session.compute, "openstack-api-version", COMPUTE_VERSION),
        };
        let url = format!("{base}{}", self.path);
        let uri: Uri = url.parse().map_err(|error| {
            Failure::precondition(format!("{base}: an endpoint that is no URL: {error}"))
        })?;
        let mut headers = HeaderMap::new();
        headers.insert("x-auth-token", session.token.clone());
        let version = self.version.unwrap_or(version);
        headers.insert(key, HeaderValue::from_static(version));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = self
            .body
            .as_ref()
            .map_or_else(Bytes::new, |body| body.to_string().into());
        Ok(Call {
            verb: self.verb,
            method: self.method.clone(),
            uri,
            headers,
            body,
            secrets,
            repeats: false,
            deadline: self.deadline,
        })
    }
}

impl Client {
    pub(super) fn new(account: Account) -> Self {
        Self(account)
    }

    /// Returns the [`Account::label`] for log lines.
    pub(super) fn label(&self) -> Option<&str> {
        self.0.label()
    }

    /// Makes sure that there is a session.
    ///
    /// # Errors
    /// Returns the errors of `cloud.conf` and of the login.
    pub(super) async fn log_in(&self) -> Result<(), Failure> {
        self.0.session(None).await.map(drop)
    }

    /// Makes a call, and repeats it with a new session if the service refuses the token.
    async fn answer(&self, request: Request) -> Result<Answer, Failure> {
        let session = self.0.session(None).await?;
        let answer = self.answer_in(&session, &request).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let session = self.0.session(Some(&session)).await?;
        self.answer_in(&session, &request).await
    }

    /// Makes a call that takes effect within [`CLAIM_DEADLINE`] after its start, plus the time that
    /// the service needs.
    async fn answer_soon(&self, request: Request) -> Result<Answer, Failure> {
        let what = format!("{} {}", request.method, request.path);
        let answer = timeout(CLAIM_DEADLINE, self.answer(request)).await;
        answer.unwrap_or_else(|_| {
            let seconds = CLAIM_DEADLINE.as_secs();
            let message = format!("{what}: no answer within {seconds} s, with the login");
            Err(Failure::timeout(message).may_be_running())
        })
    }

    async fn answer_in(&self, session: &Session, request: &Request) -> Result<Answer, Failure> {
        let secrets = [session.secret()];
        let call = request.call(session, &secrets)?;
        self.0.http().call(&call).await
    }

    pub(super) async fn volume(&self, id: &VolumeId) -> Result<Option<CinderVolume>, Failure> {
        let Some(path) = path("volume", id.as_str())? else {
            return Ok(None);
        };
        let request = Request::new("get_volume", Service::Volumes, Method::GET, path);
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::OK => {
                let volume = answer.json::<OneVolume>()?.volume;
                same("volume", id.as_str(), &volume.id)?;
                Ok(Some(volume))
            }
            _ if wire::is_missing(&answer, id.as_str()) => Ok(None),
            _ => Err(wire::refused_for(&answer)),
        }
    }

    /// Returns the volumes with this name.
    pub(super) async fn named(&self, name: &Name) -> Result<Vec<CinderVolume>, Failure> {
        let path = format!("/volumes/detail?name={}", encoded(name.as_str()));
        let mut found = self.page::<Volumes>("find_volume", path).await?.volumes;
        // A cloud may also return volumes with similar names.
        found.retain(|volume| volume.is_named(name));
        Ok(found)
    }

    /// Returns a page of volumes, and the marker of the next page.
    pub(super) async fn volumes(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<CinderVolume>, Option<String>), Failure> {
        let marker = after.map(|after| format!("&marker={}", encoded(after)));
        let path = format!(
            "/volumes/detail?limit={limit}{}",
            marker.unwrap_or_default()
        );
        let page: Volumes = self.page("list_volumes", path).await?;
        let last = page.volumes.last().map(|volume| volume.id.clone());
        let next = last.filter(|_| !page.volumes_links.is_empty());
        Ok((page.volumes, next))
    }

    /// Returns a page of volumes or snapshots.
    async fn page<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        path: String,
    ) -> Result<T, Failure> {
        let has_marker = path.contains("&marker=");
        let answer = self
            .answer(Request::new(verb, Service::Volumes, Method::GET, path))
            .await?;
        match answer.status {
            StatusCode::OK => answer.json(),
            // The last object of the previous page was deleted.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST
                if has_marker && wire::is_own(&answer) =>
            {
                let message = format!("{}; begin again at the first page", answer.refusal());
                Err(Failure::new(Kind::BadToken, message))
            }
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Returns the latest messages of Cinder about a volume or snapshot; `None` if they cannot be
    /// read, since they only serve as explanations.
    pub(super) async fn messages(&self, id: &str) -> Option<Vec<Message>> {
        let path = format!("/messages?resource_uuid={}&limit=10", encoded(id));
        let request = Request::new("get_message", Service::Volumes, Method::GET, path);
        let answer = self.answer(request).await.ok()?;
        if answer.status != StatusCode::OK {
            return None;
        }
        Some(answer.json::<Messages>().ok()?.messages)
    }

    /// Creates an empty volume, or one from a source, which may be a backup. Without `zone`, Cinder
    /// selects the zone; `hints` influence its choice.
    pub(super) async fn create(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
        restored: Option<&Restored>,
        zone: Option<&str>,
        metadata: Value,
        hints: Option<Value>,
    ) -> Result<CinderVolume, Failure> {
        let mut volume = json!({
            "name": order.name.as_str(),
            "size": order.bytes.div_ceil(wire::GIB),
            "description": restored.map_or("Created by Belay".to_owned(), Restored::description),
            "metadata": metadata,
        });
        let backup = restored.map(|restored| restored.backup.as_str());
        let (snapshot, volume_id) = match source {
            _ if backup.is_some() => (None, None),
            Some(ContentSource::Snapshot(id)) => (Some(id.as_str()), None),
            Some(ContentSource::Volume(id)) => (None, Some(id.as_str())),
            None => (None, None),
        };
        for (key, value) in [
            ("volume_type", order.parameters.get(TYPE)),
            ("availability_zone", zone),
            ("snapshot_id", snapshot),
            ("source_volid", volume_id),
            ("backup_id", backup),
        ] {
            if let Some(value) = value {
                volume[key] = value.into();
            }
        }
        let mut body = json!({ "volume": volume });
        if let Some(hints) = hints {
            body["OS-SCH-HNT:scheduler_hints"] = hints;
        }
        let request = Request {
            version: backup.map(|_| RESTORE_VERSION),
            body: Some(body),
            ..Request::new(
                "create_volume",
                Service::Volumes,
                Method::POST,
                "/volumes".to_owned(),
            )
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::OK => Ok(answer.json::<OneVolume>()?.volume),
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND if wire::is_own(&answer) => {
                Err(Failure::new(Kind::Invalid, answer.refusal()))
            }
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Sets a key in a volume's metadata to the volume's ID.
    pub(super) async fn mark(&self, id: &VolumeId, key: &str) -> Result<(), Failure> {
        self.note(id, key, id.as_str()).await
    }

    /// Sets a key in the metadata of a volume.
    pub(super) async fn note(&self, id: &VolumeId, key: &str, is: &str) -> Result<(), Failure> {
        let path = format!("{}/metadata", path_of("volume", id.as_str())?);
        let request = Request {
            body: Some(json!({ "metadata": { key: is } })),
            deadline: CLAIM_DEADLINE,
            ..Request::new("mark_volume", Service::Volumes, Method::POST, path)
        };
        let answer = self.answer_soon(request).await?;
        match answer.status {
            StatusCode::OK => Ok(()),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Deletes a volume; returns whether it existed.
    pub(super) async fn delete(&self, id: &VolumeId) -> Result<bool, Failure> {
        self.deleted("delete_volume", "volume", id.as_str()).await
    }

    /// Deletes an object; returns whether it existed.
    async fn deleted(&self, verb: &'static str, what: &str, id: &str) -> Result<bool, Failure> {
        let Some(path) = path(what, id)? else {
            return Ok(false);
        };
        let request = Request::new(verb, Service::Volumes, Method::DELETE, path);
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(true),
            _ if wire::is_missing(&answer, id) => Ok(false),
            _ => Err(wire::refused_for(&answer)),
        }
    }

    pub(super) async fn extend(&self, id: &VolumeId, bytes: u64) -> Result<(), Failure> {
        let path = format!("{}/action", path_of("volume", id.as_str())?);
        let size = bytes.div_ceil(wire::GIB);
        let request = Request {
            body: Some(json!({ "os-extend": { "new_size": size } })),
            ..Request::new("extend_volume", Service::Volumes, Method::POST, path)
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED => Ok(()),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Attaches a volume. Ignores `device` in the response, which is only Nova's guess.
    pub(super) async fn attach(&self, id: &VolumeId, node: &NodeId) -> Result<(), Failure> {
        let request = Request {
            body: Some(json!({ "volumeAttachment": { "volumeId": id.as_str() } })),
            deadline: ATTACH_DEADLINE,
            ..Request::new(
                "attach_volume",
                Service::Compute,
                Method::POST,
                plugs(node)?,
            )
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::OK | StatusCode::ACCEPTED => Ok(()),
            // There are too many volumes for the quota or for the guest.
            _ if wire::is_forbidden(&answer) => Err(Failure::quota(answer.refusal())),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Detaches a volume; returns whether it was attached.
    pub(super) async fn detach(&self, id: &VolumeId, node: &NodeId) -> Result<bool, Failure> {
        // Do not send an ID that is not a UUID.
        if path("volume", id.as_str())?.is_none() {
            return Ok(false);
        }
        let path = format!("{}/{id}", plugs(node)?);
        let request = Request::new("detach_volume", Service::Compute, Method::DELETE, path);
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(true),
            // The server is missing, or the volume is not attached to it.
            _ if wire::is_missing(&answer, node.as_str()) => Ok(false),
            _ if wire::is_missing(&answer, id.as_str()) => Ok(false),
            _ => Err(wire::refused_for(&answer)),
        }
    }
}

/// Returns the path of a server's attachments.
///
/// # Errors
/// Returns the errors of [`path_of`].
fn plugs(node: &NodeId) -> Result<String, Failure> {
    let server = path_of("server", node.as_str())?;
    Ok(format!("{server}/os-volume_attachments"))
}
