//! Failures about a volume.

use belay_server::call::Failure;
use belay_server::request::VolumeId;

/// Its status is that word, after which nothing more happens.
pub(super) fn failed(word: &str) -> Failure {
    let message = format!("Civo reports the status {word:?}; ask Civo, or delete the volume");
    Failure::precondition(message)
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
