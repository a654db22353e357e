//! Calls to Cinder and Nova, and the interpretation of their error responses.

mod backups;
mod lists;
mod project;
mod snapshots;

use super::id::{path, path_of};
use super::session::{Account, Session};
use super::wire::{self, CinderVolume, Restored, TYPE};
use crate::backend::Order;
use crate::backend::cloud::ids;
use crate::http::{Answer, Call, Repeat};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, NodeId, VolumeId};
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

/// The deadline of a call. To attach a volume, Nova waits until the compute node responds, by
/// default up to 60 s (`rpc_response_timeout`). Other calls need only a database.
const DEADLINE: Duration = Duration::from_secs(30);
const ATTACH_DEADLINE: Duration = Duration::from_secs(75);
/// The deadline of a call that claims a volume or a snapshot, including logins before or during the
/// call. The constant `CLAIMS_SETTLE` in `operation::engine` relies on this deadline.
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
    /// Creates a call to Cinder.
    fn new(verb: &'static str, method: Method, path: impl Into<String>) -> Self {
        Self {
            verb,
            service: Service::Volumes,
            method,
            path: path.into(),
            version: None,
            body: None,
            deadline: DEADLINE,
        }
    }

    fn get(verb: &'static str, path: impl Into<String>) -> Self {
        Self::new(verb, Method::GET, path)
    }

    fn post(verb: &'static str, path: impl Into<String>, body: Value) -> Self {
        Self {
            body: Some(body),
            ..Self::new(verb, Method::POST, path)
        }
    }

    fn call<'a>(&self, session: &Session, secrets: &'a [&'a str]) -> Result<Call<'a>, Failure> {
        let (base, version) = match self.service {
            Service::Volumes => (&session.volumes, VOLUME_VERSION),
            Service::Compute => (&session.compute, COMPUTE_VERSION),
        };
        let url = format!("{base}{}", self.path);
        let uri: Uri = url.parse().map_err(|error| {
            Failure::precondition(format!("{base}: an endpoint that is no URL: {error}"))
        })?;
        let mut headers = HeaderMap::new();
        headers.insert("x-auth-token", session.token.clone());
        let version = self.version.unwrap_or(version);
        let version = HeaderValue::from_static(version);
        headers.insert("openstack-api-version", version);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = self.body.as_ref();
        Ok(Call {
            verb: self.verb,
            method: self.method.clone(),
            uri,
            headers,
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
            secrets,
            repeats: Repeat::Idempotent,
            deadline: self.deadline,
        })
    }
}

impl Client {
    pub(super) fn new(account: Account) -> Self {
        Self(account)
    }

    /// Returns [`Account::label`], the name of the cloud in log lines.
    pub(super) fn label(&self) -> Option<&str> {
        self.0.label()
    }

    /// Logs in, unless there is already a session.
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

    /// Makes a call that takes effect at most [`CLAIM_DEADLINE`] after its start, plus the time
    /// that the service itself needs.
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

    /// Makes a call. Returns an error if the status of the response is not one of `statuses`.
    async fn accepted(&self, request: Request, statuses: &[StatusCode]) -> Result<Answer, Failure> {
        self.answer(request)
            .await?
            .with_status(statuses, wire::refused)
    }

    /// Requests an object of a kind, such as `volume`, by its ID. Returns `None` if the service
    /// does not have the object.
    async fn find<T: DeserializeOwned>(
        &self,
        what: &str,
        id: &str,
        request: impl FnOnce(String) -> Request,
    ) -> Result<Option<T>, Failure> {
        let Some(path) = path(what, id)? else {
            return Ok(None);
        };
        let answer = self.answer(request(path)).await?;
        match answer.status {
            StatusCode::OK => ids::object(&answer, what, id).map(Some),
            _ if wire::is_missing(&answer, id) => Ok(None),
            _ => Err(wire::refused_for(&answer)),
        }
    }

    pub(super) async fn volume(&self, id: &VolumeId) -> Result<Option<CinderVolume>, Failure> {
        let request = |path| Request::get("get_volume", path);
        self.find("volume", id.as_str(), request).await
    }

    /// Creates an empty volume, or a volume from a source, which may be a backup. If `zone` is
    /// `None`, Cinder selects the zone. The `hints` influence where Cinder places the volume.
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
            ..Request::post("create_volume", "/volumes", body)
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::OK => answer.member("/volume"),
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
        self.annotate("mark_volume", path, key, is).await
    }

    /// Sets a key in the metadata of an object.
    async fn annotate(
        &self,
        verb: &'static str,
        path: String,
        key: &str,
        is: &str,
    ) -> Result<(), Failure> {
        let request = Request {
            deadline: CLAIM_DEADLINE,
            ..Request::post(verb, path, json!({ "metadata": { key: is } }))
        };
        let answer = self.answer_soon(request).await?;
        answer
            .with_status(&[StatusCode::OK], wire::refused)
            .map(drop)
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
        let answer = self.answer(Request::new(verb, Method::DELETE, path));
        let answer = answer.await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(true),
            _ if wire::is_missing(&answer, id) => Ok(false),
            _ => Err(wire::refused_for(&answer)),
        }
    }

    pub(super) async fn extend(&self, id: &VolumeId, bytes: u64) -> Result<(), Failure> {
        let size = bytes.div_ceil(wire::GIB);
        let body = json!({ "os-extend": { "new_size": size } });
        self.act("extend_volume", id, body).await
    }

    /// Requests an action on a volume, which Cinder carries out after its response.
    async fn act(&self, verb: &'static str, id: &VolumeId, body: Value) -> Result<(), Failure> {
        let path = format!("{}/action", path_of("volume", id.as_str())?);
        let request = Request::post(verb, path, body);
        let begun = self.accepted(request, &[StatusCode::ACCEPTED]).await;
        begun.map(drop)
    }

    /// Attaches a volume. The member `device` of the response is ignored, since it is only Nova's
    /// guess.
    pub(super) async fn attach(&self, id: &VolumeId, node: &NodeId) -> Result<(), Failure> {
        let body = json!({ "volumeAttachment": { "volumeId": id.as_str() } });
        let request = Request {
            service: Service::Compute,
            deadline: ATTACH_DEADLINE,
            ..Request::post("attach_volume", plugs(node)?, body)
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::OK | StatusCode::ACCEPTED => Ok(()),
            // The quota does not allow a further volume, or the guest cannot have a further disk.
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
        let request = Request {
            service: Service::Compute,
            ..Request::new("detach_volume", Method::DELETE, path)
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(true),
            // The server does not exist, or the volume is not attached to the server.
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
