//! Read-only calls: validate, list, get, capacity, capabilities.

use belay_proto::csi::v1::controller_service_capability::Type;
use belay_proto::csi::v1::list_volumes_response::Entry;
use belay_proto::csi::v1::volume_content_source::Type as Source;
use belay_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest, ControllerServiceCapability,
    GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, Topology,
    ValidateVolumeCapabilitiesRequest, Volume,
};

use super::Call;
use super::flags::{Capacity, List, Validate};
use crate::access::{map, topology};
use crate::command::health::condition;
use crate::command::identity::named;
use crate::command::pages;
use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};

impl Call<'_> {
    pub(super) async fn validate(mut self, flags: Validate) -> Result<Answer, Failure> {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: flags.volume_id,
            volume_context: flags.context.load()?,
            volume_capabilities: vec![flags.access.capability()],
            parameters: map(flags.csc.and(flags.parameters)),
            secrets: flags.secrets.load()?,
            mutable_parameters: Default::default(),
        };
        let call = self.client.validate_volume_capabilities(request);
        let verdict = self.target.wait_for(call).await?;
        let confirmed = verdict.confirmed.is_some();
        let answer = Answer::Record(vec![
            ("confirmed", Cell::Flag(confirmed)),
            ("message", Cell::Text(verdict.message)),
        ]);
        Ok(answer.verdict(confirmed))
    }

    pub(super) async fn list(mut self, flags: List) -> Result<Answer, Failure> {
        let one = flags.pages.one();
        let mut page = async |starting_token| {
            let request = ListVolumesRequest {
                max_entries: flags.pages.max_entries.unwrap_or(0),
                starting_token,
            };
            let call = self.client.list_volumes(request);
            let page = self.target.wait_for(call).await?;
            Ok((page.entries, page.next_token))
        };
        let (entries, next_token) = match one {
            Some(token) => page(token).await?,
            None => (pages::all(page).await?, String::new()),
        };
        Ok(volumes(entries, next_token))
    }

    pub(super) async fn get(mut self, volume_id: String) -> Result<Answer, Failure> {
        let request = ControllerGetVolumeRequest { volume_id };
        let call = self.client.controller_get_volume(request);
        let found = self.target.wait_for(call).await?;
        let status = found.status.unwrap_or_default();
        let nodes = Some(status.published_node_ids);
        let found = found.volume.ok_or(Failure::Answer("has no volume"))?;
        let shown = volume(found, nodes);
        Ok(shown.with("volume_condition", status.volume_condition.map(condition)))
    }

    pub(super) async fn capacity(mut self, flags: Capacity) -> Result<Answer, Failure> {
        let request = GetCapacityRequest {
            volume_capabilities: Vec::new(),
            parameters: map(flags.csc.and(flags.parameters)),
            accessible_topology: topology(flags.topology),
        };
        let call = self.client.get_capacity(request);
        Ok(capacity(&self.target.wait_for(call).await?))
    }

    pub(super) async fn capabilities(mut self) -> Result<Answer, Failure> {
        let request = ControllerGetCapabilitiesRequest {};
        let call = self.client.controller_get_capabilities(request);
        let answer = self.target.wait_for(call).await?;
        Ok(named(answer.capabilities.iter().map(name_of)))
    }
}

