//! What the node service answers, for people.

use belay_proto::csi::v1::node_service_capability::Type;
use belay_proto::csi::v1::volume_usage::Unit;
use belay_proto::csi::v1::{
    NodeGetInfoResponse, NodeGetVolumeStatsResponse, NodeServiceCapability,
};

use crate::command::health;
use crate::render::{Answer, Cell, Rows};

/// Id, limit and topology.
pub(super) fn info(info: NodeGetInfoResponse) -> Answer {
    let segments = info.accessible_topology.unwrap_or_default().segments;
    Answer::Record(vec![
        ("node_id", Cell::Text(info.node_id)),
        (
            "max_volumes_per_node",
            Cell::Number(info.max_volumes_per_node),
        ),
        (
            "accessible_topology",
            Cell::Pairs(segments.into_iter().collect()),
        ),
    ])
}

/// The usage, and the condition if the driver reports it.
pub(super) fn stats(mut stats: NodeGetVolumeStatsResponse) -> Answer {
    let condition = stats.volume_condition.take().map(health::condition);
    usage(&stats).with("volume_condition", condition)
}

/// One row per unit; inodes are counted, not measured in bytes.
fn usage(stats: &NodeGetVolumeStatsResponse) -> Answer {
    let rows = stats.usage.iter().map(|usage| {
        let amount = |value: i64| match usage.unit() {
            Unit::Bytes => Cell::Bytes(value),
            Unit::Inodes | Unit::Unknown => Cell::Number(value),
        };
        vec![
            Cell::Text(usage.unit().as_str_name().to_owned()),
            amount(usage.total),
            amount(usage.used),
            amount(usage.available),
        ]
    });
    let columns = ["unit", "total", "used", "available"];
    Answer::Rows(Rows::new("usage", &columns, rows))
}

/// The name of a capability in the specification.
pub(super) fn name_of(capability: &NodeServiceCapability) -> String {
    match &capability.r#type {
        Some(Type::Rpc(rpc)) => rpc.r#type().as_str_name().to_owned(),
        None => "UNKNOWN".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use belay_proto::csi::v1::VolumeUsage;

    use super::*;

    #[test]
    fn bytes_and_inodes_are_distinguished() {
        let of = |unit: Unit| VolumeUsage {
            available: 1,
            total: 3,
            used: 2,
            unit: unit.into(),
        };
        let stats = NodeGetVolumeStatsResponse {
            usage: vec![of(Unit::Bytes), of(Unit::Inodes)],
            volume_condition: None,
        };
        let Answer::Rows(Rows { rows, .. }) = usage(&stats) else {
            panic!("usage is a list")
        };
        assert_eq!(
            rows[0][1..],
            [Cell::Bytes(3), Cell::Bytes(2), Cell::Bytes(1)]
        );
        assert_eq!(
            rows[1][1..],
            [Cell::Number(3), Cell::Number(2), Cell::Number(1)]
        );
    }

    #[test]
    fn a_condition_is_shown_if_the_driver_reports_one() {
        let shown = |volume_condition| {
            stats(NodeGetVolumeStatsResponse {
                usage: Vec::new(),
                volume_condition,
            })
        };
        assert!(matches!(shown(None), Answer::Rows(_)));
        assert!(matches!(shown(Some(Default::default())), Answer::With(..)));
    }

    #[test]
    fn a_node_without_topology_shows_an_empty_one() {
        let answer = info(NodeGetInfoResponse {
            node_id: "n".to_owned(),
            ..Default::default()
        });
        let Answer::Record(fields) = answer else {
            panic!("info is a record")
        };
        assert_eq!(fields[2].1, Cell::Pairs(Default::default()));
    }
}
