//! From where a volume must or should be reachable. The driver knows which topologies exist.

use super::context::bounded;
use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use std::collections::BTreeMap;

/// One topology, e.g. region and zone: topology key to value.
pub type Segments = BTreeMap<String, String>;

/// The topologies to choose from; at least one of the lists is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyRequirement {
    /// The volume must be reachable from at least one of these.
    pub requisite: Vec<Segments>,
    /// In order of preference.
    pub preferred: Vec<Segments>,
}

/// None if the requirement is empty.
pub(super) fn requirement(
    asked: Option<csi::TopologyRequirement>,
) -> Result<Option<TopologyRequirement>, Failure> {
    let Some(asked) = asked else { return Ok(None) };
    let requisite = places("accessibility_requirements.requisite", asked.requisite)?;
    let preferred = places("accessibility_requirements.preferred", asked.preferred)?;
    let says_nothing = requisite.is_empty() && preferred.is_empty();
    Ok((!says_nothing).then_some(TopologyRequirement {
        requisite,
        preferred,
    }))
}

/// One topology of a request.
pub(super) fn place(field: &str, topology: csi::Topology) -> Result<Segments, Failure> {
    bounded(field, topology.segments)
}

fn places(field: &str, topologies: Vec<csi::Topology>) -> Result<Vec<Segments>, Failure> {
    topologies
        .into_iter()
        .map(|topology| place(field, topology))
        .collect()
}
