//! Determines the block device of a mount.
//!
//! The device of a raw volume is the mounted node itself, and most filesystems have the number of
//! their device in `st_dev`. The `st_dev` of btrfs is anonymous, so its root directory must be
//! opened and queried.

use std::path::Path;

use belay_server::call::Failure;

use crate::kernel::{BtrfsDevice, Dev, FileKind, Kernel, Open, Stat};

/// The filesystem type whose `st_dev` is not its device's number.
const BTRFS: &str = "btrfs";

/// The block device of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The block device with this number. The number is anonymous if there is no device, or more
    /// than one.
    Device(Dev),
    /// A disk that was removed, and whose number the filesystem does not report.
    Removed,
}

/// Returns the number in the stat of the mount's root: for a raw device the number of the node,
/// otherwise the number of the filesystem.
pub(super) fn root_dev(stat: &Stat) -> Dev {
    match stat.kind {
        FileKind::BlockDevice => stat.rdev,
        _ => stat.dev,
    }
}

/// Returns the device of the mount on `path`, whose root `stat` describes. Opens only a btrfs,
/// because opening another filesystem without a device may wait for a server.
///
/// # Errors
/// Returns `ABORTED` if the mount changed meanwhile; otherwise the kernel's error.
pub(super) fn device_behind<K: Kernel>(
    kernel: &K,
    path: &Path,
    stat: &Stat,
) -> Result<Behind, Failure> {
    let dev = root_dev(stat);
    if !dev.is_anonymous() {
        return Ok(Behind::Device(dev));
    }
    match kernel.statmount(path)? {
        Some(facts) if facts.fs_type == BTRFS => ask_btrfs(kernel, path, stat),
        _ => Ok(Behind::Device(dev)),
    }
}

/// Returns the device of a mount that is known to be a btrfs, like [`device_behind`].
///
/// # Errors
/// Returns the same errors as [`device_behind`].
fn ask_btrfs<K: Kernel>(kernel: &K, path: &Path, stat: &Stat) -> Result<Behind, Failure> {
    let root = kernel.open(path, Open::Directory)?;
    let opened = kernel.stat(&root)?;
    if opened.mount_id != stat.mount_id || !opened.is_same_root(stat) {
        return Err(Failure::busy(format!(
            "the mount at {} was changed by another process meanwhile; retry",
            path.display()
        )));
    }
    Ok(match kernel.btrfs_device(&root)? {
        BtrfsDevice::One(dev) => Behind::Device(dev),
        BtrfsDevice::Several => Behind::Device(stat.dev),
        BtrfsDevice::Removed => Behind::Removed,
    })
}
