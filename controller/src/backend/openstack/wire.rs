//! The messages of Keystone v3, Cinder v3 and Nova v2.1 (docs.openstack.org/api-ref), and their
//! conversion to the types of the backend.

mod project;
mod refusal;
mod snapshot;

use super::catalog::Service;
use super::id;
use crate::backend::cloud::time::seconds;
use crate::backend::{Attempt, Mark, Phase, Volume};
use belay_contract::publish_context::Content;
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Context, Name, NodeId, SnapshotId, VolumeId};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(super) use project::{AbsoluteLimits, AvailabilityZones, VolumeType};
pub(super) use refusal::{is_forbidden, is_missing, is_own, login_refused, refused, refused_for};
pub(super) use snapshot::{
    ATTEMPT as SNAPSHOT_ATTEMPT, BASIS, CARRIED, CLAIM as SNAPSHOT_CLAIM, CinderSnapshot, Restored,
};

/// Parameters of a StorageClass.
pub(super) const TYPE: &str = "type";
pub(super) const AVAILABILITY: &str = "availability";

/// Belay's keys in a volume's metadata. Cinder limits keys and values to 255 bytes.
pub(super) const ATTEMPT: &str = "belay.dev/attempt";
/// The key whose value is the ID of the volume, once the volume is claimed.
pub(super) const CLAIM: &str = "belay.dev/claim";
/// The key that marks a volume which was attached. The value is the volume's own ID, so that the
/// mark is ignored if Cinder copies the metadata to another volume.
pub(super) const USED: &str = "belay.dev/used";
/// The key that marks a volume which several servers may use at once. The value is the volume's own
/// ID.
pub(super) const SHARED: &str = "belay.dev/shared";
/// The key that marks a volume whose type a VolumeAttributesClass has changed. The value is the
/// volume's own ID.
pub(super) const RETYPED: &str = "belay.dev/retyped";
/// The key whose value is the zone in the storage class. Cinder may have selected another zone.
pub(super) const ZONE: &str = "belay.dev/availability";
/// The key whose value is the source of the volume: `snapshot:ID` or `volume:ID`.
pub(super) const SOURCE: &str = "belay.dev/source";

/// Cinder's own key in the metadata of a volume from a backup.
const FROM_BACKUP: &str = "src_backup_id";

/// The key with which cinder-csi-plugin records in the volume context that the filesystem may be
/// smaller than the volume.
pub(super) const RESIZE_REQUIRED: &str = "cinder.csi.openstack.org/resizeRequired";

/// A part of the error that Nova returns if it already has a record of the volume's attachment
/// (`nova/compute/api.py`, Nova 34).
pub(super) const ATTACHED_ALREADY: &str = "is already attached to instances";

/// The unit of Cinder's volume sizes, in bytes.
pub(super) const GIB: u64 = 1 << 30;

/// The assumed lifetime of a token whose times cannot be parsed.
const LIFETIME_UNKNOWN: Duration = Duration::from_secs(240);

#[derive(Debug, Deserialize)]
pub(super) struct Token {
    issued_at: String,
    expires_at: String,
    #[serde(default)]
    pub(super) catalog: Vec<Service>,
    /// The project of the token.
    #[serde(default)]
    project: Option<Project>,
}

#[derive(Debug, Deserialize)]
struct Project {
    id: String,
}

impl Token {
    /// Returns the ID of the token's project.
    pub(super) fn project(&self) -> Option<&str> {
        Some(self.project.as_ref()?.id.as_str())
    }

    /// Returns the lifetime of the token. The calculation uses only the times in Keystone's
    /// response, since the local clock may differ.
    pub(super) fn lifetime(&self) -> Duration {
        let lifetime = || seconds(&self.expires_at)?.checked_sub(seconds(&self.issued_at)?);
        lifetime().map_or(LIFETIME_UNKNOWN, Duration::from_secs)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) user_message: String,
    /// The time of the message in UTC, to the second, as text that sorts by time.
    pub(super) created_at: Option<String>,
    /// The ID of the event, such as `VOLUME_VOLUME_007_003`; the last two parts are the action and
    /// the detail.
    #[serde(default)]
    pub(super) event_id: String,
}

