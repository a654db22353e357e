//! Formats a volume with the options of its StorageClass, if the volume may be formatted. Also
//! grows a filesystem during NodeStageVolume, because the volume may have been enlarged since its
//! last mount, or may have been restored to a larger volume.

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

/// Maximum duration of mkfs. For a large volume on a slow disk, mkfs takes minutes; if mkfs takes
/// longer than this, it is assumed to hang.
const FORMAT_DEADLINE: Duration = Duration::from_secs(600);

/// Returns the options for mkfs. Call this only to format the volume: an existing filesystem is
/// mounted unchanged, even if it does not match the options.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` if the filesystem does not support the options; `FAILED_PRECONDITION`
/// if the requested block size is smaller than the block size of the device, because mkfs would
/// never succeed.
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

/// Grows the filesystem to the size of its device. A failure is only logged, so that
/// NodeStageVolume succeeds, because all data of the pod is accessible. NodeExpandVolume would
/// report the failure, but the kubelet does not call NodeExpandVolume for a volume that was
/// restored to a larger volume.
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

/// Logs a warning if an xfs has so many allocation groups that each mount takes a long time. The
/// xfs was grown nevertheless, because its file or disk has already grown, and a slow mount is
/// better than an expansion that never completes.
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
