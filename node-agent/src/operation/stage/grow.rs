//! Grows a filesystem at its stage: the volume may have been enlarged, or restored to a larger one,
//! since the last mount.

use belay_server::request::VolumeId;

use super::tally;
use crate::device::OpenDevice;
use crate::filesystem::{FsType, GrowError, Grown, grow};
use crate::kernel::Kernel;
use crate::operation::Context;
use crate::work::Phase;

/// Grows the filesystem to its device. A failure does not fail the stage, since the pod's data is
/// complete: NodeExpandVolume, which the caller sends to grow a volume, reports it. A volume
/// restored to a larger one gets no such call, so the failure is logged here.
pub(super) fn grow_to_device<K: Kernel>(
    cx: &Context<'_, K>,
    volume: &VolumeId,
    root: &K::Fd,
    device: &OpenDevice<K>,
    fs: FsType,
) {
    let refused = match cx.phase(Phase::Grow, || grow(&cx.kernel, root, device.fd(), fs)) {
        Ok(grown) => return warn_of_groups(volume, grown),
        Err(refused) => refused,
    };
    tally::not_grown(fs);
    match refused {
        GrowError::NeedsCapability {
            has_bytes,
            device_bytes,
        } => tracing::warn!(
            %volume, has_bytes, device_bytes,
            "the {} is smaller than its device and was not grown: this needs CAP_SYS_RESOURCE, and \
             an ext4 without errors; add the capability to the node agent, and stage the volume \
             again, which checks an ext4 with errors",
            fs.name()
        ),
        GrowError::Failed(failure) => tracing::warn!(
            %volume,
            "the {} was not grown and may be smaller than its device: {failure}",
            fs.name()
        ),
    }
}

/// Logs that each mount of the volume takes long, if its xfs has too many allocation groups. It was
/// not kept from growing: its storage has grown already, and a slow mount is better than an
/// expansion that never ends.
pub(in crate::operation) fn warn_of_groups(volume: &VolumeId, grown: Grown) {
    if let Grown::InManyGroups(groups) = grown {
        tracing::warn!(
            %volume, groups,
            "the xfs was formatted much smaller than it is now: each mount reads four blocks of \
             each of its allocation groups; copy its data to a new volume of this size \
             (docs/limitations.md)"
        );
    }
}