/// A page of volumes or snapshots.
#[derive(Debug, Deserialize)]
pub(super) struct Listed<T> {
    #[serde(alias = "volumes", alias = "snapshots")]
    pub(super) items: Vec<T>,
    /// The link to the next page, if there is one.
    #[serde(default, alias = "volumes_links", alias = "snapshots_links")]
    pub(super) links: Vec<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct CinderVolume {
    pub(super) id: String,
    #[serde(default)]
    name: Option<String>,
    pub(super) status: String,
    /// The size in GiB.
    pub(super) size: u64,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    attachments: Vec<CinderAttachment>,
    #[serde(default)]
    availability_zone: Option<String>,
    #[serde(default)]
    snapshot_id: Option<String>,
    #[serde(default)]
    source_volid: Option<String>,
    #[serde(default)]
    description: Option<String>,
    /// The time of the last change, in UTC.
    #[serde(default)]
    pub(super) updated_at: Option<String>,
    /// Whether Cinder accepts attachments to several servers. Cinder accepts several attachments if
    /// the type had the extra spec `multiattach` when the volume got the type.
    #[serde(default)]
    multiattach: bool,
    /// The name of the volume's type.
    #[serde(default)]
    pub(super) volume_type: Option<String>,
}

/// The origin of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This driver created the volume empty.
    Empty,
    /// The volume was created from a snapshot, a volume or a backup.
    Copy,
    /// Another program created the volume.
    Foreign,
}

#[derive(Clone, Debug, Deserialize)]
struct CinderAttachment {
    server_id: String,
    /// The time of the attachment, in UTC.
    #[serde(default)]
    attached_at: Option<String>,
}

impl CinderVolume {
    pub(super) fn is_named(&self, name: &Name) -> bool {
        self.name.as_deref() == Some(name.as_str())
    }

    fn has(&self, key: &str) -> Option<bool> {
        self.metadata.get(key).map(|value| *value == self.id)
    }

    /// Whether the volume's metadata records that the volume was attached before.
    pub(super) fn was_used(&self) -> bool {
        self.has(USED) == Some(true)
    }

    /// Whether all attach calls so far have allowed several nodes to use the volume.
    pub(super) fn is_shared(&self) -> bool {
        self.has(SHARED) == Some(true)
    }

    /// Whether the volume's type may differ from its type at the creation.
    pub(super) fn is_retyped(&self) -> bool {
        self.has(RETYPED) == Some(true)
    }

    /// Whether the metadata may be a copy of the source volume's metadata.
    fn has_others_metadata(&self) -> bool {
        self.metadata.contains_key(FROM_BACKUP)
            || self.restored().is_some()
            || self.has(CLAIM) == Some(false)
    }

    /// Returns the zone in the storage class at the time of the creation.
    fn asked_zone(&self) -> Option<&String> {
        let mark = self.metadata.get(ZONE);
        mark.filter(|_| !self.has_others_metadata())
    }

    /// Returns the zone of the volume. Returns `None` if Cinder does not report the zone.
    pub(super) fn zone(&self) -> Option<&str> {
        self.availability_zone.as_deref()
    }

