//! Growing what is staged: a volume may have been enlarged, or restored to a larger one, since its
//! filesystem was mounted last.

use belay_server::request::VolumeId;

use super::super::context::Context;
use super::super::phase::Phase;
use super::tally;
use crate::device::Held;
use crate::filesystem::{FsType, GrowError, grow};
use crate::kernel::Kernel;

/// Grows the filesystem to its device. A refusal does not keep the volume from its pod, which has
/// all of its data: NodeExpandVolume, which the caller sends when a growth is wanted, fails by it.
/// Of a volume restored to a larger one nobody sends that, so here are the words for it.
pub(super) fn grow_to_device<K: Kernel>(
    cx: &Context<'_, K>,
    volume: &VolumeId,
    root: &K::Fd,
    device: &Held<K>,
    fs: FsType,
) {
    let refused = match cx.phase(Phase::Grow, || grow(&cx.kernel, root, device.fd(), fs)) {
        Ok(_) => return,
        Err(refused) => refused,
    };
    tally::not_grown(fs);
    match refused {
        GrowError::NeedsCapability {
            has_bytes,
            device_bytes,
        } => tracing::warn!(
            %volume, has_bytes, device_bytes,
            "the {} is smaller than its device and stays so: growing it needs CAP_SYS_RESOURCE, \
             and an ext4 without errors; give the node agent the capability, or run e2fsck, and \
             stage the volume anew",
            fs.name()
        ),
        GrowError::Failed(failure) => tracing::warn!(
            %volume,
            "the {} may be smaller than its device, and stays so: {failure}",
            fs.name()
        ),
    }
}
