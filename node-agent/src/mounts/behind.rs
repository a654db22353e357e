//! Determines the block device of a mount.
//!
//! The mount of a raw volume shows the device node itself, and most filesystems report the number
//! of their device in `st_dev`. The `st_dev` of btrfs is anonymous, so the root directory of the
//! btrfs must be opened and queried with an ioctl.

use std::path::Path;

use belay_server::call::Failure;

use crate::kernel::{BtrfsDevice, Dev, FileKind, Kernel, Open, Stat};

/// The filesystem type whose `st_dev` is not the number of its device.
const BTRFS: &str = "btrfs";

/// The block device of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The block device with this number. The number is anonymous if the filesystem has no device,
    /// or has several devices.
    Device(Dev),
    /// A removed disk whose number the filesystem does not report.
    Removed,
}

/// Returns a device number from the stat of the mount's root: `st_rdev` of a raw device's node, or
/// `st_dev` of a filesystem.
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
/// Returns `ABORTED` if the mount was changed meanwhile; otherwise the kernel's error.
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

/// Returns the device of the mount on `path`, which is known to be a btrfs.
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
