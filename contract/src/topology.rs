//! The topology of a node and its volumes: one key and its value. The controller and the node agent
//! use the same rule for values, so that both report the same topology. This module does not depend
//! on the zones of a cloud.

use belay_server::request::{Segments, TopologyRequirement};

/// The maximum length of a value, in bytes (CSI 1.13, `Topology.segments`; Kubernetes uses the
/// value as a label).
const VALUE_BYTES_MAX: usize = 63;

/// Characters that must not be at the ends of a value.
const SEPARATORS: [char; 3] = ['-', '_', '.'];

/// Temporarily replaces invalid characters until the value is complete. This placeholder is not
/// ASCII, so it cannot be part of the value.
const REPLACED: char = '\u{fffd}';

/// A topology: one key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    key: String,
    value: String,
}

/// The error for a text that cannot be a topology value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: cannot be a topology value; use 1 to {VALUE_BYTES_MAX} letters, digits, '-', '_' or \
     '.', and a letter or digit at both ends"
)]
pub struct TopologyError(String);

impl Topology {
    /// Creates the topology with this `key` and `value`.
    ///
    /// # Errors
    /// Fails if the value is not a valid value of a Kubernetes label.
    pub fn new(key: &str, value: &str) -> Result<Self, TopologyError> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric();
        let bytes = value.as_bytes();
        let fine = (1..=VALUE_BYTES_MAX).contains(&bytes.len())
            && bytes
                .iter()
                .all(|byte| plain(byte) || b"-_.".contains(byte))
            && bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain);
        if !fine {
            return Err(TopologyError(value.to_owned()));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }

    /// Creates the topology of a cloud's zone, whose name may have any characters. As in
    /// cinder-csi-plugin, a run of characters that are invalid in a label becomes one `-`, and the
    /// value is cut to its maximum length.
    ///
    /// # Errors
    /// Fails if no character of the name can be used.
    pub fn of_zone(key: &str, zone: &str) -> Result<Self, TopologyError> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        let mut value = String::new();
        for char in zone.chars() {
            match is_plain(char) {
                true => value.push(char),
                // One placeholder replaces a run of invalid characters.
                false if value.ends_with(REPLACED) => {}
                false => value.push(REPLACED),
            }
        }
        let value = value.replace(REPLACED, "-");
        let value = value.trim_matches(SEPARATORS);
        let value = value.get(..VALUE_BYTES_MAX).unwrap_or(value);
        Self::new(key, value.trim_end_matches(SEPARATORS)).map_err(|_| TopologyError(zone.into()))
    }

    /// Returns the topology as segments, for CSI responses.
    #[must_use]
    pub fn segments(&self) -> Segments {
        Segments::from([(self.key.clone(), self.value.clone())])
    }

    /// Whether the topology `there` has the same value for this key, or does not contain the key.
    /// Other keys are ignored, such as a region next to the zone.
    #[must_use]
    pub fn is_in(&self, there: &Segments) -> bool {
        let value = there.get(&self.key);
        value.is_none_or(|value| *value == self.value)
    }

    /// Whether a volume in this topology satisfies the requirement: `requisite` is binding,
    /// `preferred` is not.
    #[must_use]
    pub fn satisfies(&self, requirement: &TopologyRequirement) -> bool {
        let requisite = &requirement.requisite;
        requisite.is_empty() || requisite.iter().any(|there| self.is_in(there))
    }

    /// Returns the topology as `key=value`, for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(value: &str) -> Segments {
        Topology::new("example.org/node", value).unwrap().segments()
    }

    #[test]
    fn only_the_requisite_topologies_are_binding() {
        let here = Topology::new("example.org/node", "one").unwrap();
        let zone = Segments::from([("example.org/zone".to_owned(), "one".to_owned())]);
        let with_zone = |value| {
            let mut both = topology(value);
            both.extend(zone.clone());
            both
        };
        let both = [with_zone("two"), with_zone("one")];
        for (requisite, preferred, satisfied) in [
            (vec![topology("one")], vec![], true),
            (
                vec![topology("two"), topology("one")],
                vec![topology("two")],
                true,
            ),
            (vec![topology("two")], vec![topology("one")], false),
            (vec![], vec![topology("two")], true),
            (both.to_vec(), vec![], true),
            (both[..1].to_vec(), vec![], false),
            (vec![Segments::new()], vec![], true),
            (vec![zone], vec![], true),
        ] {
            let requirement = TopologyRequirement {
                requisite,
                preferred,
            };
            assert_eq!(here.satisfies(&requirement), satisfied, "{requirement:?}");
        }
    }

    #[test]
    fn the_name_of_a_zone_becomes_a_label() {
        let long = format!("{}.{}", "z".repeat(62), "end");
        for (zone, label) in [
            ("nova", "nova"),
            ("Zone-1_a.b", "Zone-1_a.b"),
            ("zone 1 / (east)", "zone-1-east"),
            ("a-/b", "a--b"),
            ("  --zürich--", "z-rich"),
            (&*long, &*"z".repeat(62)),
        ] {
            let found = Topology::of_zone("example.org/zone", zone).unwrap();
            let expected = Topology::new("example.org/zone", label).unwrap();
            assert_eq!(found, expected, "{zone}");
        }
        for zone in ["", " ", "---", "日本"] {
            Topology::of_zone("example.org/zone", zone).unwrap_err();
        }
    }

    #[test]
    fn a_node_id_that_could_be_no_label_is_refused() {
        for value in ["", "-a", "a-", "a/b", "ä", &"n".repeat(64)] {
            let refused = Topology::new("example.org/node", value).unwrap_err();
            assert!(refused.to_string().contains("topology value"), "{refused}");
        }
        assert!(Topology::new("example.org/node", &"n".repeat(63)).is_ok());
        assert!(Topology::new("example.org/node", "ip-10-0-0-1.ec2_x").is_ok());
    }
}
