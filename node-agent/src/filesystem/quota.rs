//! Project quotas of a mounted ext4, which its mount options do not always show.

use super::probe::ext4_superblock;
use crate::kernel::{Kernel, Result};

/// Whether the ext4 on the device may have project quotas, now or after quotactl(2): it has the
/// feature, or its superblock is not sound.
///
/// # Errors
/// If the device has no size.
pub(crate) fn may_have_project_quotas<K: Kernel>(kernel: &K, device: &K::Fd) -> Result<bool> {
    let bytes = kernel.device_bytes(device)?;
    let superblock = ext4_superblock(kernel, device, bytes);
    Ok(superblock.map_or(true, |superblock| superblock.has_projects))
}
