//! The parts that volumes and snapshots have in common, so that both follow the same rules. Makes
//! no calls.

use crate::kubernetes::{LocalSnapshot, LocalVolume, Object, Parsed, Phase, Resource};
use belay_server::call::{Failure, Kind};

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
