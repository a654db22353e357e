//! What the API says (docs.digitalocean.com/reference/api), in its words, and what Belay makes of
//! it.

use super::about::About;
use crate::backend::time::seconds;
use crate::backend::{Mark, Phase, Snapshot, Volume};
use crate::http::Answer;
use belay_contract::publish_context::Content;
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::request::{NodeId, SnapshotId, VolumeId};
use http::StatusCode;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Bytes of the unit of sizes.
pub(super) const GIB: u64 = 1 << 30;

/// The tag of volumes that a node was given.
pub(super) const USED: &str = "belay-used";

/// Words of refusals, as parts of messages.
const CAPACITY: &str = "capacity limit exceeded";
const SNAPSHOT_RATE: &str = "one request per";
const PENDING: &str = "pending event";
const ATTACHED_ALREADY: &str = "already attached";
const TOO_MANY: &str = "cannot attach more";
const NOT_ATTACHED: &str = "attachment not found";
const SIZE: &str = "invalid size";

#[derive(Debug, Deserialize)]
pub(super) struct Region {
    slug: String,
}

/// A volume. It has no state: an action that runs does not show.
#[derive(Debug, Deserialize)]
pub(super) struct DoVolume {
    pub(super) id: String,
    pub(super) name: String,
    region: Region,
    /// GiB.
    pub(super) size_gigabytes: u64,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    droplet_ids: Option<Vec<u64>>,
    #[serde(default)]
    tags: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneVolume {
    pub(super) volume: DoVolume,
}

#[derive(Debug, Deserialize)]
pub(super) struct Volumes {
    pub(super) volumes: Vec<DoVolume>,
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

/// The last page, where there are more; its address says which.
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
pub(super) struct OneAction {
    pub(super) action: Action,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Actions {
    pub(super) actions: Vec<Action>,
    #[serde(default)]
    pub(super) links: Option<Links>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DoSnapshot {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) resource_id: String,
    resource_type: String,
    /// GiB of the volume when it was cut.
    min_disk_size: u64,
    #[serde(default)]
    created_at: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneSnapshot {
    pub(super) snapshot: DoSnapshot,
}

#[derive(Debug, Deserialize)]
pub(super) struct DoSnapshots {
    pub(super) snapshots: Vec<DoSnapshot>,
    #[serde(default)]
    pub(super) links: Option<Links>,
}

/// How far an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Running,
    Completed,
    Errored,
}

impl Action {
    /// A word that is not known is that of an action that runs.
    pub(super) fn status(&self) -> Status {
        match self.status.as_str() {
            "completed" => Status::Completed,
            "errored" => Status::Errored,
            _ => Status::Running,
        }
    }

    /// A word that is not known is that of an attach, too: only detach and resize are not.
    pub(super) fn is_attach(&self) -> bool {
        let others = ["detach", "resize"];
        !others.iter().any(|other| self.kind.starts_with(other))
    }

    /// When it began, by the cloud's clock, in seconds since 1970.
    pub(super) fn began(&self) -> Option<u64> {
        seconds(self.started_at.as_deref()?)
    }
}

impl DoVolume {
    pub(super) fn id(&self) -> Result<VolumeId, Failure> {
        VolumeId::new(self.id.as_str())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.size_gigabytes.saturating_mul(GIB)
    }

    pub(super) fn region(&self) -> &str {
        &self.region.slug
    }

    /// What Belay wrote of it when it created it.
    pub(super) fn about(&self) -> Option<About> {
        About::read(self.description.as_deref()?)
    }

    pub(super) fn droplets(&self) -> &[u64] {
        self.droplet_ids.as_deref().unwrap_or_default()
    }

    /// Tags are equal in any case: the cloud spells them as they were first written.
    pub(super) fn has_tag(&self, tag: &str) -> bool {
        let mut tags = self.tags.iter().flatten();
        tags.any(|own| own.eq_ignore_ascii_case(tag))
    }

    /// Only a volume that Belay has created empty, and that no node was given, is new. Of a volume
    /// that another program has created, nothing is known.
    pub(super) fn content(&self) -> Content {
        match self.about() {
            None => Content::Unknown,
            Some(about) if about.snapshot.is_some() => Content::Populated,
            Some(_) if self.has_tag(USED) => Content::Used,
            Some(_) => Content::New,
        }
    }

