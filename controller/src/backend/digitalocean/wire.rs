//! The messages of the API (docs.digitalocean.com/reference/api), and their conversion to the types
//! of the backend.

use super::names::About;
use crate::backend::cloud::ids::{self, is_uuid};
use crate::backend::cloud::time::seconds;
use crate::backend::{Mark, Phase, Snapshot, Volume};
use crate::http::Answer;
use belay_contract::publish_context::Content;
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::request::{NodeId, VolumeId};
use http::StatusCode;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The unit of sizes, in bytes.
pub(super) const GIB: u64 = 1 << 30;

/// The tag of volumes that a node may have used.
pub(super) const USED: &str = "belay-used";

/// Parts of the cloud's error messages, by which errors are distinguished.
const CAPACITY: &str = "capacity limit exceeded";
const SNAPSHOT_RATE: &str = "one request per";
const PENDING: &str = "pending event";
const ATTACHED_ALREADY: &str = "already attached";
const TOO_MANY: &str = "cannot attach more";
const NOT_ATTACHED: &str = "attachment not found";
const SIZE: &str = "invalid size";
const NO_SNAPSHOT: &str = "not a snapshot";

/// The `id` of an error for a missing object.
const NOT_FOUND: &str = "not_found";

#[derive(Debug, Deserialize)]
pub(super) struct Region {
    slug: String,
}

/// A volume of the API. The API reports no status of a volume, so a volume does not reveal whether
/// an action is running.
#[derive(Debug, Deserialize)]
pub(super) struct DoVolume {
    pub(super) id: String,
    pub(super) name: String,
    region: Region,
    /// The size in GiB.
    pub(super) size_gigabytes: u64,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    droplet_ids: Option<Vec<u64>>,
    #[serde(default)]
    tags: Option<Vec<String>>,
}

/// A page of volumes, snapshots or actions.
#[derive(Debug, Deserialize)]
pub(super) struct Listed<T> {
    #[serde(alias = "volumes", alias = "snapshots", alias = "actions")]
    pub(super) items: Vec<T>,
    #[serde(default)]
    pub(super) links: Option<Links>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Links {
    #[serde(default)]
    pages: Option<Pages>,
}

#[derive(Debug, Default, Deserialize)]
struct Pages {
    #[serde(default)]
    next: Option<String>,
    #[serde(default)]
    last: Option<String>,
}

/// Returns the number of the last page, from its URL; `None` if there is only one page.
pub(super) fn last(links: Option<&Links>) -> Option<usize> {
    let last = links?.pages.as_ref()?.last.as_deref()?;
    let (_, query) = last.split_once('?')?;
    let mut pages = query
        .split('&')
        .filter_map(|part| part.strip_prefix("page="));
    pages.next()?.parse().ok()
}

/// Whether another page follows.
pub(super) fn has_next(links: Option<&Links>) -> bool {
    let pages = links.and_then(|links| links.pages.as_ref());
    let next = pages.and_then(|pages| pages.next.as_deref());
    next.is_some_and(|next| !next.is_empty())
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Action {
    pub(super) id: u64,
    status: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    started_at: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DoSnapshot {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) resource_id: String,
    resource_type: String,
    /// The size of the volume when the snapshot was taken, in GiB.
    min_disk_size: u64,
    #[serde(default)]
    created_at: Option<String>,
}

/// The status of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Running,
    Completed,
    Errored,
}

impl Action {
    /// Returns the status. An unknown status word is treated as running.
    pub(super) fn status(&self) -> Status {
        match self.status.as_str() {
            "completed" => Status::Completed,
            "errored" => Status::Errored,
            _ => Status::Running,
        }
    }

    /// Whether the action may be an attach. Returns true for an unknown type of action; only
    /// `detach` and `resize` cannot attach a volume.
    pub(super) fn is_attach(&self) -> bool {
        let others = ["detach", "resize"];
        !others.iter().any(|other| self.kind.starts_with(other))
    }

    /// Returns the time at which the action began, by the cloud's clock, in seconds since 1970;
    /// `None` if unknown.
    pub(super) fn began(&self) -> Option<u64> {
        seconds(self.started_at.as_deref()?)
    }
}

impl DoVolume {
    /// Returns the volume ID.
    ///
    /// # Errors
    /// Returns the errors of [`ids::volume`].
    pub(super) fn id(&self) -> Result<VolumeId, Failure> {
        ids::volume(&self.id, is_uuid)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.size_gigabytes.saturating_mul(GIB)
    }

    pub(super) fn region(&self) -> &str {
        &self.region.slug
    }

