//! The errors for a volume that is not ready.

use crate::backend::{Phase, Volume};
use belay_server::call::Failure;

/// The volume, if it is ready.
///
/// # Errors
/// `Busy`, so that the call is repeated, while the storage changes or deletes the volume;
/// `Precondition`, which is final, if the volume has failed.
pub(super) fn ready(volume: Volume) -> Result<Volume, Failure> {
    let Volume { id, phase, .. } = &volume;
    Err(match phase {
        Phase::Ready => return Ok(volume),
        Phase::Busy(what) => Failure::busy(format!("volume {id}: {what}; repeat the call")),
        Phase::Deleting => Failure::busy(format!("volume {id}: being deleted")),
        Phase::Failed(why) => Failure::precondition(format!("volume {id}: cannot be used: {why}")),
    })
}
