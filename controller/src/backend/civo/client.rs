//! Calls of Civo's API, and the interpretation of its errors. The client never repeats a request
//! for a change; the caller reads the volume to learn the result.

mod clusters;

pub(super) use clusters::Owner;

use super::access::{Access, Sources};
use super::wire::is_word;
use super::wire::{self, CivoSnapshot, CivoVolume, Cluster, Made, Object, Quota};
use crate::backend::cloud::account::{Account, Guard};
use crate::backend::cloud::ids::{self, is_uuid};
use crate::http::{self, Answer, Call, Repeat, encoded};
use ::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use ::http::{Method, StatusCode, Uri};
use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum duration of a call, including its retries.
const DEADLINE: Duration = Duration::from_secs(30);
/// The description of new snapshots.
const BY: &str = "Created by Belay";
/// The query parameter that selects snapshots of volumes; instances have snapshots, too.
const OF_VOLUMES: &str = "&resource_type=volume";

/// The client for one account and one region.
pub(super) struct Client {
    http: http::Client,
    account: Account<Arc<Access>>,
    /// The configured cluster, once Civo has accepted a key and returned the cluster.
    cluster: OnceLock<Cluster>,
}

/// An API call without the key, which is added when the call is sent.
struct Request {
    verb: &'static str,
    method: Method,
    path: String,
    /// Additional query parameters, which begin with `&`.
    query: Cow<'static, str>,
    body: Option<Value>,
    /// The time after which the call must not be sent; `None` if the call may be sent at any time.
    until: Option<Instant>,
}

impl Request {
    fn new(verb: &'static str, method: Method, path: String) -> Self {
        Self {
            verb,
            method,
            path,
            query: Cow::Borrowed(""),
            body: None,
            until: None,
        }
    }

    fn get(verb: &'static str, path: impl Into<String>) -> Self {
        Self::new(verb, Method::GET, path.into())
    }

    fn call<'a>(&self, access: &Access, secrets: &'a [&'a str]) -> Result<Call<'a>, Failure> {
        let (url, region) = (&access.url, encoded(&access.region));
        let uri = format!("{url}{}?region={region}{}", self.path, self.query);
        let uri: Uri = uri.parse().map_err(|error| {
            Failure::precondition(format!("CIVO_API_URL {url:?}: not a URL: {error}"))
        })?;
        let bearer = format!("bearer {}", access.key.expose());
        let mut bearer = HeaderValue::try_from(bearer).map_err(|_| {
            Failure::precondition("CIVO_API_KEY: has a character that no key has; copy it again")
        })?;
        bearer.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = self.body.as_ref();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let deadline = self.until.map_or(DEADLINE, left);
        if deadline.is_zero() {
            let message = format!(
                "{}: not sent, as it comes too late; repeat the call",
                self.verb
            );
            return Err(Failure::busy(message));
        }
        Ok(Call {
            verb: self.verb,
            method: self.method.clone(),
            uri,
            headers,
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
            secrets,
            repeats: Repeat::Idempotent,
            deadline,
        })
    }
}

impl Client {
    /// Creates a client that reads the key again when Civo refuses it. Blocks the calling thread.
    /// The region and the cluster are never changed, since cached data refers to them.
    ///
    /// # Errors
    /// Returns `Precondition` if the key cannot be read.
    pub(super) fn open(
        http: http::Client,
        sources: Sources,
        access: Access,
    ) -> Result<Self, Failure> {
        let guard = Guard::new("CIVO_API_KEY", Some(clusters::account_of(&access)));
        let read = move || {
            let key = sources.key()?;
            Ok(Arc::new(Access {
                key,
                ..access.clone()
            }))
        };
        Ok(Self {
            http,
            account: Account::open(guard, read)?,
            cluster: OnceLock::new(),
        })
    }

    /// Returns the current settings.
    pub(super) fn access(&self) -> Arc<Access> {
        self.account.key()
    }

    /// Makes a call. If Civo refuses the current key and the file contains a different key, repeats
    /// the call with the new key. The call is made only after Civo has accepted a key.
    async fn answer(&self, request: Request) -> Result<Answer, Failure> {
        self.account.confirm(self).await?;
        let access = self.access();
        let answer = self.answer_with(&access, &request).await?;
        if !wire::refuses_key(&answer) {
            return Ok(answer);
        }
        match self.account.newer(self, &access).await? {
            Some(new) => self.answer_with(&new, &request).await,
            None => Ok(answer),
        }
    }

