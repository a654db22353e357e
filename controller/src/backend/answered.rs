//! Checks that the response to a create request describes the requested object. Without the check,
//! two PersistentVolumeClaims would share one volume if a cloud, or a proxy in front of the cloud,
//! responded with the wrong object. If the check fails, the driver does not mark, change or delete
//! the returned object; a retry of the request searches for the name again.

use super::cloud::ids::{quoted, wrong};
use super::{Backend, Order, Snapshot, SnapshotOrder, Snapshots, Volume};
use belay_server::call::Failure;
use belay_server::request::{ContentSource, Name};
use belay_server::size::Exact;
use std::fmt;

/// Name of the object in error messages.
const VOLUME: &str = "volume";
const SNAPSHOT: &str = "snapshot";

/// Fails if the volume in the response has an invalid ID, a name other than the requested name, or
/// a smaller size than requested.
///
/// # Errors
/// Returns `System` with `Certainty::MayBeRunning`. The error message quotes the request and the
/// response.
pub(crate) fn volume(
    backend: &dyn Backend,
    order: &Order,
    source: Option<&ContentSource>,
    made: &Volume,
) -> Result<(), Failure> {
    let (id, name) = (made.id.as_str(), made.name.as_deref());
    identified(&order.name, VOLUME, id, backend.is_volume_id(&made.id))?;
    named(backend, &order.name, VOLUME, (id, name))?;
    // An older volume with this name may be smaller than requested. The caller compares all
    // properties of an older volume with the request.
    let is_new = backend.started_creations().is_none() && made.source.as_ref() == source;
    match is_new && made.bytes > 0 && made.bytes < order.bytes {
        true => {
            let (is, asked) = (Exact(made.bytes), Exact(order.bytes));
            let answer = format_args!("{VOLUME} {id} of {is}, and not of {asked}");
            Err(another(&order.name, VOLUME, answer))
        }
        false => Ok(()),
    }
}

/// Fails if the snapshot in the response has an invalid ID or another name.
///
/// # Errors
/// Returns `System` with `Certainty::MayBeRunning`. The error message quotes the request and the
/// response.
pub(crate) fn snapshot(
    backend: &dyn Backend,
    snapshots: &dyn Snapshots,
    order: &SnapshotOrder,
    made: &Snapshot,
) -> Result<(), Failure> {
    let (id, name) = (made.id.as_str(), made.name.as_deref());
    let is_id = snapshots.is_snapshot_id(&made.id);
    identified(&order.name, SNAPSHOT, id, is_id)?;
    named(backend, &order.name, SNAPSHOT, (id, name))
}

/// Fails if the response contains a name other than the requested name. Succeeds if the response
/// contains no name.
///
/// # Errors
/// Returns `System` with `Certainty::MayBeRunning`. The error message quotes the request and the
/// response.
pub(crate) fn named(
    backend: &dyn Backend,
    asked: &Name,
    what: &str,
    (id, shown): (&str, Option<&str>),
) -> Result<(), Failure> {
    match shown.filter(|shown| !backend.is_name(shown, asked)) {
        Some(other) => {
            let answer = format_args!("{what} {id}, whose name is {}", quoted(other));
            Err(another(asked, what, answer))
        }
        None => Ok(()),
    }
}

fn identified(name: &Name, what: &str, id: &str, is_id: bool) -> Result<(), Failure> {
    match is_id {
        true => Ok(()),
        false => {
            let answer = format_args!("{}, which is not a valid ID", quoted(id));
            Err(another(name, what, answer))
        }
    }
}

fn another(name: &Name, what: &str, answer: impl fmt::Display) -> Failure {
    wrong(format!(
        "name {:?}: the storage has answered the creation of this {what} with {answer}; the answer \
         is not used; repeat the call",
        name.as_str()
    ))
}
