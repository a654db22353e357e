//! Applies what the controller says of a volume, in the publish context or on the volume's file, to
//! a device and its user.

use belay_contract::drivers::local;
use belay_contract::publish_context::PublishContext;
use belay_contract::reason::volume::BACKING_FILE_SHORT;
use belay_server::call::Failure;
use belay_server::request::{Access, Capability, VolumeId};
use belay_server::size::Exact;

use super::Node;
use crate::device::OpenDevice;
use crate::filesystem::FsType;
use crate::kernel::Kernel;

/// The size of the device. A smaller one than the controller's means that it is the wrong device.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with both sizes.
pub(super) fn fit<K: Kernel>(
    node: &Node<K>,
    volume: &VolumeId,
    plan: &PublishContext,
    device: &OpenDevice<K>,
) -> Result<u64, Failure> {
    let kernel = &node.kernel;
    let least_bytes = match device.backing_file() {
        Some(file) => recorded_bytes(kernel, file)?,
        None => plan.bytes,
    };
    let bytes = device.bytes(kernel, least_bytes)?;
    if bytes >= least_bytes {
        return Ok(bytes);
    }
    let (bytes, least_bytes) = (Exact(bytes), Exact(least_bytes));
    if device.backing_file().is_none() {
        return Err(Failure::precondition(format!(
            "volume {volume}: {} has {bytes}, less than the {least_bytes} of the volume's \
             attachment: it was truncated, or is another volume's disk",
            device.path().display()
        )));
    }
    Err(Failure::precondition(format!(
        "volume {volume}: {} has {bytes} of {least_bytes}: it was truncated, and the data beyond \
         its end is lost; restore it from a backup or a snapshot (docs/health.md, {})",
        node.transport.named(volume)?.display(),
        BACKING_FILE_SHORT.name()
    )))
}

/// The size that the file records; 0 if it records none.
fn recorded_bytes<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<u64, Failure> {
    let value = kernel.xattr(file, local::BYTES)?;
    Ok(value.map_or(0, |value| local::parse_bytes(&value)))
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
