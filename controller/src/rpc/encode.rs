//! Encodes results as messages.

use crate::backend::{Attachment, Page, Snapshot, SnapshotPage, Unhealthy, UnhealthyPage, Volume};
use crate::operation::Room;
use belay_contract::mark::MarkSecret;
use belay_contract::publish_context::PublishContext;
use belay_proto::csi::v1 as csi;
use belay_server::health::Conditions;
use belay_server::request::{ContentSource, Context, NodeId, Segments};
use std::collections::HashMap;

/// The volume as a message.
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

/// One topology as a message.
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

/// The snapshot as a message.
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

/// A page of snapshots.
pub(super) fn snapshots(page: &SnapshotPage) -> csi::ListSnapshotsResponse {
    let entry = |listed| csi::list_snapshots_response::Entry {
        snapshot: Some(snapshot(listed)),
    };
    csi::ListSnapshotsResponse {
        entries: page.snapshots.iter().map(entry).collect(),
        next_token: page.next.clone().unwrap_or_default(),
    }
}

/// The publish context of an attached volume, with the secrets of its format mark; and with the
/// disk's name under that key, so that the driver that this one replaces can take over again.
pub(super) fn publish_context(
    attachment: &Attachment,
    marks: Vec<MarkSecret>,
    disk_name_key: Option<&str>,
) -> HashMap<String, String> {
    let context = PublishContext {
        transport: attachment.transport.clone(),
        bytes: attachment.bytes,
        content: attachment.content,
        read_only: attachment.terms.read_only,
        attached_at: attachment.attached_at,
        marks,
    };
    let name = disk_name_key.zip(attachment.disk_name.as_ref());
    let name = name.map(|(key, name)| (key.to_owned(), name.clone()));
    context.entries().chain(name).collect()
}

/// A page of volumes, each with the nodes it is attached to and, if known, its condition.
pub(super) fn page(page: &Page, conditions: Option<&[Conditions]>) -> csi::ListVolumesResponse {
    use csi::list_volumes_response::{Entry, VolumeStatus};
    let condition = |at: usize| conditions.and_then(|all| all.get(at));
    let entry = |(at, listed): (usize, &Volume)| Entry {
        volume: Some(volume(listed)),
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

/// A page of unhealthy volumes.
pub(super) fn unhealthy(page: &UnhealthyPage) -> csi::ControllerListVolumeHealthResponse {
    let entry = |volume: &Unhealthy| volume.conditions.volume_health(volume.id.as_str());
    csi::ControllerListVolumeHealthResponse {
        entries: page.volumes.iter().map(entry).collect(),
        next_token: page.next.clone().unwrap_or_default(),
    }
}

/// One volume, with the nodes it is attached to and, if known, its condition.
pub(super) fn found(
    found: &Volume,
    condition: Option<&Conditions>,
) -> csi::ControllerGetVolumeResponse {
    use csi::controller_get_volume_response::VolumeStatus;
    csi::ControllerGetVolumeResponse {
        volume: Some(volume(found)),
        status: Some(VolumeStatus {
            published_node_ids: node_ids(&found.nodes),
            volume_condition: condition.map(Conditions::volume_condition),
        }),
    }
}

/// Capacity for new volumes.
pub(super) fn room(room: Room) -> csi::GetCapacityResponse {
    csi::GetCapacityResponse {
        available_capacity: bytes(room.available),
        maximum_volume_size: Some(bytes(room.largest)),
        minimum_volume_size: Some(bytes(room.smallest)),
    }
}

/// Sizes are signed in the protocol; larger ones, which no file has, saturate.
pub(super) fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn node_ids(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(|node| node.as_str().to_owned()).collect()
}