/// One volume per row; with its condition if the driver reports conditions.
fn volumes(entries: Vec<Entry>, next_token: String) -> Answer {
    let mut statuses = entries.iter().filter_map(|entry| entry.status.as_ref());
    let has_conditions = statuses.any(|status| status.volume_condition.is_some());
    let rows = entries.into_iter().map(|entry| {
        let volume = entry.volume.unwrap_or_default();
        let status = entry.status.unwrap_or_default();
        let mut row = vec![
            Cell::Text(volume.volume_id),
            Cell::Bytes(volume.capacity_bytes),
            Cell::List(status.published_node_ids),
        ];
        if has_conditions {
            let none = Cell::Text(String::new());
            row.push(status.volume_condition.map_or(none, condition));
        }
        let source = volume.content_source.and_then(|source| source.r#type);
        row.push(Cell::Text(match source {
            None => String::new(),
            Some(Source::Snapshot(from)) => from.snapshot_id,
            Some(Source::Volume(from)) => from.volume_id,
        }));
        row.push(segments(volume.accessible_topology));
        row.push(Cell::Pairs(volume.volume_context.into_iter().collect()));
        row
    });
    let mut columns = vec!["volume_id", "capacity_bytes", "published_node_ids"];
    columns.extend(has_conditions.then_some("volume_condition"));
    let narrow = columns.len();
    columns.extend(["source", "accessible_topology", "volume_context"]);
    Answer::Rows(Rows {
        narrow,
        next_token,
        ..Rows::new("volumes", &columns, rows)
    })
}

/// One entry per topology.
fn segments(topologies: Vec<Topology>) -> Cell {
    let entries = topologies.into_iter().map(|topology| {
        let segments = topology.segments.into_iter();
        let mut segments: Vec<_> = segments
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        segments.sort();
        segments.join("+")
    });
    Cell::List(entries.collect())
}

/// A volume, with the nodes that it is attached to, if the response has them.
pub(super) fn volume(volume: Volume, nodes: Option<Vec<String>>) -> Answer {
    let mut fields = vec![
        ("volume_id", Cell::Text(volume.volume_id)),
        ("capacity_bytes", Cell::Bytes(volume.capacity_bytes)),
        (
            "volume_context",
            Cell::Pairs(volume.volume_context.into_iter().collect()),
        ),
        ("accessible_topology", segments(volume.accessible_topology)),
    ];
    let source = volume.content_source.and_then(|source| source.r#type);
    fields.extend(source.map(|source| match source {
        Source::Snapshot(from) => ("from_snapshot", Cell::Text(from.snapshot_id)),
        Source::Volume(from) => ("from_volume", Cell::Text(from.volume_id)),
    }));
    fields.extend(nodes.map(|nodes| ("published_node_ids", Cell::List(nodes))));
    Answer::Record(fields)
}

/// Limits that the driver does not report are left out, not shown as zero.
fn capacity(answer: &GetCapacityResponse) -> Answer {
    let mut fields = vec![("available_capacity", Cell::Bytes(answer.available_capacity))];
    fields.extend(
        answer
            .maximum_volume_size
            .map(|max| ("maximum_volume_size", Cell::Bytes(max))),
    );
    fields.extend(
        answer
            .minimum_volume_size
            .map(|min| ("minimum_volume_size", Cell::Bytes(min))),
    );
    Answer::Record(fields)
}

fn name_of(capability: &ControllerServiceCapability) -> String {
    match &capability.r#type {
        Some(Type::Rpc(rpc)) => rpc.r#type().as_str_name().to_owned(),
        None => "UNKNOWN".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use belay_proto::csi::v1::VolumeCondition;
    use belay_proto::csi::v1::list_volumes_response::VolumeStatus;

    use super::*;

    #[test]
    fn a_limit_that_is_not_reported_is_not_shown() {
        let Answer::Record(fields) = capacity(&GetCapacityResponse {
            available_capacity: 7,
            maximum_volume_size: Some(3),
            minimum_volume_size: None,
        }) else {
            panic!("capacity is a record")
        };
        assert_eq!(
            fields,
            [
                ("available_capacity", Cell::Bytes(7)),
                ("maximum_volume_size", Cell::Bytes(3))
            ]
        );
    }

    #[test]
    fn conditions_have_a_column_if_the_driver_reports_any() {
        let entry = |volume_condition| Entry {
            volume: None,
            status: Some(VolumeStatus {
                published_node_ids: Vec::new(),
                volume_condition,
            }),
        };
        let shape = |entries| match volumes(entries, String::new()) {
            Answer::Rows(rows) => (rows.narrow, rows.rows),
            other => panic!("{other:?}"),
        };
        assert_eq!(shape(vec![entry(None)]).0, 3);
        let gone = VolumeCondition {
            abnormal: true,
            message: "gone".to_owned(),
        };
        let (narrow, rows) = shape(vec![entry(None), entry(Some(gone.clone()))]);
        assert_eq!((narrow, rows[0].len()), (4, 7));
        assert_eq!(rows[1][3], condition(gone));
    }

    #[test]
    fn a_topology_of_several_segments_is_one_entry() {
        let segments = [("zone", "a"), ("rack", "7")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let answer = volume(
            Volume {
                accessible_topology: vec![Topology {
                    segments: segments.into(),
                }],
                ..Default::default()
            },
            None,
        );
        let Answer::Record(fields) = answer else {
            panic!("a volume is a record")
        };
        assert_eq!(fields[3].1, Cell::List(vec!["rack=7+zone=a".to_owned()]));
    }
}
