//! The string maps of requests: contexts, parameters, secrets and topologies. Only the keys of
//! contexts and parameters are printed, since a value may be the secret of a format mark on a disk,
//! or a token from the kubelet. This module does not depend on particular topologies.

use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Maximum size of a map, in bytes of all keys and values (CSI 1.13, "Size Limits").
pub const MAP_BYTES_MAX: usize = 4096;

/// A volume context, publish context or set of parameters, sorted by key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Context(BTreeMap<String, String>);

impl Context {
    /// Creates the map from the entries of `field`, unless they are too large.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, for more than [`MAP_BYTES_MAX`] bytes.
    pub fn new(
        field: &str,
        entries: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Failure> {
        bounded(field, entries).map(Self)
    }

    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Whether the map has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over all entries, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Prints only the keys, since any value may be a secret.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The credentials in a request. The credentials cannot be printed, only read by key. Clones share
/// the map. `Ord` has no meaning for credentials, but is implemented so that credentials can be the
/// key of a map.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Secrets(Arc<BTreeMap<String, String>>);

impl Secrets {
    /// Creates the credentials from the entries of a request, unless they are too large.
    ///
    /// # Errors
    /// Returns `Invalid` for more than [`MAP_BYTES_MAX`] bytes. The error contains no entry.
    pub fn new(entries: HashMap<String, String>) -> Result<Self, Failure> {
        bounded("secrets", entries).map(Arc::new).map(Self)
    }

    /// Returns the secret with this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

impl Secrets {
    /// Returns the secret with this key, ignoring case. If several keys match, returns the secret
    /// with the first key in sorted order.
    #[must_use]
    pub fn get_ignoring_case(&self, key: &str) -> Option<&str> {
        let mut found = self
            .0
            .iter()
            .filter(|(own, _)| own.eq_ignore_ascii_case(key));
        found.next().map(|(_, secret)| secret.as_str())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "<none>"
        } else {
            "<secret>"
        })
    }
}

/// Collects the entries, or returns `Invalid` for more than [`MAP_BYTES_MAX`] bytes. The failure
/// contains no key and no value, since the map may hold secrets.
pub(super) fn bounded(
    field: &str,
    entries: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, Failure> {
    let map: BTreeMap<_, _> = entries.into_iter().collect();
    let bytes: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes <= MAP_BYTES_MAX {
        return Ok(map);
    }
    let why = format_args!("has {bytes} bytes in total; at most {MAP_BYTES_MAX} are allowed");
    Err(Failure::invalid(field, why))
}

/// A topology, e.g. region and zone, as a map from topology key to value.
pub type Segments = BTreeMap<String, String>;

/// The topologies that a volume may or should be reachable from; at least one of the lists is not
/// empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyRequirement {
    /// The volume must be reachable from at least one of these topologies.
    pub requisite: Vec<Segments>,
    /// Preferred topologies, in order of preference.
    pub preferred: Vec<Segments>,
}

/// Reads a topology requirement. Returns `None` if both lists of the request are empty.
pub(super) fn topology_requirement(
    asked: Option<csi::TopologyRequirement>,
) -> Result<Option<TopologyRequirement>, Failure> {
    let Some(asked) = asked else { return Ok(None) };
    let requisite = topologies("accessibility_requirements.requisite", asked.requisite)?;
    let preferred = topologies("accessibility_requirements.preferred", asked.preferred)?;
    let says_nothing = requisite.is_empty() && preferred.is_empty();
    Ok((!says_nothing).then_some(TopologyRequirement {
        requisite,
        preferred,
    }))
}

/// Reads one topology of a request.
pub(super) fn segments(field: &str, topology: csi::Topology) -> Result<Segments, Failure> {
    bounded(field, topology.segments)
}

fn topologies(field: &str, all: Vec<csi::Topology>) -> Result<Vec<Segments>, Failure> {
    all.into_iter()
        .map(|topology| segments(field, topology))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(key: &str, value: &str) -> HashMap<String, String> {
        HashMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_map_of_four_kibibytes_passes_and_no_larger_one() {
        let value = "v".repeat(MAP_BYTES_MAX - 3);
        let context = Context::new("volume_context", map("key", &value)).unwrap();
        assert_eq!(context.get("key"), Some(value.as_str()));
        let refused = Context::new("volume_context", map("keys", &value)).unwrap_err();
        let why = "volume_context: has 4097 bytes in total; at most 4096 are allowed";
        assert_eq!(refused.message, why);
    }

    #[test]
    fn of_a_context_only_keys_are_printed() {
        let context = Context::new("publish_context", map("mark", "canary")).unwrap();
        assert_eq!(format!("{context:?}"), "{\"mark\"}");
        assert_eq!(context.get("mark"), Some("canary"));
    }

    #[test]
    fn secrets_are_never_printed() {
        let secrets = Secrets::new(map("canary-key", "canary-value")).unwrap();
        assert_eq!(format!("{secrets:?}"), "<secret>");
        assert_eq!(secrets.get("canary-key"), Some("canary-value"));
        assert_eq!(secrets.get("Canary-Key"), None);
        assert_eq!(
            secrets.get_ignoring_case("Canary-Key"),
            Some("canary-value")
        );
        assert_eq!(format!("{:?}", Secrets::default()), "<none>");
        let refused = Secrets::new(map("canary-key", &"canary".repeat(1000))).unwrap_err();
        assert!(!refused.message.contains("canary"), "{refused}");
    }
}
