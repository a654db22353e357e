//! The resources of a project: volume types, its quota (Block Storage API, *Limits*), and
//! availability zones.

use super::super::BYTES_MAX;
use super::GIB;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Deserialize)]
pub(in super::super) struct VolumeType {
    id: String,
    pub(in super::super) name: String,
    /// The extra specs that users can see; `None` if users cannot see extra specs in this cloud.
    /// Since release Xena, users can see `multiattach`; older releases show users no extra specs.
    #[serde(default)]
    extra_specs: Option<BTreeMap<String, Option<String>>>,
}

impl VolumeType {
    /// Whether the type has this name or ID.
    pub(in super::super) fn is(&self, name: &str) -> bool {
        self.name == name || self.id == name
    }

    /// Whether several servers can use volumes of this type. `None` if the cloud does not report
    /// this property.
    pub(in super::super) fn is_multiattach(&self) -> Option<bool> {
        let specs = self.extra_specs.as_ref()?;
        let value = specs.get("multiattach").and_then(Option::as_deref);
        // The value is `<is> True`, in upper or lower case.
        Some(value.is_some_and(|value| value.to_ascii_lowercase().ends_with("true")))
    }
}

/// The quota for all volume types together, and the used part of the quota. A negative maximum
/// means no limit.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct AbsoluteLimits {
    max_total_volumes: i64,
    total_volumes_used: i64,
    max_total_volume_gigabytes: i64,
    total_gigabytes_used: i64,
}

impl AbsoluteLimits {
    /// Returns the free space for new volumes, in GiB.
    pub(in super::super) fn free_gib(&self) -> u64 {
        let unlimited = BYTES_MAX / GIB;
        let left = |max: i64, used: i64| match max {
            ..0 => unlimited,
            _ => u64::try_from(max.saturating_sub(used)).unwrap_or(0),
        };
        match left(self.max_total_volumes, self.total_volumes_used) {
            0 => 0,
            _ => left(self.max_total_volume_gigabytes, self.total_gigabytes_used).min(unlimited),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(in super::super) struct AvailabilityZones {
    #[serde(rename = "availabilityZoneInfo")]
    zones: Vec<AvailabilityZone>,
}

#[derive(Debug, Deserialize)]
struct AvailabilityZone {
    #[serde(rename = "zoneName")]
    name: String,
    #[serde(default, rename = "zoneState")]
    state: Option<ZoneState>,
}

#[derive(Debug, Deserialize)]
struct ZoneState {
    available: bool,
}

impl AvailabilityZones {
    /// Returns the names of the available zones.
    pub(in super::super) fn names(self) -> BTreeSet<String> {
        let usable = |zone: &AvailabilityZone| zone.state.as_ref().is_none_or(|it| it.available);
        let usable = self.zones.into_iter().filter(usable);
        usable.map(|zone| zone.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_of_the_scarcer_of_both() {
        for (volumes, gigabytes, left) in [
            ((10, 2), (1000, 5), 995),
            ((2, 2), (1000, 5), 0),
            ((10, 2), (5, 9), 0),
            ((-1, 2), (7, 5), 2),
            ((10, 2), (-1, 5), BYTES_MAX / GIB),
        ] {
            let limits = AbsoluteLimits {
                max_total_volumes: volumes.0,
                total_volumes_used: volumes.1,
                max_total_volume_gigabytes: gigabytes.0,
                total_gigabytes_used: gigabytes.1,
            };
            assert_eq!(limits.free_gib(), left, "{limits:?}");
        }
    }
}
