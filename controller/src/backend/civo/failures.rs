//! Failures about a volume.

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

/// Its status is that word, after which nothing more happens.
pub(super) fn failed(word: &str) -> Failure {
    Failure::precondition(format!(
        "Civo reports the status {word:?}; ask Civo, or delete the volume if none of its data is \
         needed"
    ))
}

/// Its creation has ended with that word.
pub(super) fn not_created(id: &str, word: &str) -> Failure {
    let message =
        format!("volume {id}: Civo has not created it: its status was {word:?}; repeat the call");
    Failure::new(Kind::System, message)
}

/// With the ID of the volume in front.
pub(super) fn about(id: &VolumeId, failure: Failure) -> Failure {
    Failure {
        message: format!("volume {id}: {}", failure.message),
        ..failure
    }
}

pub(super) fn not_found(id: &VolumeId) -> Failure {
    Failure::not_found(format!("volume {id}: not found"))
}
