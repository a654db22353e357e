//! `NodeGetVolumeStats`: how full a volume is.

use belay_server::failure::Failure;
use belay_server::request::Stats;

use super::Node;
use crate::device::loop_path;
use crate::kernel::{FileKind, Kernel, Open, Usage};

/// How full a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeUsage {
    /// A filesystem.
    Filesystem(Usage),
    /// A raw device of so many bytes; what is in use on it only its owner knows.
    Block(u64),
}

/// Asks a published or staged volume.
///
/// # Errors
/// `NOT_FOUND` when the volume is not mounted at that path.
pub(crate) fn stats<K: Kernel>(node: &Node<K>, request: &Stats) -> Result<VolumeUsage, Failure> {
    let path = &request.volume_path;
    let not_there = || {
        Failure::not_found(format!(
            "volume_path: volume {} is not mounted at {}",
            request.id,
            path.display()
        ))
    };
    if !path.is_absolute() {
        return Err(not_there());
    }
    let stat = node.look("volume_path", path)?.ok_or_else(not_there)?;
    if node.prove(&request.id, path, &stat)?.is_none() {
        return Err(not_there());
    }
    if stat.kind != FileKind::BlockDevice {
        return Ok(VolumeUsage::Filesystem(node.kernel.statfs(path)?));
    }
    let number = stat.rdev.as_loop().ok_or_else(not_there)?;
    let device = node.kernel.open(&loop_path(number), Open::DeviceAsk)?;
    Ok(VolumeUsage::Block(node.kernel.device_bytes(&device)?))
}