    /// Returns the data that Belay recorded in the description at the creation; `None` if Belay has
    /// not created the volume.
    pub(super) fn about(&self) -> Option<About> {
        About::read(self.description.as_deref()?)
    }

    pub(super) fn droplets(&self) -> &[u64] {
        self.droplet_ids.as_deref().unwrap_or_default()
    }

    /// Whether the volume has this tag. Ignores case, since the cloud keeps the spelling with which
    /// a tag was first used.
    pub(super) fn has_tag(&self, tag: &str) -> bool {
        let mut tags = self.tags.iter().flatten();
        tags.any(|own| own.eq_ignore_ascii_case(tag))
    }

    /// Returns the content of the volume. The volume is new only if Belay has created it empty and
    /// no node has used it. The content of volumes of other programs is unknown.
    pub(super) fn content(&self) -> Content {
        match self.about() {
            None => Content::Unknown,
            Some(about) if about.snapshot.is_some() => Content::Populated,
            Some(_) if self.has_tag(USED) => Content::Used,
            Some(_) => Content::New,
        }
    }

    /// Whether the volume was created from a snapshot and must still be expanded to the requested
    /// size.
    pub(super) fn is_incomplete(&self) -> bool {
        let about = self.about().unwrap_or_default();
        about.gib.is_some_and(|gib| self.size_gigabytes < gib)
    }

    /// Converts the volume to the type of the backend.
    pub(super) fn volume(&self, phase: Phase, topology_key: &str) -> Result<Volume, Failure> {
        let nodes = self.droplets().iter();
        let nodes = nodes.map(|droplet| NodeId::new(droplet.to_string().as_str()));
        Ok(Volume {
            name: Some(self.name.clone()),
            bytes: self.bytes(),
            nodes: nodes.collect::<Result<_, _>>()?,
            source: self.about().and_then(|about| about.source()),
            place: Topology::new(topology_key, &self.region.slug)
                .ok()
                .map(Arc::new),
            content: Some(self.content()),
            ..Volume::new(self.id()?, phase)
        })
    }
}

impl DoSnapshot {
    /// Converts the snapshot to the type of the backend; `None` for a snapshot of a droplet. The
    /// cloud can restore a snapshot as soon as it shows the snapshot.
    pub(super) fn snapshot(&self) -> Result<Option<Snapshot>, Failure> {
        if self.resource_type != "volume" {
            return Ok(None);
        }
        let created = self.created_at.as_deref().and_then(seconds).unwrap_or(0);
        Ok(Some(Snapshot {
            id: ids::snapshot(&self.id, is_uuid)?,
            name: Some(self.name.clone()),
            phase: Phase::Ready,
            mark: Mark::None,
            source: ids::volume(&self.resource_id, is_uuid)?,
            bytes: self.min_disk_size.saturating_mul(GIB),
            created: UNIX_EPOCH + Duration::from_secs(created),
            ready: true,
            damage: None,
        }))
    }
}

/// An error of the cloud to which the driver reacts in a special way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another change of the droplet or of the volume is running.
    Pending,
    AttachedAlready,
    NotAttached,
    NameTaken,
    NotFound,
    Other,
}

/// Returns the ID of an error, such as `not_found`; `None` if the response is not from the cloud.
/// Some of the cloud's services send the error in a member `error`, or its ID as `code`.
fn fault(answer: &Answer) -> Option<String> {
    let ids = ["/id", "/code", "/error/id", "/error/code"];
    ids.iter().find_map(|id| answer.member(id).ok())
}

/// Whether an error response is from the cloud, and not from a proxy.
pub(super) fn is_own(answer: &Answer) -> bool {
    fault(answer).is_some()
}

/// Whether the cloud itself reports that the object is missing. A proxy may respond with 404, too.
pub(super) fn is_missing(answer: &Answer) -> bool {
    let is_said = || fault(answer).is_some_and(|id| id == NOT_FOUND);
    answer.status == StatusCode::NOT_FOUND && is_said()
}

/// Whether the cloud itself reports that the ID does not belong to a snapshot.
pub(super) fn is_no_snapshot(answer: &Answer) -> bool {
    answer.status == StatusCode::BAD_REQUEST && fault(answer).is_some() && says(answer, NO_SNAPSHOT)
}

