//! Encodes results as CSI messages.

use crate::backend::{Attachment, Page, Snapshot, SnapshotPage, Unhealthy, UnhealthyPage, Volume};
use crate::operation::Room;
use belay_contract::drivers::VOLUME_NAME;
use belay_contract::mark::MarkSecret;
use belay_contract::publish_context::PublishContext;
use belay_proto::csi::v1 as csi;
use belay_server::health::Conditions;
use belay_server::request::{ContentSource, Context, NodeId, Segments};
use std::collections::HashMap;

/// Encodes a volume.
pub(super) fn volume(volume: &Volume) -> csi::Volume {
    let place = volume.place.as_ref();
    let topology = place.map(|place| topology(place.segments()));
    csi::Volume {
        capacity_bytes: bytes(volume.bytes),
        volume_id: volume.id.as_str().to_owned(),
        volume_context: volume.context.as_ref().map_or_else(HashMap::new, entries),
        content_source: volume.source.as_ref().map(source),
        accessible_topology: topology.into_iter().collect(),
    }
}

/// Encodes a volume with its name in the volume context, for responses that are shown to operators.
fn shown(shown: &Volume) -> csi::Volume {
    let mut encoded = volume(shown);
    if let Some(name) = shown.name.as_ref().filter(|name| !name.is_empty()) {
        let entry = (VOLUME_NAME.to_owned(), name.clone());
        encoded.volume_context.extend([entry]);
    }
    encoded
}

/// Encodes a topology.
pub(super) fn topology(segments: Segments) -> csi::Topology {
    csi::Topology {
        segments: segments.into_iter().collect(),
    }
}

fn entries(context: &Context) -> HashMap<String, String> {
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    context.iter().map(owned).collect()
}

fn source(source: &ContentSource) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let source = match source {
        ContentSource::Snapshot(id) => Type::Snapshot(SnapshotSource {
            snapshot_id: id.as_str().to_owned(),
        }),
        ContentSource::Volume(id) => Type::Volume(VolumeSource {
            volume_id: id.as_str().to_owned(),
        }),
    };
    csi::VolumeContentSource {
        r#type: Some(source),
    }
}

/// Encodes a snapshot.
pub(super) fn snapshot(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: bytes(snapshot.bytes),
        snapshot_id: snapshot.id.as_str().to_owned(),
        source_volume_id: snapshot.source.as_str().to_owned(),
        creation_time: Some(snapshot.created.into()),
        ready_to_use: snapshot.ready,
        ..csi::Snapshot::default()
    }
}

/// Encodes a page of snapshots.
pub(super) fn snapshots(page: &SnapshotPage) -> csi::ListSnapshotsResponse {
    let entry = |listed| csi::list_snapshots_response::Entry {
        snapshot: Some(snapshot(listed)),
    };
    csi::ListSnapshotsResponse {
        entries: page.snapshots.iter().map(entry).collect(),
        next_token: page.next.clone().unwrap_or_default(),
    }
}

/// Encodes the publish context of an attached volume, with the secrets of its format mark. If
/// `disk_name_key` is set, the context also contains the disk's name under that key, so that the
/// driver that Belay has replaced can take the volume over again.
pub(super) fn publish_context(
    attachment: &Attachment,
    marks: Vec<MarkSecret>,
    disk_name_key: Option<&str>,
) -> HashMap<String, String> {
    let context = PublishContext {
        transport: attachment.transport.clone(),
        bytes: attachment.bytes,
        content: attachment.content,
        read_only: attachment.spec.read_only,
        attached_at: attachment.attached_at,
        marks,
    };
    let name = disk_name_key.zip(attachment.disk_name.as_ref());
    let name = name.map(|(key, name)| (key.to_owned(), name.clone()));
    context.entries().chain(name).collect()
}

/// Encodes a page of volumes, each with its nodes and, if known, its condition.
pub(super) fn page(page: &Page, conditions: Option<&[Conditions]>) -> csi::ListVolumesResponse {
    use csi::list_volumes_response::{Entry, VolumeStatus};
    let condition = |at: usize| conditions.and_then(|all| all.get(at));
    let entry = |(at, listed): (usize, &Volume)| Entry {
        volume: Some(shown(listed)),
        status: Some(VolumeStatus {
            published_node_ids: node_ids(&listed.nodes),
            volume_condition: condition(at).map(Conditions::volume_condition),
        }),
    };
    csi::ListVolumesResponse {
        entries: page.volumes.iter().enumerate().map(entry).collect(),
        next_token: page.next.clone().unwrap_or_default(),
    }
}

/// Encodes a page of unhealthy volumes.
pub(super) fn unhealthy(page: &UnhealthyPage) -> csi::ControllerListVolumeHealthResponse {
    let entry = |volume: &Unhealthy| volume.conditions.volume_health(volume.id.as_str());
    csi::ControllerListVolumeHealthResponse {
        entries: page.volumes.iter().map(entry).collect(),
        next_token: page.next.clone().unwrap_or_default(),
    }
}

