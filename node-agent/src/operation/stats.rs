//! `NodeGetVolumeStats`: how full a volume is.

use belay_server::failure::Failure;
use belay_server::request::Stats;

use super::Node;
use super::phase::{Operation, Phase, operation, phase};
use super::staged::Owner;
use crate::kernel::{FileKind, Kernel, Usage};

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
    operation(Operation::Stats, || run(node, request))
}

fn run<K: Kernel>(node: &Node<K>, request: &Stats) -> Result<VolumeUsage, Failure> {
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
    if stat.kind != FileKind::BlockDevice {
        return if node.prove(&request.id, path, &stat)?.is_some() {
            let usage = phase(Phase::Usage, || node.kernel.statfs(path))?;
            Ok(VolumeUsage::Filesystem(usage))
        } else {
            Err(not_there())
        };
    }
    match node.owner(&request.id, stat.rdev)? {
        Owner::Ours(device) if stat.mount_root => {
            Ok(VolumeUsage::Block(node.kernel.device_bytes(device.fd())?))
        }
        _ => Err(not_there()),
    }
}