    async fn answer_with(&self, access: &Access, request: &Request) -> Result<Answer, Failure> {
        let secrets = [access.key.expose()];
        let call = request.call(access, &secrets)?;
        match request.until {
            Some(_) => self.http.call_once(&call).await,
            None => self.http.call(&call).await,
        }
    }

    /// Requests an object or a list, and parses the response.
    async fn read<T: DeserializeOwned>(&self, request: Request) -> Result<T, Failure> {
        let answer = self.answer(request).await?;
        match answer.status.is_success() {
            true => answer.json(),
            false => Err(wire::refused(&answer)),
        }
    }

    /// Requests an object like [`Self::read`]; returns `None` only if Civo itself reports that the
    /// object does not exist.
    async fn find<T: DeserializeOwned>(
        &self,
        object: Object,
        request: Request,
    ) -> Result<Option<T>, Failure> {
        wire::found(object, &self.answer(request).await?)
    }

    /// Deletes an object; returns whether it existed.
    async fn remove(&self, object: Object, request: Request) -> Result<bool, Failure> {
        let answer = self.answer(request).await?;
        match wire::accepted(&answer) {
            Err(_) if wire::has_no(object, &answer) => Ok(false),
            accepted => accepted.map(|()| true),
        }
    }

    async fn change(&self, request: Request) -> Result<(), Failure> {
        wire::accepted(&self.answer(request).await?)
    }

    pub(super) async fn quota(&self) -> Result<Quota, Failure> {
        self.read(Request::get("get_quota", "/v2/quota")).await
    }

    /// Returns all volumes of the account in the region.
    pub(super) async fn volumes(&self) -> Result<Vec<CivoVolume>, Failure> {
        self.read(Request::get("list_volumes", "/v2/volumes")).await
    }

    pub(super) async fn volume(&self, id: &VolumeId) -> Result<Option<CivoVolume>, Failure> {
        let Ok(path) = path_of(id) else {
            return Ok(None);
        };
        let request = Request::get("get_volume", path);
        let found: Option<CivoVolume> = self.find(Object::Volume, request).await?;
        if let Some(volume) = &found {
            ids::same("volume", id.as_str(), &volume.id)?;
        }
        Ok(found)
    }

    /// Creates a volume; returns `None` if a volume with this name exists.
    pub(super) async fn create(&self, mut volume: Value) -> Result<Option<Made>, Failure> {
        let access = self.access();
        volume["namespace"] = access.namespace.clone().into();
        volume["cluster_id"] = access.cluster.clone().into();
        volume["region"] = access.region.clone().into();
        let path = "/v2/volumes".to_owned();
        let answer = self
            .answer(Request {
                body: Some(volume),
                ..Request::new("create_volume", Method::POST, path)
            })
            .await?;
        if answer.status.is_success() {
            return answer.json().map(Some);
        }
        match wire::code(&answer) == wire::DUPLICATE_NAME {
            true => Ok(None),
            false => Err(wire::refused(&answer)),
        }
    }

    /// Deletes a volume; returns whether it existed. The snapshots of the volume remain.
    pub(super) async fn delete(&self, id: &VolumeId) -> Result<bool, Failure> {
        let Ok(path) = path_of(id) else {
            return Ok(false);
        };
        let request = Request::new("delete_volume", Method::DELETE, path);
        self.remove(Object::Volume, request).await
    }

    /// Attaches a volume at once. With `attach_at_boot`, Civo would wait until the instance is
    /// restarted.
    pub(super) async fn attach(&self, id: &VolumeId, instance: &str) -> Result<(), Failure> {
        let body = json!({"instance_id": instance, "attach_at_boot": false});
        let request = self.put("attach_volume", id, "attach", body)?;
        self.change(request).await
    }