/// Encodes a volume with its nodes and, if known, its condition.
pub(super) fn found(
    found: &Volume,
    condition: Option<&Conditions>,
) -> csi::ControllerGetVolumeResponse {
    use csi::controller_get_volume_response::VolumeStatus;
    csi::ControllerGetVolumeResponse {
        volume: Some(shown(found)),
        status: Some(VolumeStatus {
            published_node_ids: node_ids(&found.nodes),
            volume_condition: condition.map(Conditions::volume_condition),
        }),
    }
}

/// Encodes the capacity for new volumes.
pub(super) fn room(room: Room) -> csi::GetCapacityResponse {
    csi::GetCapacityResponse {
        available_capacity: bytes(room.available),
        maximum_volume_size: room.largest.map(bytes),
        minimum_volume_size: Some(bytes(room.smallest)),
    }
}

/// Converts a size to the signed integer of the protocol. A size that exceeds the signed range,
/// which no file has, becomes the maximum.
pub(super) fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn node_ids(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(|node| node.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{AttachmentSpec, Mark, Phase};
    use belay_contract::disk::DiskIdentity;
    use belay_contract::publish_context::{Content, Transport};
    use belay_contract::topology::Topology;
    use belay_server::health::{Reason, Severity};
    use belay_server::request::{AccessMode, SnapshotId, VolumeId};
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    fn id(id: &str) -> VolumeId {
        VolumeId::new(id).unwrap()
    }

    fn plain(bytes: u64) -> Volume {
        Volume {
            id: id("vol-1"),
            name: None,
            phase: Phase::Ready,
            mark: Mark::None,
            bytes,
            usage: None,
            context: None,
            nodes: Vec::new(),
            source: None,
            place: None,
            content: None,
            attached_at: None,
            shares: false,
            parameters: Vec::new(),
        }
    }

    /// Returns a volume with all optional properties.
    fn full() -> Volume {
        let context = [("export".to_owned(), "/a".to_owned())];
        let nodes = ["node-1", "node-2"].map(|node| NodeId::new(node).unwrap());
        Volume {
            context: Some(Context::new("volume_context", context).unwrap()),
            nodes: nodes.to_vec(),
            source: Some(ContentSource::Volume(id("vol-0"))),
            place: Some(Arc::new(Topology::new("zone.example.org", "a").unwrap())),
            ..plain(5)
        }
    }

    fn sick() -> Conditions {
        let mut conditions = Conditions::default();
        conditions.add(Reason::new("Lost", Severity::DataLoss), "its disk is gone");
        conditions
    }

    fn map(key: &str, value: &str) -> HashMap<String, String> {
        HashMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_volume_has_what_is_known_of_it_and_nothing_else() {
        let plain = volume(&plain(u64::MAX));
        let expected = csi::Volume {
            // The size exceeds the range of the protocol.
            capacity_bytes: i64::MAX,
            volume_id: "vol-1".to_owned(),
            ..Default::default()
        };
        assert_eq!(plain, expected);
        let origin = Type::Volume(VolumeSource {
            volume_id: "vol-0".to_owned(),
        });
        let expected = csi::Volume {
            capacity_bytes: 5,
            volume_id: "vol-1".to_owned(),
            volume_context: map("export", "/a"),
            content_source: Some(csi::VolumeContentSource {
                r#type: Some(origin),
            }),
            accessible_topology: vec![csi::Topology {
                segments: map("zone.example.org", "a"),
            }],
        };
        assert_eq!(volume(&full()), expected);
        let snapshot = SnapshotId::new("snap-1").unwrap();
        let of_snapshot = source(&ContentSource::Snapshot(snapshot)).r#type;
        let snapshot_id = "snap-1".to_owned();
        assert_eq!(
            of_snapshot,
            Some(Type::Snapshot(SnapshotSource { snapshot_id }))
        );
    }

    #[test]
    fn a_listed_volume_has_its_name_and_a_created_one_does_not() {
        let named = |name: &str| Volume {
            name: Some(name.to_owned()),
            ..plain(5)
        };
        let expected = map("belay.dev/name", "pvc-1");
        let listed = Page {
            volumes: vec![named("pvc-1"), named("")],
            next: None,
        };
        let entries = page(&listed, None).entries.into_iter();
        let contexts = entries.map(|entry| entry.volume.unwrap().volume_context);
        assert_eq!(
            contexts.collect::<Vec<_>>(),
            [expected.clone(), HashMap::new()]
        );
        let alone = found(&named("pvc-1"), None).volume.unwrap();
        assert_eq!(alone.volume_context, expected);
        // The volume context in the response to CreateVolume is passed to the nodes.
        assert_eq!(volume(&named("pvc-1")).volume_context, HashMap::new());
    }

    #[test]
    fn a_volume_has_its_nodes_and_its_condition_alone_and_in_a_page() {
        let (condition, nodes) = (sick(), ["node-1", "node-2"]);
        let one = found(&full(), Some(&condition));
        assert_eq!(one.volume, Some(volume(&full())));
        let status = one.status.unwrap();
        assert_eq!(status.published_node_ids, nodes);
        let expected = Some(condition.volume_condition());
        assert_eq!(status.volume_condition, expected);
        let status = found(&full(), None).status.unwrap();
        assert_eq!(status.volume_condition, None);

        let two = Page {
            volumes: vec![plain(5), full()],
            next: Some("vol-1".to_owned()),
        };
        let conditions = [Conditions::default(), condition];
        let shown = page(&two, Some(&conditions));
        assert_eq!(shown.next_token, "vol-1");
        assert_eq!(shown.entries.len(), 2);
        let statuses = shown.entries.into_iter().map(|entry| entry.status.unwrap());
        let statuses: Vec<_> = statuses.collect();
        assert!(statuses[0].published_node_ids.is_empty());
        assert!(!statuses[0].volume_condition.as_ref().unwrap().abnormal);
        assert_eq!(statuses[1].published_node_ids, nodes);
        assert_eq!(statuses[1].volume_condition, expected);
        let last = Page { next: None, ..two };
        let shown = page(&last, None);
        assert_eq!(shown.next_token, "");
        assert_eq!(shown.entries[1].volume, Some(volume(&full())));
        let status = shown.entries[1].status.clone().unwrap();
        assert_eq!(status.volume_condition, None);
    }

    #[test]
    fn a_snapshot_has_its_source_its_instant_and_whether_it_is_ready() {
        let cut = |ready| Snapshot {
            id: SnapshotId::new("snap-1").unwrap(),
            name: None,
            phase: Phase::Ready,
            mark: Mark::None,
            source: id("vol-1"),
            bytes: 7,
            created: UNIX_EPOCH + Duration::from_millis(1500),
            ready,
            damage: None,
        };
        let shown = snapshot(&cut(true));
        assert_eq!((shown.size_bytes, shown.ready_to_use), (7, true));
        assert_eq!(shown.snapshot_id, "snap-1");
        assert_eq!(shown.source_volume_id, "vol-1");
        let created = shown.creation_time.unwrap();
        assert_eq!((created.seconds, created.nanos), (1, 500_000_000));
        let listed = snapshots(&SnapshotPage {
            snapshots: vec![cut(true), cut(false)],
            next: Some("snap-1".to_owned()),
        });
        assert_eq!(listed.next_token, "snap-1");
        let entries = listed.entries.into_iter();
        let ready: Vec<_> = entries
            .map(|it| it.snapshot.unwrap().ready_to_use)
            .collect();
        assert_eq!(ready, [true, false]);
    }

    #[test]
    fn unhealthy_volumes_are_listed_with_their_reasons() {
        let listed = unhealthy(&UnhealthyPage {
            volumes: vec![Unhealthy {
                id: id("vol-1"),
                conditions: sick(),
            }],
            next: Some("vol-1".to_owned()),
        });
        assert_eq!(listed.entries, [sick().volume_health("vol-1")]);
        assert_eq!(listed.next_token, "vol-1");
    }

    #[test]
    fn capacity_is_in_total_and_of_one_volume() {
        for largest in [Some(4), None] {
            let shown = room(Room {
                available: 9,
                smallest: 1,
                largest,
            });
            let expected = csi::GetCapacityResponse {
                available_capacity: 9,
                maximum_volume_size: largest.map(bytes),
                minimum_volume_size: Some(1),
            };
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn the_publish_context_has_the_disks_name_under_the_key_of_the_other_driver() {
        let attachment = |disk_name: Option<&str>| Attachment {
            spec: AttachmentSpec {
                read_only: true,
                block: false,
                mode: AccessMode::SingleNodeWriter,
            },
            transport: Transport::Disk(DiskIdentity::Serial("vol-1".to_owned())),
            bytes: 5,
            content: Content::Used,
            attached_at: None,
            disk_name: disk_name.map(str::to_owned),
        };
        let own = [
            ("transport", "disk"),
            ("serial", "vol-1"),
            ("bytes", "5"),
            ("content", "used"),
            ("read_only", "true"),
        ];
        let own = HashMap::from(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
        for (name, key) in [(None, Some("DevicePath")), (Some("sda"), None)] {
            assert_eq!(publish_context(&attachment(name), Vec::new(), key), own);
        }
        let mut both = own;
        both.extend(map("DevicePath", "sda"));
        let shown = publish_context(&attachment(Some("sda")), Vec::new(), Some("DevicePath"));
        assert_eq!(shown, both);
        let secret = MarkSecret::from([0x5a; 32]);
        let shown = publish_context(&attachment(None), vec![secret], None);
        assert_eq!(shown.get("mark"), Some(&"5a".repeat(32)));
    }
}
