//! Attaching the device of a volume that is to be staged.

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::super::Node;
use super::super::phase::{Phase, phase};
use super::tally;
use crate::device::{Held, Purpose, Storage};
use crate::kernel::Kernel;

/// A device for the volume: a new one, or the one that is attached for it already without being
/// staged or published here.
///
/// # Errors
/// `FAILED_PRECONDITION` naming the path while the volume is mounted anywhere; `ABORTED` while
/// somebody else has it.
pub(super) fn attach<K: Kernel>(
    node: &Node<K>,
    volume: &VolumeId,
    storage: Storage<K>,
    purpose: Purpose,
) -> Result<Held<K>, Failure> {
    let device = phase(Phase::Attach, || {
        let left = node.mounts().left(volume, &storage)?;
        storage.hold(&node.kernel, left, purpose)
    })?;
    if !device.is_checked() {
        tally::openers_unchecked(node.transport.path());
    }
    Ok(device)
}
