//! Read-only calls: validate, list, get, capacity, capabilities.

use belay_proto::csi::v1::controller_service_capability::Type;
use belay_proto::csi::v1::volume_content_source::Type as Source;
use belay_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest, ControllerServiceCapability,
    GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, Volume,
};

use crate::access::{Access, Pair, map, topology};
use crate::command::controller::Call;
use crate::command::health::condition;
use crate::command::identity::named;
use crate::failure::Failure;
use crate::render::{Answer, Cell};

impl Call<'_> {
    pub(super) async fn validate(
        mut self,
        volume_id: String,
        access: Access,
    ) -> Result<Answer, Failure> {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id,
            volume_capabilities: vec![access.capability()],
            ..Default::default()
        };
        let call = self.client.validate_volume_capabilities(request);
        let verdict = self.target.wait_for(call).await?;
        Ok(Answer::Record(vec![
            ("confirmed", Cell::Flag(verdict.confirmed.is_some())),
            ("message", Cell::Text(verdict.message)),
        ]))
    }

    pub(super) async fn list(mut self, request: ListVolumesRequest) -> Result<Answer, Failure> {
        let page = self
            .target
            .wait_for(self.client.list_volumes(request))
            .await?;
        Ok(volumes(page))
    }

    pub(super) async fn get(mut self, volume_id: String) -> Result<Answer, Failure> {
        let request = ControllerGetVolumeRequest { volume_id };
        let found = self
            .target
            .wait_for(self.client.controller_get_volume(request))
            .await?;
        let status = found.status.unwrap_or_default();
        let nodes = Some(status.published_node_ids);
        let volume = volume(found.volume.unwrap_or_default(), nodes);
        Ok(volume.with("volume_condition", status.volume_condition.map(condition)))
    }

    pub(super) async fn capacity(
        mut self,
        parameters: Vec<Pair>,
        place: Vec<Pair>,
    ) -> Result<Answer, Failure> {
        let request = GetCapacityRequest {
            volume_capabilities: Vec::new(),
            parameters: map(parameters),
            accessible_topology: topology(place),
        };
        Ok(capacity(
            &self
                .target
                .wait_for(self.client.get_capacity(request))
                .await?,
        ))
    }

    pub(super) async fn capabilities(mut self) -> Result<Answer, Failure> {
        let request = ControllerGetCapabilitiesRequest {};
        let call = self.client.controller_get_capabilities(request);
        Ok(named(
            self.target
                .wait_for(call)
                .await?
                .capabilities
                .iter()
                .map(name_of),
        ))
    }
}

/// One volume per row; with its condition if the driver reports conditions.
fn volumes(page: ListVolumesResponse) -> Answer {
    let statuses = page.entries.iter().map(|entry| entry.status.as_ref());
    let tells = statuses.flatten().any(|s| s.volume_condition.is_some());
    let rows = page.entries.into_iter().map(|entry| {
        let volume = entry.volume.unwrap_or_default();
        let status = entry.status.unwrap_or_default();
        let mut row = vec![
            Cell::Text(volume.volume_id),
            Cell::Bytes(volume.capacity_bytes),
            Cell::List(status.published_node_ids),
        ];
        if tells {
            let untold = Cell::Text(String::new());
            row.push(status.volume_condition.map_or(untold, condition));
        }
        row
    });
    Answer::Rows {
        name: "volumes",
        columns: &COLUMNS[..if tells { 4 } else { 3 }],
        rows: rows.collect(),
        next_token: page.next_token,
    }
}

const COLUMNS: [&str; 4] = [
    "volume_id",
    "capacity_bytes",
    "published_node_ids",
    "volume_condition",
];

/// A volume, with the nodes that it is attached to, if the response has them.
pub(super) fn volume(volume: Volume, nodes: Option<Vec<String>>) -> Answer {
    let places = volume.accessible_topology.into_iter().map(|place| {
        let mut segments: Vec<_> = place
            .segments
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        segments.sort();
        segments.join("+")
    });
    let mut fields = vec![
        ("volume_id", Cell::Text(volume.volume_id)),
        ("capacity_bytes", Cell::Bytes(volume.capacity_bytes)),
        (
            "volume_context",
            Cell::Pairs(volume.volume_context.into_iter().collect()),
        ),
        ("accessible_topology", Cell::List(places.collect())),
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
    use belay_proto::csi::v1::list_volumes_response::{Entry, VolumeStatus};
    use belay_proto::csi::v1::{Topology, VolumeCondition};

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
        let shape = |entries| match volumes(ListVolumesResponse {
            entries,
            next_token: String::new(),
        }) {
            Answer::Rows { columns, rows, .. } => (columns.len(), rows),
            other => panic!("{other:?}"),
        };
        assert_eq!(shape(vec![entry(None)]).0, 3);
        let told = VolumeCondition {
            abnormal: true,
            message: "gone".to_owned(),
        };
        let (columns, rows) = shape(vec![entry(None), entry(Some(told.clone()))]);
        assert_eq!((columns, rows[0].len()), (4, 4));
        assert_eq!(rows[1][3], condition(told));
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
