//! Size and free space of the filesystem that contains the backing files.

use belay_server::call::Failure;
use belay_server::facts::Space;

use super::Node;
use crate::kernel::Kernel;

/// The current values; `None` for volumes that are disks, and if the directory at the path of the
/// backing files was replaced since the start, because its filesystem is then a different one. May
/// wait for a disk.
///
/// # Errors
/// The kernel's error.
pub(crate) fn space<K: Kernel>(node: &Node<K>) -> Result<Option<Space>, Failure> {
    let kernel = &node.kernel;
    let Some(dir) = node.transport.folder() else {
        return Ok(None);
    };
    let (named, held) = (kernel.look(dir.path())?, kernel.stat(dir.fd())?);
    if !named.is_some_and(|named| named.is_same_root(&held)) {
        return Ok(None);
    }
    let usage = kernel.statfs(dir.path())?;
    Ok(Some(Space {
        // Loop devices write as root, which may use the reserved blocks.
        free_bytes: usage.total_bytes.saturating_sub(usage.used_bytes),
        size_bytes: usage.total_bytes,
    }))
}
