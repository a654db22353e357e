//! Calls of the API of DigitalOcean, and the interpretation of its errors.

mod team;

use super::token::{BEARER, TokenSource};
use super::wire::{self, Action, DoSnapshot, DoVolume, Listed, Refusal};
use crate::backend::cloud::account::{Account, Guard};
use crate::backend::cloud::ids::{self, is_uuid};
use crate::backend::no_volume;
use crate::http::{self, Answer, Call, Repeat, encoded};
use ::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use ::http::{Method, StatusCode, Uri};
use belay_server::call::{Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum duration of a call. Responses are fast, since the cloud responds before an action is
/// complete. However, a call may have to wait until the rate limit per minute allows the call.
const DEADLINE: Duration = Duration::from_secs(75);

/// Maximum number of entries of a page.
pub(super) const PAGE_ENTRIES_MAX: usize = 200;

const AGENT: &str = concat!("belay-controller/", env!("CARGO_PKG_VERSION"));

/// The client for one account.
pub(super) struct Client {
    http: http::Client,
    /// The URL of the API, without a trailing slash.
    url: String,
    region: String,
    account: Account<HeaderValue>,
}

/// An API call without the token, which is added when the call is sent.
struct Request {
    verb: &'static str,
    method: Method,
    /// The path after `/v2/`.
    path: String,
    body: Option<Value>,
    deadline: Duration,
}

/// An error response, or a call without a response.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) why: Refusal,
    pub(super) failure: Failure,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let why = Refusal::Other;
        Self { why, failure }
    }
}

impl Refused {
    /// Creates the error that the cloud returns for a missing volume, because no volume can have
    /// this ID.
    fn no_volume(id: &VolumeId) -> Self {
        let (why, failure) = (Refusal::NotFound, no_volume(id));
        Self { why, failure }
    }
}

impl Client {
    /// Creates a client and reads the token. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns `Precondition`, naming the file of the token, if the token cannot be read.
    pub(super) fn open(
        http: http::Client,
        url: &str,
        region: &str,
        token: TokenSource,
    ) -> Result<Self, Failure> {
        let guard = Guard::new("--token-file", None);
        Ok(Self {
            http: http.too_fast_if(wire::is_too_fast),
            url: url.trim_end_matches('/').to_owned(),
            region: region.to_owned(),
            account: Account::open(guard, move || token.read())?,
        })
    }

    pub(super) fn region(&self) -> &str {
        &self.region
    }

    /// Makes a call. If the cloud refuses the current token and the file contains a different
    /// token, repeats the call with the new token.
    async fn answer(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        body: Option<Value>,
    ) -> Result<Answer, Failure> {
        let request = Request {
            verb,
            method,
            path,
            body,
            deadline: DEADLINE,
        };
        let token = self.account.key();
        let answer = self.answer_with(&token, &request).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        match self.account.newer(self, &token).await? {
            Some(newer) => self.answer_with(&newer, &request).await,
            None => Ok(answer),
        }
    }

    async fn answer_with(&self, token: &HeaderValue, request: &Request) -> Result<Answer, Failure> {
        let url = format!("{}/v2/{}", self.url, request.path);
        let uri: Uri = url.parse().map_err(|error| {
            Failure::precondition(format!("--api-url {}: no URL: {error}", self.url))
        })?;
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(AUTHORIZATION, token.clone());
        headers.insert(ACCEPT, json.clone());
        headers.insert(CONTENT_TYPE, json);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let secret = token.to_str().unwrap_or_default();
        let secrets = [secret.trim_start_matches(BEARER)];
        let body = request.body.as_ref();
        let call = Call {
            verb: request.verb,
            method: request.method.clone(),
            uri,
            headers,
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
            secrets: &secrets,
            repeats: Repeat::Idempotent,
            deadline: request.deadline,
        };
        self.http.call(&call).await
    }

    pub(super) async fn get(&self, verb: &'static str, path: String) -> Result<Answer, Failure> {
        self.answer(verb, Method::GET, path, None).await
    }

    async fn post(&self, verb: &'static str, path: String, body: Value) -> Result<Answer, Failure> {
        self.answer(verb, Method::POST, path, Some(body)).await
    }

