//! Which block device is behind a mount.
//!
//! A raw device is its own answer, and so is `st_dev` for most filesystems. That of btrfs is
//! anonymous, so its root must be opened and asked.

use std::path::Path;

use belay_server::call::Failure;

use crate::kernel::{Dev, FileKind, Kernel, Open, Stat};

/// The filesystem type whose `st_dev` is not that of its device.
const BTRFS: &str = "btrfs";

/// The number that a look at the mount's root gives: the node's own for raw block, else that of
/// its filesystem.
pub(super) fn root_dev(stat: &Stat) -> Dev {
    match stat.kind {
        FileKind::BlockDevice => stat.rdev,
        _ => stat.dev,
    }
}

/// The device behind the mount on `path`, whose root `stat` describes; an anonymous number where
/// there is no device, or no single one. Opens nothing but a btrfs, since to open another
/// filesystem without a device may mean to wait for a server.
///
/// # Errors
/// `ABORTED` when the mount changed meanwhile; else what the kernel refused.
pub(super) fn device_behind<K: Kernel>(
    kernel: &K,
    path: &Path,
    stat: &Stat,
) -> Result<Dev, Failure> {
    let dev = root_dev(stat);
    if !dev.is_anonymous() {
        return Ok(dev);
    }
    match kernel.statmount(path)? {
        Some(facts) if facts.fs_type == BTRFS => ask_btrfs(kernel, path, stat),
        _ => Ok(dev),
    }
}

/// [`device_behind`] of what is known to be a btrfs.
///
/// # Errors
/// As [`device_behind`].
pub(super) fn ask_btrfs<K: Kernel>(kernel: &K, path: &Path, stat: &Stat) -> Result<Dev, Failure> {
    let root = kernel.open(path, Open::Directory)?;
    let opened = kernel.stat(&root)?;
    if opened.mount_id != stat.mount_id || !opened.is_same_root(stat) {
        return Err(Failure::busy(format!(
            "what is mounted at {} was changed by somebody meanwhile; try again",
            path.display()
        )));
    }
    Ok(kernel.btrfs_device(&root)?.unwrap_or(stat.dev))
}