    /// Returns the value of [`Volume::parameters`] for this volume.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let kind = self.volume_type.as_ref().filter(|_| !self.is_retyped());
        let (is, asked) = (self.availability_zone.as_ref(), self.asked_zone());
        let asked = asked.filter(|asked| Some(*asked) != is);
        let shown = [(TYPE, kind), (AVAILABILITY, is), (AVAILABILITY, asked)];
        let shown = shown.into_iter();
        shown
            .filter_map(|(key, is)| Some((key, is?.clone())))
            .collect()
    }

    /// Returns the time of the first attachment, in seconds since 1970; `None` if an attachment has
    /// no time.
    fn attached_at(&self) -> Option<u64> {
        let times = self.attachments.iter();
        let times = times.map(|attachment| seconds(attachment.attached_at.as_deref()?));
        times.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Returns the content of the volume. The volume is new only if this driver has created it
    /// empty and it was never attached. The content of volumes of other programs is unknown.
    fn content(&self) -> Content {
        match (self.origin(), self.was_used()) {
            (Origin::Empty, false) => Content::New,
            (Origin::Empty, true) => Content::Used,
            (Origin::Copy, _) => Content::Populated,
            (Origin::Foreign, _) => Content::Unknown,
        }
    }

    /// Returns the origin. This driver may have claimed a volume of another program for its name,
    /// but the metadata of that volume contains no creation attempt.
    pub(super) fn origin(&self) -> Origin {
        let is_ours = self.metadata.contains_key(ATTEMPT) && self.has(CLAIM) == Some(true);
        match self.snapshot_id.is_some()
            || self.source_volid.is_some()
            || self.metadata.contains_key(SOURCE)
            || self.has_others_metadata()
        {
            true => Origin::Copy,
            false if is_ours => Origin::Empty,
            false => Origin::Foreign,
        }
    }

    fn phase(&self) -> Phase {
        match self.status.as_str() {
            "available" | "in-use" => Phase::Ready,
            "deleting" => Phase::Deleting,
            status if status.starts_with("error") => {
                Phase::Failed(Failure::new(Kind::System, failed(status)))
            }
            status => Phase::Busy(status.to_owned()),
        }
    }

    /// Returns the claim that Cinder will copy to a volume that is restored from a backup of this
    /// volume: the claim of this volume, or else the ID of this volume.
    pub(super) fn carried(&self) -> &str {
        self.metadata.get(CLAIM).unwrap_or(&self.id)
    }

    /// Returns the marks in the description. The marks are ignored if another program has restored
    /// the volume from a backup: in this case, Cinder has copied the description, and the claim in
    /// the metadata is the claim of the volume that was backed up.
    fn restored(&self) -> Option<Restored> {
        let restored = Restored::read(self.description.as_deref()?)?;
        let claim = self.metadata.get(CLAIM);
        let is_own = claim.is_none_or(|claim| [&self.id, &restored.carried].contains(&claim));
        is_own.then_some(restored)
    }

    fn mark(&self) -> Mark {
        match self.restored() {
            Some(restored) if self.has(CLAIM) != Some(true) => {
                Mark::Open(Attempt::of_mark(&restored.attempt))
            }
            _ => mark_of(&self.id, &self.metadata, ATTEMPT, CLAIM),
        }
    }

    /// Returns the source of the volume. An ID that CSI does not allow is ignored, since this
    /// driver does not use such IDs.
    fn source(&self) -> Option<ContentSource> {
        let snapshot = |id: &str| SnapshotId::new(id).map(ContentSource::Snapshot).ok();
        let volume = |id: &str| VolumeId::new(id).map(ContentSource::Volume).ok();
        if let Some(restored) = self.restored() {
            return snapshot(&restored.backup);
        }
        match (&self.snapshot_id, &self.source_volid) {
            (Some(id), _) => snapshot(id),
            (None, Some(id)) => volume(id),
            (None, None) => match self.metadata.get(SOURCE)?.split_once(':')? {
                ("snapshot", id) => snapshot(id),
                ("volume", id) => volume(id),
                _ => None,
            },
        }
    }

    /// Returns the volume context that the node agent of cinder-csi-plugin requires, in case an
    /// operator switches back to that driver.
    fn context(&self) -> Result<Option<Context>, Failure> {
        if self.origin() != Origin::Copy {
            return Ok(None);
        }
        let resize = [(RESIZE_REQUIRED.to_owned(), "true".to_owned())];
        Context::new("volume_context", resize).map(Some)
    }

    /// Converts the volume to the backend's type. The volume's zone is reported under the topology
    /// key, if there is a key.
    pub(super) fn volume(&self, topology_key: Option<&str>) -> Result<Volume, Failure> {
        // During a live migration, or after a failed one, one server may have two attachments.
        let nodes: BTreeSet<_> = self.attachments.iter().map(|it| &it.server_id).collect();
        let nodes = nodes.into_iter().map(|id| NodeId::new(id.as_str()));
        let zone = topology_key.zip(self.availability_zone.as_deref());
        let place = zone.and_then(|(key, zone)| Topology::of_zone(key, zone).ok());
        Ok(Volume {
            // A volume without a name cannot be the requested volume.
            name: Some(self.name.clone().unwrap_or_default()),
            mark: self.mark(),
            bytes: self.size.saturating_mul(GIB),
            context: self.context()?,
            nodes: nodes.collect::<Result<_, _>>()?,
            source: self.source(),
            place: place.map(Arc::new),
            content: Some(self.content()),
            attached_at: self.attached_at(),
            shares: self.multiattach,
            parameters: self.parameters(),
            ..Volume::new(id::volume(&self.id)?, self.phase())
        })
    }
}

