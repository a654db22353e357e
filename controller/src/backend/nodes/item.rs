//! The parts that volumes and snapshots have in common, so that both follow the same rules. Makes
//! no calls.

use crate::kubernetes::{LocalSnapshot, LocalVolume, Object, Parsed, Phase, Resource};
use belay_contract::drivers::local::is_label;
use belay_server::call::{Failure, Kind};
use belay_server::request::Name;
use ring::digest::{SHA256, digest};

/// The prefix of an object's name that is a hash of the name in the request.
const HASHED: &str = "n-";

/// The fields of a spec that volumes and snapshots share.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) version: u32,
    /// Whether the object is for an existing file.
    pub(super) adopts: bool,
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) place: &'a str,
    pub(super) disk: &'a str,
    pub(super) node: &'a str,
    pub(super) remove: Option<u64>,
}

/// The fields of a status that volumes and snapshots share.
#[derive(Clone, Copy)]
pub(super) struct Reported<'a> {
    pub(super) phase: Phase,
    /// Whether the data of a snapshot is captured, although it may still be copied.
    pub(super) is_cut: bool,
    pub(super) refused_removal: Option<u64>,
    pub(super) failure: Option<&'a Parsed<Failure>>,
}

/// A kind whose objects are orders to a store: volumes and snapshots.
pub(super) trait Item: Resource {
    /// The name of the kind in messages.
    const WHAT: &'static str;

    fn wanted(spec: &Self::Spec) -> Wanted<'_>;

    fn reported(status: &Self::Status) -> Reported<'_>;
}

impl Item for LocalVolume {
    const WHAT: &'static str = "volume";

    fn wanted(spec: &Self::Spec) -> Wanted<'_> {
        Wanted {
            version: spec.version,
            adopts: spec.adopt,
            id: &spec.id,
            name: &spec.name,
            place: &spec.place,
            disk: &spec.disk,
            node: &spec.node,
            remove: spec.remove,
        }
    }

    fn reported(status: &Self::Status) -> Reported<'_> {
        Reported {
            phase: status.phase,
            is_cut: false,
            refused_removal: status.refused_removal,
            failure: status.failure.as_ref(),
        }
    }
}

impl Item for LocalSnapshot {
    const WHAT: &'static str = "snapshot";

    fn wanted(spec: &Self::Spec) -> Wanted<'_> {
        Wanted {
            version: spec.version,
            adopts: spec.adopt,
            id: &spec.id,
            name: &spec.name,
            place: &spec.place,
            disk: &spec.disk,
            node: &spec.node,
            remove: spec.remove,
        }
    }

    fn reported(status: &Self::Status) -> Reported<'_> {
        Reported {
            phase: status.phase,
            is_cut: status.time.is_some(),
            refused_removal: status.refused_removal,
            failure: status.failure.as_ref(),
        }
    }
}

/// Returns the name of the LocalDisk with the volume or snapshot.
pub(super) fn disk_of(wanted: &Wanted<'_>) -> String {
    format!("{}.{}", wanted.node, wanted.disk)
}

/// Returns the spec of the object, if this release knows all of its fields.
pub(super) fn wanted<R: Item>(object: &Object<R>) -> Option<Wanted<'_>> {
    object.spec.known().map(R::wanted)
}

/// Returns the status of the object, if there is one and this release knows it.
pub(super) fn reported<R: Item>(object: &Object<R>) -> Option<Reported<'_>> {
    object.known_status().map(R::reported)
}

/// Returns the ID of the object for messages, or its name if the ID is unknown.
pub(super) fn id<R: Item>(object: &Object<R>) -> &str {
    wanted(object).map_or(&object.metadata.name, |wanted| wanted.id)
}

/// Returns the failure that a store has reported. Its message begins with the ID of the object.
pub(super) fn failure<R: Item>(object: &Object<R>) -> Failure {
    let (kind, why) = match reported(object).and_then(|reported| reported.failure) {
        Some(Parsed::Known(failure)) => (failure.kind, failure.message.as_str()),
        Some(Parsed::Unknown(why)) => (Kind::System, why.as_str()),
        None => (Kind::System, "its store has given no reason"),
    };
    let begin = about(object, "");
    match why.starts_with(&begin) {
        true => Failure::new(kind, why),
        false => Failure::new(kind, begin + why),
    }
}

/// Returns a message about the object.
pub(super) fn about<R: Item>(object: &Object<R>, why: &str) -> String {
    let (what, id) = (R::WHAT, id(object));
    format!("{what} {id}: {why}")
}

/// Returns the error for an object whose store is not expected to respond at present.
pub(super) fn unreachable<R: Item>(object: &Object<R>, why: &str) -> Failure {
    Failure::new(Kind::Unreachable, about(object, why))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name of the object for a name in a request: the same name if an object can have it,
/// and else a hash.
pub(super) fn object_name(name: &Name) -> String {
    let name = name.as_str();
    match name.split('.').all(is_label) {
        true => name.to_owned(),
        false => {
            let hash = digest(&SHA256, name.as_bytes());
            format!("{HASHED}{}", hexadecimal(hash.as_ref()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_object_can_have_is_hashed_and_each_to_another_name() {
        let object = |name: &str| object_name(&Name::new(name).unwrap());
        for name in ["pvc-1", "a.b-c.d", "0", "n-1"] {
            assert_eq!(object(name), name);
        }
        let mut seen = Vec::new();
        for name in ["PVC-1", "a_b", "-a", "a-", "a..b", ".", "a/b", "ä", "a b"] {
            let hashed = object(name);
            assert_eq!(hashed.len(), HASHED.len() + 64, "{hashed}");
            assert!(is_label(&hashed) && !seen.contains(&hashed), "{hashed}");
            seen.push(hashed);
        }
    }
}
