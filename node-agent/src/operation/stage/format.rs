//! Formats a volume that may be formatted, with the options of its StorageClass. Also grows a
//! filesystem when it is staged, since the volume may have been enlarged after the last mount, or
//! restored to a larger volume.

use std::time::Duration;

use belay_contract::format::FormatOptions;
use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::spec::MountSpec;
use super::tally::{self, Refusal};
use crate::device::OpenDevice;
use crate::filesystem::{DeviceUnderTest, FsType, GrowError, Grown, Permit, format, grow};
use crate::kernel::Kernel;
use crate::operation::Context;
use crate::work::Phase;

/// Maximum duration of mkfs. It takes minutes for a large volume on a slow disk; if it takes
/// longer, it hangs.
const FORMAT_DEADLINE: Duration = Duration::from_secs(600);

/// Returns the options for the format. Call this only if the volume is formatted: an existing
/// filesystem is mounted as it is, even if the options do not fit it.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` if the filesystem does not support the options; `FAILED_PRECONDITION`
/// if its blocks would be smaller than the blocks of its device, since mkfs would never succeed.
pub(super) fn format_options<K: Kernel>(
    spec: &MountSpec<'_>,
    fs: FsType,
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<FormatOptions, Failure> {
    const FIELD: &str = "volume_context";
    let options = FormatOptions::read(FIELD, &spec.request.volume_context)?;
    options.fit(FIELD, fs.name(), device.bytes)?;
    if let Some(asked) = options.block_bytes {
        let least = kernel.device_block_bytes(device.fd)?;
        if asked < least {
            return Err(Failure::precondition(format!(
                "volume {}: not formatted: its blockSize is {asked}, and its device has logical \
                 blocks of {least} bytes; use a StorageClass with blockSize {least}, or without",
                spec.request.id
            )));
        }
    }
    Ok(options)
}

/// Formats the device.
pub(super) fn make<K: Kernel>(
    cx: &Context<'_, K>,
    device: &DeviceUnderTest<'_, K::Fd>,
    what: (FsType, FormatOptions),
    permit: Permit,
) -> Result<(), Failure> {
    cx.progress().refuse_given_up()?;
    cx.phase(Phase::Format, || {
        format(&cx.kernel, device, what, permit, FORMAT_DEADLINE)
    })
    .inspect_err(|failure| {
        if failure.kind == Kind::Precondition {
            Refusal::Unfit.count();
        }
    })?;
    tally::formatted(what.0);
    Ok(())
}

/// Grows the filesystem to the size of its device. If that fails, the stage still succeeds, since
/// the pod's data is complete. NodeExpandVolume reports such a failure, but the caller does not
/// send it for a volume that was restored to a larger one, so the failure is also logged here.
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

/// Logs a warning if an xfs has so many allocation groups that each mount takes long. The xfs was
/// grown anyway: its storage has already grown, and a slow mount is better than an expansion that
/// never completes.
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