/// Returns the value of [`SOURCE`] for a source.
pub(super) fn source_mark(source: &ContentSource) -> String {
    match source {
        ContentSource::Snapshot(id) => format!("snapshot:{id}"),
        ContentSource::Volume(id) => format!("volume:{id}"),
    }
}

/// Returns the mark of the volume or snapshot with this ID.
fn mark_of(id: &str, metadata: &BTreeMap<String, String>, attempt: &str, claim: &str) -> Mark {
    match (metadata.get(claim), metadata.get(attempt)) {
        (Some(claimed), _) if claimed == id => Mark::Claimed,
        (Some(_), _) => Mark::Copied,
        (None, Some(attempt)) => Mark::Open(Attempt::of_mark(attempt)),
        (None, None) => Mark::None,
    }
}

/// Returns advice about the volume's data, for a volume with an error status. A failed creation
/// results in the status `error`, and never in a different error status.
fn failed(status: &str) -> String {
    let reason = "\"openstack volume message list\" has the reason";
    match status {
        "error" => format!("Cinder reports the status error; {reason}"),
        _ => format!(
            "Cinder reports the status {status}, and its data may be intact; {reason}; after a \
             check, an administrator can reset the status"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const V1: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";
    const V2: &str = "506f78a4-e098-11e5-ad9f-000f53306ae2";

    #[test]
    fn a_volume_was_attached_when_the_first_of_its_attachments_was() {
        let attached_at = |times: &[Option<&str>]| {
            let entry = |time: &Option<&str>| json!({"server_id": "s-1", "attached_at": time});
            let attachments: Vec<_> = times.iter().map(entry).collect();
            let volume: CinderVolume = serde_json::from_value(json!({
                "id": V1, "status": "in-use", "size": 3, "attachments": attachments,
            }))
            .unwrap();
            volume.volume(None).unwrap().attached_at
        };
        let (first, second) = ("1970-01-01T00:00:05.000000", "1970-01-01T00:00:09.000000");
        assert_eq!(attached_at(&[]), None);
        assert_eq!(attached_at(&[Some(first)]), Some(5));
        assert_eq!(attached_at(&[Some(second), Some(first)]), Some(5));
        assert_eq!(attached_at(&[Some(first), None]), None);
        assert_eq!(attached_at(&[Some("today")]), None);
    }

    #[test]
    fn the_lifetime_of_a_token_is_the_difference_of_its_times() {
        for (issued, expires, lifetime) in [
            (
                "2026-11-22T23:59:55.000000Z",
                "2026-11-23T00:59:55.000000Z",
                3600,
            ),
            (
                "2024-02-28T00:00:00.000000Z",
                "2024-03-01T00:00:00.000000Z",
                2 * 86400,
            ),
            ("2025-12-31T23:59:59Z", "2026-01-01T00:00:09Z", 10),
            ("yesterday", "2026-01-01T00:00:09Z", 240),
            ("2026-01-01T00:00:09Z", "2025-01-01T00:00:09Z", 240),
        ] {
            let token = Token {
                issued_at: issued.to_owned(),
                expires_at: expires.to_owned(),
                catalog: Vec::new(),
                project: None,
            };
            assert_eq!(token.lifetime().as_secs(), lifetime, "{issued}");
        }
    }

    fn volume(status: &str, metadata: serde_json::Value) -> CinderVolume {
        serde_json::from_value(json!({
            "id": V1, "name": "pvc-1", "status": status, "size": 3, "metadata": metadata,
            "attachments": [{"server_id": "s-1", "device": "/dev/vdb"}],
            "availability_zone": "az-a", "snapshot_id": null, "multiattach": false,
        }))
        .unwrap()
    }

    #[test]
    fn a_status_is_a_phase_and_one_that_is_not_known_is_waited_for() {
        let phase = |status| volume(status, json!({})).volume(None).unwrap().phase;
        assert_eq!(phase("available"), Phase::Ready);
        assert_eq!(phase("in-use"), Phase::Ready);
        assert_eq!(phase("deleting"), Phase::Deleting);
        assert_eq!(phase("reserved"), Phase::Busy("reserved".to_owned()));
        for status in ["error", "error_extending", "error_deleting"] {
            assert!(matches!(phase(status), Phase::Failed(_)), "{status}");
        }
    }

    #[test]
    fn marks_count_only_with_the_volumes_own_id() {
        let mark = |metadata| volume("available", metadata).mark();
        assert_eq!(mark(json!({})), Mark::None);
        let open = Mark::Open(Attempt::of_mark("a-1"));
        assert_eq!(mark(json!({ATTEMPT: "a-1"})), open);
        assert_eq!(mark(json!({ATTEMPT: "a-1", CLAIM: V1})), Mark::Claimed);
        assert_eq!(mark(json!({ATTEMPT: "a-1", CLAIM: V2})), Mark::Copied);
        assert!(volume("available", json!({USED: V1})).was_used());
        assert!(!volume("available", json!({USED: V2})).was_used());
    }

    #[test]
    fn only_a_volume_with_an_attempt_and_its_own_claim_was_made_empty() {
        let origin = |metadata| volume("available", metadata).origin();
        assert_eq!(origin(json!({ATTEMPT: "a-1", CLAIM: V1})), Origin::Empty);
        assert_eq!(origin(json!({})), Origin::Foreign);
        assert_eq!(origin(json!({ATTEMPT: "a-1"})), Origin::Foreign);
        // This driver has claimed the volume for its name, but another driver has created the
        // volume.
        assert_eq!(origin(json!({CLAIM: V1})), Origin::Foreign);
        assert_eq!(origin(json!({ATTEMPT: "a-1", CLAIM: V2})), Origin::Copy);
        let mut copy = volume("available", json!({ATTEMPT: "a-1", CLAIM: V1}));
        copy.snapshot_id = Some("s-1".to_owned());
        assert_eq!(copy.origin(), Origin::Copy);
        // A volume whose metadata contains `SOURCE`, with any value, is treated as a copy even if
        // Cinder reports no source.
        for source in ["snapshot:s-1", "volume:v-2", "\u{7f}", ""] {
            let metadata = json!({ATTEMPT: "a-1", CLAIM: V1, SOURCE: source});
            assert_eq!(origin(metadata), Origin::Copy, "{source:?}");
        }
    }

    #[test]
    fn a_copy_has_its_source_and_the_word_of_the_other_driver_that_its_filesystem_grows() {
        let snapshot = || ContentSource::Snapshot(SnapshotId::new("s-1").unwrap());
        let shown = |snapshot_id: Option<&str>, source_volid: Option<&str>, mark: Option<&str>| {
            let mut copy = volume("available", json!({ATTEMPT: "a-1", CLAIM: V1}));
            copy.snapshot_id = snapshot_id.map(str::to_owned);
            copy.source_volid = source_volid.map(str::to_owned);
            let mark = mark.map(|mark| (SOURCE.to_owned(), mark.to_owned()));
            copy.metadata.extend(mark);
            copy.volume(None).unwrap()
        };
        let of_volume = Some(ContentSource::Volume(VolumeId::new(V2).unwrap()));
        for (copy, source) in [
            (shown(Some("s-1"), None, None), Some(snapshot())),
            (shown(Some("s-1"), Some(V2), None), Some(snapshot())),
            (shown(None, Some(V2), None), of_volume.clone()),
            (shown(None, None, Some("snapshot:s-1")), Some(snapshot())),
            (shown(None, None, Some(&format!("volume:{V2}"))), of_volume),
            // Reads and lists succeed even if Cinder's response contains an invalid ID.
            (shown(Some("s\n1"), None, None), None),
            (shown(None, None, Some("volume:")), None),
            (shown(None, None, Some("image:i-1")), None),
        ] {
            assert_eq!(copy.source, source, "{copy:?}");
            assert_eq!(copy.content, Some(Content::Populated));
            let context = copy.context.unwrap();
            assert_eq!(context.get(RESIZE_REQUIRED), Some("true"));
        }
        assert_eq!(shown(None, None, None).context, None);
    }

    #[test]
    fn a_volume_has_its_size_its_zone_and_its_nodes() {
        let shown = volume("in-use", json!({}));
        assert_eq!(shown.volume(None).unwrap().place, None);
        let volume = shown.volume(Some("topology/zone")).unwrap();
        assert_eq!(volume.bytes, 3 << 30);
        assert_eq!(volume.nodes, [NodeId::new("s-1").unwrap()]);
        assert_eq!(volume.place.unwrap().describe(), "topology/zone=az-a");
    }

    /// A live migration causes two attachments to one server.
    #[test]
    fn two_attachments_of_one_server_are_one_node() {
        let mut shown = volume("in-use", json!({}));
        let more = json!([{"server_id": "s-1"}, {"server_id": "s-0"}, {"server_id": "s-1"}]);
        let more: Vec<_> = serde_json::from_value(more).unwrap();
        shown.attachments.extend(more);
        let nodes = ["s-0", "s-1"].map(|id| NodeId::new(id).unwrap());
        assert_eq!(shown.volume(None).unwrap().nodes, nodes);
    }

    #[test]
    fn only_the_plain_status_of_failure_leaves_open_that_the_data_may_be_lost() {
        for (status, is_intact) in [("error", false), ("error_deleting", true)] {
            let Phase::Failed(failure) = volume(status, json!({})).phase() else {
                panic!("{status}");
            };
            assert!(failure.message.contains(status), "{failure}");
            let is_said = failure.message.contains("its data may be intact");
            assert_eq!(is_said, is_intact, "{failure}");
            assert!(failure.message.contains("volume message list"), "{failure}");
        }
    }

    /// The name is returned unchanged, since `operation::engine` compares it with the requested
    /// name.
    #[test]
    fn a_volume_has_its_id_and_its_name_and_with_another_form_of_id_it_is_refused() {
        let shown = |id: &str, name: serde_json::Value| {
            let volume = json!({"id": id, "name": name, "status": "available", "size": 3});
            let volume: CinderVolume = serde_json::from_value(volume).unwrap();
            volume.volume(None)
        };
        for (name, expected) in [(json!("pvc-1"), "pvc-1"), (json!(null), "")] {
            assert_eq!(shown(V1, name).unwrap().name.as_deref(), Some(expected));
        }
        for id in ["../../snapshots/1", "", &V1.to_uppercase()] {
            shown(id, json!("pvc-1")).unwrap_err();
        }
    }
}
