//! Health in the specification's terms, one condition per row; no rows if healthy.

use belay_proto::csi::v1::node_get_storage_health_response::StorageBackendHealth;
use belay_proto::csi::v1::volume_capability::AccessType;
use belay_proto::csi::v1::{
    StorageHealthErrorType, VolumeCapability, VolumeCondition, VolumeHealth, VolumeHealthErrorType,
};

use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};

/// The health of one volume; the response must contain it.
///
/// # Errors
/// The response has no health: that does not mean healthy.
pub(super) fn of_one(health: Option<VolumeHealth>) -> Result<Answer, Failure> {
    let health = health.ok_or(Failure::Answer("has no volume_health"))?;
    Ok(of_volumes(vec![health]))
}

/// The health of several volumes.
pub(super) fn of_volumes(volumes: Vec<VolumeHealth>) -> Answer {
    let rows = volumes.into_iter().flat_map(|volume| {
        let id = volume.volume_id;
        volume.health_statuses.into_iter().map(move |entry| {
            let name = VolumeHealthErrorType::try_from(entry.status).map(|s| s.as_str_name());
            vec![
                Cell::Text(id.clone()),
                status(entry.status, name.ok()),
                Cell::Text(entry.reason),
                Cell::Text(entry.message),
            ]
        })
    });
    let columns = ["volume_id", "status", "reason", "message"];
    Answer::Conditions(Rows::new("health_statuses", &columns, rows))
}

/// The health of the storage behind all volumes.
pub(super) fn of_storage(conditions: Vec<StorageBackendHealth>) -> Answer {
    let rows = conditions.into_iter().map(|entry| {
        let name = StorageHealthErrorType::try_from(entry.status).map(|s| s.as_str_name());
        vec![
            status(entry.status, name.ok()),
            Cell::Text(entry.reason),
            Cell::Text(concerned(entry.volume_capability.as_ref())),
            Cell::Text(entry.message),
        ]
    });
    let columns = ["status", "reason", "concerns", "message"];
    Answer::Conditions(Rows::new("backend_health", &columns, rows))
}

/// The older form of health, which is part of other responses.
pub(super) fn condition(condition: VolumeCondition) -> Cell {
    Cell::Condition {
        abnormal: condition.abnormal,
        message: condition.message,
    }
}

/// A value of a newer specification is shown as its number.
fn status(number: i32, name: Option<&'static str>) -> Cell {
    Cell::Text(name.map_or_else(|| number.to_string(), ToOwned::to_owned))
}

/// The affected uses, e.g. `mount xfs MULTI_NODE_READER_ONLY`.
fn concerned(capability: Option<&VolumeCapability>) -> String {
    let Some(capability) = capability else {
        return "all".to_owned();
    };
    let mut words = match &capability.access_type {
        Some(AccessType::Mount(mount)) => vec!["mount", mount.fs_type.as_str()],
        Some(AccessType::Block(_)) => vec!["block"],
        None => Vec::new(),
    };
    if let Some(access) = &capability.access_mode {
        words.push(access.mode().as_str_name());
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use belay_proto::csi::v1::volume_capability::access_mode::Mode;
    use belay_proto::csi::v1::volume_capability::{AccessMode, MountVolume};
    use belay_proto::csi::v1::volume_health::VolumeHealthEntry;

    use super::*;

    fn rows(answer: Answer) -> Vec<Vec<String>> {
        let Answer::Conditions(Rows { rows, .. }) = answer else {
            panic!("health is a list of conditions")
        };
        let text = |cell| match cell {
            Cell::Text(text) => text,
            other => panic!("{other:?}"),
        };
        rows.into_iter()
            .map(|row| row.into_iter().map(text).collect())
            .collect()
    }

    fn entry(status: i32, reason: &str) -> VolumeHealthEntry {
        VolumeHealthEntry {
            status,
            reason: reason.to_owned(),
            message: "m".to_owned(),
        }
    }

    #[test]
    fn each_condition_is_a_row_and_a_healthy_volume_has_none() {
        let volume = |id: &str, health_statuses| VolumeHealth {
            volume_id: id.to_owned(),
            health_statuses,
        };
        let sick = vec![
            entry(VolumeHealthErrorType::DataLoss.into(), "Gone"),
            entry(9, "New"),
        ];
        let found = rows(of_volumes(vec![volume("a", sick), volume("b", Vec::new())]));
        assert_eq!(
            found,
            [["a", "DATA_LOSS", "Gone", "m"], ["a", "9", "New", "m"]]
        );
    }

    #[test]
    fn an_answer_without_health_is_not_healthy() {
        let error = of_one(None).unwrap_err().to_string();
        assert_eq!(error, "the driver's answer has no volume_health");
        assert!(rows(of_one(Some(VolumeHealth::default())).unwrap()).is_empty());
    }

    #[test]
    fn the_affected_use_is_shown() {
        let mount = VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: "xfs".to_owned(),
                ..Default::default()
            })),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        };
        let condition_of = |volume_capability| StorageBackendHealth {
            status: StorageHealthErrorType::StorageDegraded.into(),
            reason: "Slow".to_owned(),
            message: "m".to_owned(),
            volume_capability,
        };
        assert_eq!(
            rows(of_storage(vec![
                condition_of(None),
                condition_of(Some(mount))
            ])),
            [
                ["STORAGE_DEGRADED", "Slow", "all", "m"],
                [
                    "STORAGE_DEGRADED",
                    "Slow",
                    "mount xfs SINGLE_NODE_WRITER",
                    "m"
                ]
            ]
        );
    }
}
