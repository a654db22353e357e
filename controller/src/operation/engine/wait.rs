//! Waiting until the storage is done with a volume: it is looked at again, each time a little
//! later. Nothing else in the controller waits for the storage.

use crate::backend::{Backend, Phase, Volume};
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Between two looks at first.
const INTERVAL_MIN: Duration = Duration::from_millis(250);
/// Between two looks at most.
const INTERVAL_MAX: Duration = Duration::from_secs(2);

/// How long the job of a volume waits: less than a caller does, so that the volume is free then for
/// the call that undoes this one.
const PATIENCE: Duration = Duration::from_secs(90);

/// The volume once the storage is done with it, ready or failed; none if it is gone then.
///
/// # Errors
/// Those of a look, with an unknown state left behind.
pub(in crate::operation) async fn settled(
    backend: &dyn Backend,
    id: &VolumeId,
) -> Result<Option<Volume>, Failure> {
    let begun = Instant::now();
    loop {
        sleep((begun.elapsed() / 4).clamp(INTERVAL_MIN, INTERVAL_MAX)).await;
        let seen = backend.get(id.clone()).await;
        match seen.map_err(Failure::may_be_running)? {
            Some(Volume {
                phase: Phase::Busy(_) | Phase::Deleting,
                ..
            }) => {}
            settled => return Ok(settled),
        }
    }
}

/// The same within the patience of a call.
///
/// # Errors
/// Those of [`settled`]; `Busy`, with an unknown state left behind, if the storage takes longer.
pub(in crate::operation) async fn settled_soon(
    backend: &dyn Backend,
    id: &VolumeId,
) -> Result<Option<Volume>, Failure> {
    let seen = timeout(PATIENCE, settled(backend, id)).await;
    seen.unwrap_or_else(|_| Err(still_busy(id)))
}

/// For a call that the storage has accepted, and not done.
pub(in crate::operation) fn still_busy(id: &VolumeId) -> Failure {
    let message = format!("volume {id}: the storage has not done it yet; repeat the call");
    Failure::busy(message).may_be_running()
}