    /// Detaches a volume from its current instance. The caller must have read shortly before which
    /// instance uses the volume; the result of that read is valid until `until`. The request is not
    /// sent after `until`, and is never repeated. Returns false if Civo has not accepted the
    /// request, because `until` has passed or because of the rate limit.
    pub(super) async fn detach(&self, id: &VolumeId, until: Instant) -> Result<bool, Failure> {
        let request = Request {
            until: Some(until),
            ..self.put("detach_volume", id, "detach", json!({}))?
        };
        let is_late = |failure: &Failure| {
            matches!(failure.kind, Kind::Timeout | Kind::Busy)
                && failure.certainty == Certainty::NothingHappened
        };
        match self.answer(request).await {
            Err(failure) if is_late(&failure) => Ok(false),
            Err(failure) => Err(failure),
            Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => Ok(false),
            Ok(answer) => wire::accepted(&answer).map(|()| true),
        }
    }

    pub(super) async fn resize(&self, id: &VolumeId, gib: u64) -> Result<(), Failure> {
        let body = json!({ "size_gb": gib });
        let request = self.put("resize_volume", id, "resize", body)?;
        self.change(request).await
    }

    fn put(
        &self,
        verb: &'static str,
        id: &VolumeId,
        action: &str,
        mut body: Value,
    ) -> Result<Request, Failure> {
        body["region"] = self.access().region.clone().into();
        let path = format!("{}/{action}", path_of(id)?);
        Ok(Request {
            body: Some(body),
            ..Request::new(verb, Method::PUT, path)
        })
    }

    /// Returns all snapshots of volumes.
    pub(super) async fn snapshots(&self) -> Result<Vec<CivoSnapshot>, Failure> {
        self.read(Request {
            query: OF_VOLUMES.into(),
            ..Request::get("list_snapshots", "/v2/snapshots")
        })
        .await
    }

    pub(super) async fn snapshot(&self, id: &SnapshotId) -> Result<Option<CivoSnapshot>, Failure> {
        let Ok(path) = path_of_snapshot(id) else {
            return Ok(None);
        };
        let request = Request {
            query: OF_VOLUMES.into(),
            ..Request::get("get_snapshot", path)
        };
        let found: Option<CivoSnapshot> = self.find(Object::Snapshot, request).await?;
        if let Some(snapshot) = &found {
            ids::same("snapshot", id.as_str(), &snapshot.snapshot_id)?;
        }
        Ok(found)
    }

    /// Creates a snapshot; returns `None` if the response does not contain the snapshot.
    pub(super) async fn cut(
        &self,
        of: &VolumeId,
        name: &str,
    ) -> Result<Option<CivoSnapshot>, Failure> {
        let region = self.access().region.clone();
        let path = format!("{}/snapshots", path_of(of)?);
        let answer = self
            .answer(Request {
                body: Some(json!({"name": name, "description": BY, "region": region})),
                ..Request::new("create_snapshot", Method::POST, path)
            })
            .await?;
        wire::accepted(&answer)?;
        Ok(answer.json().ok())
    }

    /// Deletes a snapshot; returns whether it existed.
    pub(super) async fn discard(&self, id: &SnapshotId) -> Result<bool, Failure> {
        let Ok(path) = path_of_snapshot(id) else {
            return Ok(false);
        };
        let request = Request::new("delete_snapshot", Method::DELETE, path);
        self.remove(Object::Snapshot, request).await
    }
}

/// Returns the API path of a volume. An ID is used in a path only if the ID is a UUID, since a
/// server in front of the API may resolve `../` in a path even if the dots are encoded.
///
/// # Errors
/// Returns `NotFound` for an ID that no volume can have.
fn path_of(id: &VolumeId) -> Result<String, Failure> {
    match is_uuid(id.as_str()) {
        true => Ok(format!("/v2/volumes/{id}")),
        false => Err(Failure::not_found(format!(
            "volume {id}: not found: the ID of a volume is a UUID"
        ))),
    }
}

/// Returns the API path of a snapshot.
///
/// # Errors
/// Returns `NotFound` for an ID that no snapshot can have.
fn path_of_snapshot(id: &SnapshotId) -> Result<String, Failure> {
    match is_word(id.as_str()) {
        true => Ok(format!("/v2/snapshots/{id}")),
        false => Err(Failure::not_found(format!(
            "snapshot {id}: not found: no snapshot of Civo has such an ID"
        ))),
    }
}