    /// It is from a snapshot, and has not grown yet to the size that it was created for.
    pub(super) fn is_incomplete(&self) -> bool {
        let about = self.about().unwrap_or_default();
        about.gib.is_some_and(|gib| self.size_gigabytes < gib)
    }

    /// In the words of the backend.
    pub(super) fn volume(&self, phase: Phase, topology_key: &str) -> Result<Volume, Failure> {
        let nodes = self.droplets().iter();
        let nodes = nodes.map(|droplet| NodeId::new(droplet.to_string().as_str()));
        Ok(Volume {
            id: self.id()?,
            phase,
            mark: Mark::None,
            bytes: self.bytes(),
            usage: None,
            context: None,
            nodes: nodes.collect::<Result<_, _>>()?,
            source: self.about().and_then(|about| about.source()),
            place: Topology::new(topology_key, &self.region.slug)
                .ok()
                .map(Arc::new),
            content: Some(self.content()),
            attached_at: None,
        })
    }
}

impl DoSnapshot {
    /// In the words of the backend; none if it is not of a volume. It can be restored at once.
    pub(super) fn snapshot(&self) -> Result<Option<Snapshot>, Failure> {
        if self.resource_type != "volume" {
            return Ok(None);
        }
        let created = self.created_at.as_deref().and_then(seconds).unwrap_or(0);
        Ok(Some(Snapshot {
            id: SnapshotId::new(self.id.as_str())?,
            phase: Phase::Ready,
            mark: Mark::None,
            source: VolumeId::new(self.resource_id.as_str())?,
            bytes: self.min_disk_size.saturating_mul(GIB),
            created: UNIX_EPOCH + Duration::from_secs(created),
            ready: true,
            damage: None,
        }))
    }
}

/// A refusal that matters to the call that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// An event of the droplet, or of the volume, runs.
    Pending,
    AttachedAlready,
    NotAttached,
    NameTaken,
    NotFound,
    Other,
}

/// Which refusal it is. The cloud's errors have no codes: the words of its messages decide.
pub(super) fn refusal(answer: &Answer) -> Refusal {
    let says = |words| says(answer, words);
    match answer.status {
        StatusCode::NOT_FOUND => Refusal::NotFound,
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

/// Whether a 429 is about the rate of all calls. The cloud also uses it for limits of one volume,
/// and for quotas.
pub(super) fn is_too_fast(answer: &Answer) -> bool {
    !says(answer, CAPACITY) && !says(answer, SNAPSHOT_RATE)
}

/// The failure of a refused call. After a 5xx the call may have been begun.
pub(super) fn refused(answer: &Answer) -> Failure {
    let kind = match answer.status {
        StatusCode::UNAUTHORIZED => Kind::Unauthenticated,
        StatusCode::FORBIDDEN if !says(answer, CAPACITY) => Kind::Denied,
        StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => Kind::Quota,
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::UNPROCESSABLE_ENTITY if says(answer, TOO_MANY) || says(answer, CAPACITY) => {
            Kind::Quota
        }
        StatusCode::UNPROCESSABLE_ENTITY if says(answer, PENDING) => Kind::Busy,
        StatusCode::UNPROCESSABLE_ENTITY if says(answer, SIZE) => Kind::Range,
        status if status.is_server_error() => Kind::Unreachable,
        _ => Kind::Precondition,
    };
    let failure = Failure::new(kind, answer.refusal());
    match answer.status.is_server_error() {
        true => failure.may_be_running(),
        false => failure,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_last_page_is_that_of_its_address() {
        let last = |last: &str| {
            let links = serde_json::json!({ "pages": { "last": last } });
            super::last(Some(&serde_json::from_value(links).unwrap()))
        };
        assert_eq!(last("https://a/v2/b/actions?per_page=200&page=3"), Some(3));
        assert_eq!(last("https://a/v2/b/actions?page=12&per_page=1"), Some(12));
        assert_eq!(last("https://a/v2/b/actions?per_page=200"), None);
        assert_eq!(super::last(None), None);
    }
}
