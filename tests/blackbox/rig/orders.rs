//! The requests of the sidecars to a controller.

use belay_bed::requests;
pub(crate) use belay_bed::requests::{cut, delete, discard, get, grow};
use belay_proto::csi::v1 as csi;

use super::usage::{access, least_bytes};

/// Returns a request for a volume of the minimum size for this use.
pub(crate) fn create(name: &str, kind: &str) -> csi::CreateVolumeRequest {
    let required_bytes = i64::try_from(least_bytes(kind)).expect("a size");
    csi::CreateVolumeRequest {
        capacity_range: requests::range(required_bytes, 0),
        ..requests::create(name, access(kind), None)
    }
}

/// Returns a request for a volume restored from a snapshot, of the same size.
pub(crate) fn restore(name: &str, kind: &str, snapshot_id: &str) -> csi::CreateVolumeRequest {
    requests::create(name, access(kind), Some(requests::of_snapshot(snapshot_id)))
}

/// Returns a request for a clone of a volume, of the same size.
pub(crate) fn clone(name: &str, kind: &str, volume_id: &str) -> csi::CreateVolumeRequest {
    requests::create(name, access(kind), Some(requests::of_volume(volume_id)))
}
