//! Whether a path can be used on the agent's one thread, where no call may wait.

use std::path::Path;

use belay_server::call::Failure;

use super::Node;
use crate::kernel::Kernel;

/// Filesystems with anonymous device numbers that send no request to a server.
const LOCAL: [&str; 6] = ["bcachefs", "btrfs", "overlay", "ramfs", "tmpfs", "zfs"];

/// Whether the directory of `path` is in memory, and on a filesystem that is neither a volume,
/// which may hang, nor a server's.
///
/// # Errors
/// The kernel's error.
pub(super) fn is_quick<K: Kernel>(node: &Node<K>, path: &Path) -> Result<bool, Failure> {
    let directory = path.parent().map(|it| node.kernel.open_path_cached(it));
    let Some(Ok(Some(directory))) = directory else {
        return Ok(false);
    };
    let stat = node.kernel.stat(&directory)?;
    if node.transport.carries_volumes(&node.kernel, stat.dev)? {
        return Ok(false);
    }
    if !stat.dev.is_anonymous() {
        return Ok(true);
    }
    if node.index.shows(stat.dev) {
        return Ok(false);
    }
    let facts = node.kernel.statmount_of(stat.mount_id)?;
    Ok(facts.is_some_and(|facts| LOCAL.contains(&&*facts.fs_type)))
}
