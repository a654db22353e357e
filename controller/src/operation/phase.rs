//! The errors for a volume or a snapshot that is not ready.

use super::engine::Item;
use crate::backend::Phase;
use belay_server::call::Failure;

/// The volume or snapshot, if it is ready.
///
/// # Errors
/// `Busy`, so that the call is repeated, while the storage changes or deletes it; `Precondition`,
/// which is final, if it has failed.
pub(super) fn ready<I: Item>(item: I) -> Result<I, Failure> {
    let (what, id) = (I::WHAT, item.id());
    Err(match item.phase() {
        Phase::Ready => return Ok(item),
        Phase::Busy(at) => Failure::busy(format!("{what} {id}: {at}; repeat the call")),
        Phase::Deleting => Failure::busy(format!("{what} {id}: being deleted")),
        Phase::Failed(why) => Failure::precondition(format!("{what} {id}: cannot be used: {why}")),
    })
}
