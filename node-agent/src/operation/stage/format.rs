//! Formats a volume that may be formatted, as its StorageClass asks.

use std::time::Duration;

use belay_contract::format::FormatOptions;
use belay_server::call::{Failure, Kind};

use super::spec::MountSpec;
use super::tally::{self, Refusal};
use crate::filesystem::{DeviceUnderTest, FsType, Permit, format};
use crate::kernel::Kernel;
use crate::operation::Context;
use crate::work::Phase;

/// mkfs of a large volume on a slow disk takes minutes; a longer one hangs.
const FORMAT_DEADLINE: Duration = Duration::from_secs(600);

/// How to format the volume. Not read earlier: a filesystem that exists is mounted as it is.
///
/// # Errors
/// `INVALID_ARGUMENT` for options that the filesystem cannot have; `FAILED_PRECONDITION` for blocks
/// that its device cannot have: no mkfs would ever succeed.
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

/// Makes the filesystem.
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