/// Classifies an error response, mostly by its message, since the cloud's errors have no specific
/// codes.
pub(super) fn refusal(answer: &Answer) -> Refusal {
    let says = |words| says(answer, words);
    match answer.status {
        _ if is_missing(answer) => Refusal::NotFound,
        StatusCode::CONFLICT => Refusal::NameTaken,
        StatusCode::UNPROCESSABLE_ENTITY if says(PENDING) => Refusal::Pending,
        StatusCode::UNPROCESSABLE_ENTITY if says(ATTACHED_ALREADY) => Refusal::AttachedAlready,
        StatusCode::UNPROCESSABLE_ENTITY if says(NOT_ATTACHED) => Refusal::NotAttached,
        _ => Refusal::Other,
    }
}

fn says(answer: &Answer, words: &str) -> bool {
    answer.words().to_lowercase().contains(words)
}

/// Whether a response with status 429 means that the rate of all API calls together was too high.
/// The cloud also uses 429 for the limits of a single volume, and for quotas.
pub(super) fn is_too_fast(answer: &Answer) -> bool {
    !says(answer, CAPACITY) && !says(answer, SNAPSHOT_RATE)
}

/// Checks that the response to a delete request means that the object no longer exists.
///
/// # Errors
/// Returns the errors of [`refused`].
pub(super) fn deleted(answer: &Answer) -> Result<(), Failure> {
    match answer.status {
        StatusCode::NO_CONTENT => Ok(()),
        _ if is_missing(answer) => Ok(()),
        _ => Err(refused(answer)),
    }
}

/// The reason why a call fails with 401, and the remedy.
pub(super) const TOKEN_REFUSED: &str = "DigitalOcean refuses the token; write a valid one to \
                                        --token-file, or set it in DIGITALOCEAN_ACCESS_TOKEN and \
                                        restart the controller";