    /// Requests an object of a kind, such as `volume`, by its ID. Returns `None` if the cloud does
    /// not have the object, or if `path` is `None` because no object can have the ID.
    async fn find<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        what: &str,
        id: &str,
        path: Option<String>,
    ) -> Result<Option<T>, Failure> {
        let Some(path) = path else {
            return Ok(None);
        };
        let answer = self.get(verb, path).await?;
        match answer.status {
            StatusCode::OK => ids::object(&answer, what, id).map(Some),
            _ if wire::is_missing(&answer) => Ok(None),
            _ if what == "snapshot" && wire::is_no_snapshot(&answer) => Ok(None),
            _ => Err(wire::refused(&answer)),
        }
    }

    pub(super) async fn volume(&self, id: &VolumeId) -> Result<Option<DoVolume>, Failure> {
        let (what, id) = ("volume", id.as_str());
        self.find("get_volume", what, id, path(what, id)).await
    }

    /// Returns the volume with this name in the region; `None` if no volume in the region has the
    /// name.
    pub(super) async fn named(&self, name: &str) -> Result<Option<DoVolume>, Failure> {
        let (encoded, region) = (encoded(name), encoded(&self.region));
        let path = format!("volumes?name={encoded}&region={region}");
        let answer = self.get("find_volume", path).await?;
        let (found, _) = listed(answer)?;
        let mut found = found.into_iter();
        Ok(found.find(|it: &DoVolume| it.name == name && it.region() == self.region))
    }

    /// Returns a page of the region's volumes, and whether another page follows. The first page has
    /// the number 1.
    pub(super) async fn volumes(
        &self,
        page: usize,
        entries: usize,
    ) -> Result<(Vec<DoVolume>, bool), Failure> {
        let region = encoded(&self.region);
        let path = format!("volumes?region={region}&page={page}&per_page={entries}");
        listed(self.get("list_volumes", path).await?)
    }

    pub(super) async fn create(&self, body: Value) -> Result<DoVolume, Refused> {
        let path = "volumes".to_owned();
        let answer = self.post("create_volume", path, body).await?;
        made(&answer, "/volume").map_err(|mut refused: Refused| {
            if refused.failure.kind == Kind::Precondition {
                refused.failure.kind = Kind::Invalid;
            }
            refused
        })
    }

    pub(super) async fn delete(&self, id: &VolumeId) -> Result<(), Failure> {
        let Some(path) = path("volume", id.as_str()) else {
            return Ok(());
        };
        let answer = self
            .answer("delete_volume", Method::DELETE, path, None)
            .await?;
        wire::deleted(&answer)
    }

    pub(super) async fn attach(&self, id: &VolumeId, droplet: u64) -> Result<Action, Refused> {
        let body = json!({ "type": "attach", "droplet_id": droplet });
        self.act("attach_volume", id, body).await
    }

    pub(super) async fn detach(&self, id: &VolumeId, droplet: u64) -> Result<Action, Refused> {
        let body = json!({ "type": "detach", "droplet_id": droplet });
        self.act("detach_volume", id, body).await
    }

    pub(super) async fn resize(&self, volume: &DoVolume, gib: u64) -> Result<Action, Refused> {
        let region = volume.region();
        let body = json!({ "type": "resize", "size_gigabytes": gib, "region": region });
        self.act("resize_volume", &volume.id()?, body).await
    }

    async fn act(&self, verb: &'static str, id: &VolumeId, body: Value) -> Result<Action, Refused> {
        let Some(path) = path("volume", id.as_str()) else {
            return Err(Refused::no_volume(id));
        };
        let answer = self.post(verb, format!("{path}/actions"), body).await?;
        made(&answer, "/action")
    }

    /// Returns an action of a volume; `None` if the cloud has no action with this ID.
    pub(super) async fn action(
        &self,
        id: &VolumeId,
        action: u64,
    ) -> Result<Option<Action>, Failure> {
        let path = path("volume", id.as_str());
        let path = path.map(|path| format!("{path}/actions/{action}"));
        let action = action.to_string();
        self.find("get_action", "action", &action, path).await
    }

    /// Tags a volume. Creates the tag if it does not exist.
    pub(super) async fn tag(&self, id: &VolumeId, tag: &str) -> Result<(), Failure> {
        if !is_uuid(id.as_str()) {
            return Err(no_volume(id));
        }
        let path = format!("tags/{}/resources", encoded(tag));
        let body = json!({
            "resources": [{ "resource_id": id.as_str(), "resource_type": "volume" }],
        });
        let mut answer = self.post("tag_volume", path.clone(), body.clone()).await?;
        if wire::is_missing(&answer) {
            let create = json!({ "name": tag });
            let created = self.post("create_tag", "tags".to_owned(), create).await?;
            if created.status != StatusCode::CREATED {
                return Err(wire::refused(&created));
            }
            answer = self.post("tag_volume", path, body).await?;
        }
        match answer.status {
            StatusCode::NO_CONTENT => Ok(()),
            _ => Err(wire::refused(&answer)),
        }
    }

    pub(super) async fn cut(&self, source: &VolumeId, body: Value) -> Result<DoSnapshot, Refused> {
        let Some(path) = path("volume", source.as_str()) else {
            return Err(Refused::no_volume(source));
        };
        let path = format!("{path}/snapshots");
        let answer = self.post("create_snapshot", path, body).await?;
        made(&answer, "/snapshot")
    }

    pub(super) async fn snapshot(&self, id: &SnapshotId) -> Result<Option<DoSnapshot>, Failure> {
        let (what, id) = ("snapshot", id.as_str());
        self.find("get_snapshot", what, id, path(what, id)).await
    }

    /// Deletes a snapshot of a volume. Does nothing for IDs of droplet snapshots, which are
    /// numbers.
    pub(super) async fn discard(&self, id: &SnapshotId) -> Result<(), Failure> {
        let Some(path) = path("snapshot", id.as_str()) else {
            return Ok(());
        };
        let answer = self
            .answer("delete_snapshot", Method::DELETE, path, None)
            .await?;
        wire::deleted(&answer)
    }

    /// Returns a page of the snapshots of one volume, or of all volumes of the account, and whether
    /// another page follows. The first page has the number 1.
    pub(super) async fn snapshots(
        &self,
        of: Option<&VolumeId>,
        page: usize,
        entries: usize,
    ) -> Result<(Vec<DoSnapshot>, bool), Failure> {
        let pages = format!("page={page}&per_page={entries}");
        let path = match of.map(|id| path("volume", id.as_str())) {
            None => format!("snapshots?resource_type=volume&{pages}"),
            Some(None) => return Ok((Vec::new(), false)),
            Some(Some(path)) => format!("{path}/snapshots?{pages}"),
        };
        let answer = self.get("list_snapshots", path).await?;
        if of.is_some() && wire::is_missing(&answer) {
            // A missing volume has no snapshots.
            return Ok((Vec::new(), false));
        }
        listed(answer)
    }
}

