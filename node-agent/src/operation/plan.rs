//! Reads the properties of a volume that the controller has recorded in the publish context or on
//! the volume's file: the minimum size of its device, and whether it is read-only.

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

/// Returns the size of the device in bytes. Refuses a device that is smaller than the controller's
/// record, because such a device was truncated or belongs to a different volume.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with both sizes if the device is too small.
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
        node.transport.named(kernel, volume)?.display(),
        BACKING_FILE_SHORT.name()
    )))
}

/// Returns the size of the volume that an attribute of its file records, in bytes; 0 if the
/// attribute is missing.
fn recorded_bytes<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<u64, Failure> {
    let value = kernel.xattr(file, local::BYTES)?;
    Ok(value.map_or(0, |value| local::parse_bytes(&value)))
}

/// Whether the pod may only read the volume.
pub(super) fn is_read_only(plan: &PublishContext, capability: &Capability) -> bool {
    plan.read_only || capability.mode.is_read_only()
}

/// Returns the requested filesystem type; `None` if the request contains none.
///
/// # Errors
/// Returns `INVALID_ARGUMENT` for a type that this agent does not support.
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
