//! Where a node and its volumes are, as one topology segment: the one rule for what may stand
//! there, so that both programs of a driver tell the same. Knows no cloud's zones.

use belay_server::request::{Segments, TopologyRequirement};

/// Longest value, in bytes (CSI 1.13, `Topology.segments`; Kubernetes makes a label of it).
const VALUE_BYTES_MAX: usize = 63;

/// A place, as one topology key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    key: String,
    value: String,
}

/// Why a value names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: cannot be a topology value; use 1 to {VALUE_BYTES_MAX} letters, digits, '-', '_' or \
     '.', and a letter or digit at both ends"
)]
pub struct PlaceError(String);

impl Place {
    /// The place that `key` and `value` name.
    ///
    /// # Errors
    /// If the value could not be a node label.
    pub fn new(key: &str, value: &str) -> Result<Self, PlaceError> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric();
        let bytes = value.as_bytes();
        let fine = (1..=VALUE_BYTES_MAX).contains(&bytes.len())
            && bytes
                .iter()
                .all(|byte| plain(byte) || b"-_.".contains(byte))
            && bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain);
        if !fine {
            return Err(PlaceError(value.to_owned()));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }

    /// As it is told to the caller.
    #[must_use]
    pub fn segments(&self) -> Segments {
        Segments::from([(self.key.clone(), self.value.clone())])
    }

    /// Whether what is here is reachable from there. An empty place is anywhere.
    #[must_use]
    pub fn is_in(&self, there: &Segments) -> bool {
        there
            .iter()
            .all(|(key, value)| *key == self.key && *value == self.value)
    }

    /// Whether a volume here satisfies the requirement: the requisite places bind, the preferred
    /// ones are a wish.
    #[must_use]
    pub fn satisfies(&self, requirement: &TopologyRequirement) -> bool {
        let requisite = &requirement.requisite;
        requisite.is_empty() || requisite.iter().any(|there| self.is_in(there))
    }

    /// For people: `key=value`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(value: &str) -> Segments {
        Place::new("example.org/node", value).unwrap().segments()
    }

    #[test]
    fn only_the_requisite_places_bind() {
        let here = Place::new("example.org/node", "one").unwrap();
        let zone = Segments::from([("example.org/zone".to_owned(), "one".to_owned())]);
        for (requisite, preferred, satisfied) in [
            (vec![place("one")], vec![], true),
            (vec![place("two"), place("one")], vec![place("two")], true),
            (vec![place("two")], vec![place("one")], false),
            (vec![], vec![place("two")], true),
            (vec![zone], vec![], false),
        ] {
            let requirement = TopologyRequirement {
                requisite,
                preferred,
            };
            assert_eq!(here.satisfies(&requirement), satisfied, "{requirement:?}");
        }
    }

    #[test]
    fn a_node_id_that_could_be_no_label_is_refused() {
        for value in ["", "-a", "a-", "a/b", "ä", &"n".repeat(64)] {
            let refused = Place::new("example.org/node", value).unwrap_err();
            assert!(refused.to_string().contains("topology value"), "{refused}");
        }
        assert!(Place::new("example.org/node", &"n".repeat(63)).is_ok());
        assert!(Place::new("example.org/node", "ip-10-0-0-1.ec2_x").is_ok());
    }
}