/// Returns the entries of a page in a response, and whether another page follows.
fn listed<T: DeserializeOwned>(answer: Answer) -> Result<(Vec<T>, bool), Failure> {
    let answer = answer.with_status(&[StatusCode::OK], wire::refused)?;
    let page: Listed<T> = answer.json()?;
    Ok((page.items, wire::has_next(page.links.as_ref())))
}

/// Returns the created object, which is at this JSON pointer of the response.
fn made<T: DeserializeOwned>(answer: &Answer, pointer: &str) -> Result<T, Refused> {
    match answer.status {
        StatusCode::ACCEPTED | StatusCode::OK | StatusCode::CREATED => Ok(answer.member(pointer)?),
        _ => {
            let (why, failure) = (wire::refusal(answer), wire::refused(answer));
            Err(Refused { why, failure })
        }
    }
}

/// Returns the API path of an object; `None` if no object can have the ID. Volumes and their
/// snapshots have UUIDs as IDs, and they are the only objects with a UUID that this client's paths
/// can reach. Other IDs are never used in paths: with `../`, a path would lead to other objects,
/// and a server in front of the API may resolve `../` even if it is encoded.
pub(super) fn path(what: &str, id: &str) -> Option<String> {
    is_uuid(id).then(|| format!("{what}s/{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_uuid_gets_into_a_path() {
        let uuid = "7f8b1c2d-1111-4222-8333-44445555aaff";
        assert_eq!(path("volume", uuid), Some(format!("volumes/{uuid}")));
        for id in ["", "../../account", &format!("{uuid}/..")] {
            assert_eq!(path("volume", id), None, "{id}");
        }
    }

    #[test]
    fn a_name_is_encoded_but_for_the_characters_of_an_id() {
        assert_eq!(encoded("pvc-1_a~b.c/d e"), "pvc-1_a~b%2Ec%2Fd%20e");
    }
}