/// Converts an error response to a failure. After a status 5xx, the cloud may have begun the
/// change. An unexpected success status must be from a proxy.
pub(super) fn refused(answer: &Answer) -> Failure {
    let kind = match answer.status {
        status if status.is_success() => return answer.foreign("DigitalOcean"),
        _ if answer.is_refusal_of_proxy() => return answer.foreign("DigitalOcean"),
        StatusCode::UNAUTHORIZED => Kind::Unauthenticated,
        StatusCode::FORBIDDEN if !says(answer, CAPACITY) => Kind::Denied,
        StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => Kind::Quota,
        StatusCode::NOT_FOUND if !is_missing(answer) => return answer.foreign("DigitalOcean"),
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::UNPROCESSABLE_ENTITY if says(answer, TOO_MANY) || says(answer, CAPACITY) => {
            Kind::Quota
        }
        StatusCode::UNPROCESSABLE_ENTITY if says(answer, PENDING) => Kind::Busy,
        StatusCode::UNPROCESSABLE_ENTITY if says(answer, SIZE) => Kind::Range,
        status if status.is_server_error() => Kind::Unreachable,
        _ => Kind::Precondition,
    };
    let message = match kind {
        Kind::Unauthenticated => format!("{}; {TOKEN_REFUSED}", answer.refusal()),
        _ => answer.refusal(),
    };
    let failure = Failure::new(kind, message);
    match answer.status.is_server_error() {
        true => failure.may_be_running(),
        false => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;
    use serde_json::{Value, json};

    const UUID: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";

    fn links(pages: Value) -> Links {
        serde_json::from_value(json!({ "pages": pages })).unwrap()
    }

    #[test]
    fn the_last_page_is_that_of_its_address() {
        let last = |last: &str| super::last(Some(&links(json!({ "last": last }))));
        assert_eq!(last("https://a/v2/b/actions?per_page=200&page=3"), Some(3));
        assert_eq!(last("https://a/v2/b/actions?page=12&per_page=1"), Some(12));
        assert_eq!(last("https://a/v2/b/actions?per_page=200"), None);
        assert_eq!(super::last(None), None);
    }

    #[test]
    fn another_page_follows_only_if_it_has_an_address() {
        assert!(has_next(Some(&links(
            json!({ "next": "https://a?page=2" })
        ))));
        for none in [
            json!({ "next": "" }),
            json!({ "last": "https://a" }),
            json!(null),
        ] {
            assert!(!has_next(Some(&links(none.clone()))), "{none}");
        }
        assert!(!has_next(None));
    }

    #[test]
    fn an_unknown_word_is_that_of_an_action_that_runs_and_may_attach() {
        let action = |status: &str, kind: &str| -> Action {
            let begun = "2001-09-09T01:46:40Z";
            let action = json!({ "id": 7, "status": status, "type": kind, "started_at": begun });
            serde_json::from_value(action).unwrap()
        };
        for (word, status) in [
            ("completed", Status::Completed),
            ("errored", Status::Errored),
            ("in-progress", Status::Running),
            ("perplexed", Status::Running),
        ] {
            assert_eq!(action(word, "attach").status(), status, "{word}");
        }
        for (kind, is_attach) in [
            ("attach", true),
            ("attach_volume", true),
            ("", true),
            ("detach", false),
            ("detach_volume", false),
            ("resize_volume", false),
        ] {
            assert_eq!(action("completed", kind).is_attach(), is_attach, "{kind}");
        }
        assert_eq!(action("completed", "").began(), Some(1_000_000_000));
    }

    fn volume(more: Value) -> DoVolume {
        let mut body = json!({
            "id": UUID, "name": "pvc-1", "region": { "slug": "nyc1" }, "size_gigabytes": 10,
        });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn only_an_empty_volume_of_belay_that_no_node_was_given_is_new() {
        let by_belay = "Created by Belay";
        let restored = "Created by Belay; snapshot=s-1; gib=20";
        for (description, tags, content) in [
            (None, json!([]), Content::Unknown),
            (
                Some("Created by csi-digitalocean"),
                json!([]),
                Content::Unknown,
            ),
            (Some(by_belay), Value::Null, Content::New),
            (Some(by_belay), json!(["belay-cluster:a"]), Content::New),
            (Some(by_belay), json!(["a", "Belay-Used"]), Content::Used),
            (Some(restored), json!([]), Content::Populated),
            (Some(restored), json!([USED]), Content::Populated),
        ] {
            let seen = volume(json!({ "description": description, "tags": tags }));
            assert_eq!(seen.content(), content, "{description:?} {tags}");
        }
    }

    #[test]
    fn a_restored_volume_is_incomplete_until_it_has_its_size() {
        for (description, gib, is_incomplete) in [
            ("Created by Belay; snapshot=s-1; gib=20", 19, true),
            ("Created by Belay; snapshot=s-1; gib=20", 20, false),
            ("Created by Belay; snapshot=s-1; gib=20", 21, false),
            ("Created by Belay", 1, false),
            ("by hand; gib=20", 1, false),
        ] {
            let seen = volume(json!({ "description": description, "size_gigabytes": gib }));
            assert_eq!(seen.is_incomplete(), is_incomplete, "{description} {gib}");
        }
    }

    #[test]
    fn a_volume_has_its_droplets_place_and_source() {
        let description = "Created by Belay; snapshot=s-1; gib=5";
        let seen = volume(json!({ "description": description, "droplet_ids": [3, 4] }));
        let shown = seen.volume(Phase::Ready, "region").unwrap();
        let nodes: Vec<_> = shown.nodes.iter().map(NodeId::as_str).collect();
        assert_eq!((shown.bytes, nodes), (10 * GIB, vec!["3", "4"]));
        assert_eq!(shown.content, Some(Content::Populated));
        assert!(shown.source.is_some());
        let place = Topology::new("region", "nyc1").unwrap();
        assert_eq!(shown.place.unwrap().segments(), place.segments());
        let detached = volume(json!({ "droplet_ids": null }));
        assert_eq!(detached.droplets(), [0; 0]);
    }

    #[test]
    fn a_snapshot_of_a_droplet_is_none_and_that_of_a_volume_has_its_size_and_time() {
        let snapshot = |of: &str, created: Value| -> DoSnapshot {
            let snapshot = json!({
                "id": UUID, "name": "snap", "resource_id": UUID, "resource_type": of,
                "min_disk_size": 3, "created_at": created,
            });
            serde_json::from_value(snapshot).unwrap()
        };
        let droplet = snapshot("droplet", Value::Null).snapshot();
        assert!(droplet.unwrap().is_none());
        for (time, seconds) in [
            (json!("2001-09-09T01:46:40Z"), 1_000_000_000),
            (Value::Null, 0),
        ] {
            let seen = snapshot("volume", time).snapshot().unwrap().unwrap();
            assert_eq!(seen.created, UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!((seen.bytes, seen.ready), (3 * GIB, true));
            assert_eq!(seen.source.as_str(), UUID);
        }
    }

    #[test]
    fn an_object_with_an_id_that_is_no_uuid_is_refused() {
        for id in ["../../account", "119192817", ""] {
            let seen = volume(json!({ "id": id }));
            seen.volume(Phase::Ready, "region").unwrap_err();
            for (own, source) in [(id, UUID), (UUID, id)] {
                let snapshot: DoSnapshot = serde_json::from_value(json!({
                    "id": own, "name": "snap", "resource_id": source, "resource_type": "volume",
                    "min_disk_size": 3,
                }))
                .unwrap();
                snapshot.snapshot().unwrap_err();
            }
        }
    }

    /// Statuses and error messages of the cloud, and the failures that they become.
    const REFUSALS: [(u16, &str, Refusal, Kind); 16] = [
        (
            401,
            "Unable to authenticate you",
            Refusal::Other,
            Kind::Unauthenticated,
        ),
        (403, "You are not authorized", Refusal::Other, Kind::Denied),
        (
            403,
            "volume Capacity limit exceeded",
            Refusal::Other,
            Kind::Quota,
        ),
        (404, "not found", Refusal::NotFound, Kind::NotFound),
        (
            409,
            "a volume has the name",
            Refusal::NameTaken,
            Kind::Precondition,
        ),
        (412, "no", Refusal::Other, Kind::Precondition),
        (
            422,
            "Droplet has a Pending Event.",
            Refusal::Pending,
            Kind::Busy,
        ),
        (
            422,
            "volume is already attached",
            Refusal::AttachedAlready,
            Kind::Precondition,
        ),
        (
            422,
            "Attachment not found",
            Refusal::NotAttached,
            Kind::Precondition,
        ),
        (
            422,
            "cannot attach more than 15",
            Refusal::Other,
            Kind::Quota,
        ),
        (422, "capacity limit exceeded", Refusal::Other, Kind::Quota),
        (422, "invalid size", Refusal::Other, Kind::Range),
        (422, "perplexed", Refusal::Other, Kind::Precondition),
        (400, "pending event", Refusal::Other, Kind::Precondition),
        (429, "too many requests", Refusal::Other, Kind::Quota),
        (503, "pending event", Refusal::Other, Kind::Unreachable),
    ];

    #[test]
    fn a_page_is_no_word_of_the_cloud_whatever_its_status() {
        for status in [200, 400, 401, 403, 409, 413, 422] {
            let failure = refused(&Answer::example(status, "<html>blocked</html>"));
            assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
            let part = "which is not an answer of DigitalOcean";
            assert!(failure.message.contains(part), "{failure}");
        }
    }

    #[test]
    fn only_the_cloud_itself_says_that_an_object_is_missing() {
        let nested = json!({ "error": { "code": "not_found", "message": "no" } });
        for own in [json!({ "id": "not_found", "message": "no" }), nested] {
            let answer = Answer::example(404, &own.to_string());
            assert!(is_missing(&answer), "{own}");
            assert_eq!(refused(&answer).kind, Kind::NotFound);
            assert!(!is_missing(&Answer::example(400, &own.to_string())));
        }
        for foreign in [
            "",
            "<html><title>404 Not Found</title></html>",
            r#"{"message": "not_found"}"#,
            r#"{"id": 404}"#,
            r#""not_found""#,
            r#"{"id": "forbidden", "message": "not_found"}"#,
        ] {
            let answer = Answer::example(404, foreign);
            assert!(!is_missing(&answer), "{foreign}");
            assert_eq!(refusal(&answer), Refusal::Other, "{foreign}");
            let failure = refused(&answer);
            assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
            assert!(failure.message.contains("a proxy on the way"), "{failure}");
        }
        let no_snapshot = json!({ "id": "bad_request", "message": "it is not a snapshot" });
        assert!(is_no_snapshot(&Answer::example(
            400,
            &no_snapshot.to_string()
        )));
        for other in [
            "not a snapshot",
            r#"{"id": "bad_request", "message": "no"}"#,
        ] {
            assert!(!is_no_snapshot(&Answer::example(400, other)), "{other}");
        }
    }

    #[test]
    fn the_words_of_a_refusal_decide_within_its_status() {
        for (status, words, why, kind) in REFUSALS {
            let id = if status == 404 { "not_found" } else { "other" };
            let body = json!({ "id": id, "message": words }).to_string();
            let answer = Answer::example(status, &body);
            assert_eq!(refusal(&answer), why, "{status} {words}");
            let failure = refused(&answer);
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.message.contains(words), "{failure}");
            let certainty = match status {
                503 => Certainty::MayBeRunning,
                _ => Certainty::NothingHappened,
            };
            assert_eq!(failure.certainty, certainty, "{failure}");
        }
    }

    #[test]
    fn a_429_is_about_the_rate_of_calls_unless_it_says_something_else() {
        for (words, is_rate) in [
            ("API Rate limit exceeded.", true),
            ("", true),
            ("Volume capacity limit exceeded", false),
            ("Snapshots: One request per 10m0s is allowed", false),
        ] {
            let answer = Answer::example(429, words);
            assert_eq!(is_too_fast(&answer), is_rate, "{words}");
        }
    }
}
