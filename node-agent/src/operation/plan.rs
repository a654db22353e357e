//! Applies the controller's publish context to a device and its user.

use belay_contract::publish_context::PublishContext;
use belay_server::call::Failure;
use belay_server::request::{Access, Capability};
use belay_server::size::Exact;

use crate::device::OpenDevice;
use crate::filesystem::FsType;
use crate::kernel::Kernel;

/// The size of the device. A size other than the controller's means that it is the wrong device.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with both sizes.
pub(super) fn fit<K: Kernel>(
    plan: &PublishContext,
    kernel: &K,
    device: &OpenDevice<K>,
) -> Result<u64, Failure> {
    let bytes = device.bytes(kernel, plan.bytes)?;
    if bytes < plan.bytes {
        return Err(Failure::precondition(format!(
            "{} has {}, less than the {} of the volume's attachment: it was truncated, or is \
             another volume's disk",
            device.path().display(),
            Exact(bytes),
            Exact(plan.bytes)
        )));
    }
    Ok(bytes)
}

/// Whether the workload may only read.
pub(super) fn is_read_only(plan: &PublishContext, capability: &Capability) -> bool {
    plan.read_only || capability.mode.is_read_only()
}

/// The filesystem type of a mount capability; `None` if it does not name one.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` for a type that this agent cannot make or mount.
pub(super) fn asked_fs(access: &Access) -> Result<Option<FsType>, Failure> {
    let Access::Mount { fs_type, .. } = access else {
        return Ok(None);
    };
    if fs_type.is_empty() {
        return Ok(None);
    }
    FsType::parse(fs_type).map(Some).ok_or_else(|| {
        Failure::invalid(
            "volume_capability.mount.fs_type",
            format!("{fs_type:?} is not supported; use ext4, xfs or btrfs"),
        )
    })
}
