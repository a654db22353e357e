//! Availability zones.

use serde::Deserialize;
use std::collections::BTreeSet;

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
    /// The names of those that can be used.
    pub(in super::super) fn names(self) -> BTreeSet<String> {
        let usable = |zone: &AvailabilityZone| zone.state.as_ref().is_none_or(|it| it.available);
        let usable = self.zones.into_iter().filter(usable);
        usable.map(|zone| zone.name).collect()
    }
}
