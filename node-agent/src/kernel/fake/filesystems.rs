//! The calls on mounted filesystems.

use super::answers::{GONE, NONE, named};
use super::disks::device_dev;
use super::{Fake, Fd};
use crate::kernel::{
    BtrfsDevice, BtrfsErrors, BtrfsGeometry, Descriptors, Dev, Ext4Errors, Filesystems, Result,
    XfsGeometry,
};

impl Descriptors for Fake {
    type Fd = Fd;
}

impl Filesystems for Fake {
    fn thaw(&self, root: &Fd) -> Result<()> {
        self.call("FITHAW", named(root), NONE, |_| Ok(()))
    }

    fn ext4_resize(&self, root: &Fd, blocks: u64) -> Result<()> {
        self.call("EXT4_IOC_RESIZE_FS", named(root), NONE, |state| {
            state.ext4_resize(root.id, blocks)
        })
    }

    fn ext4_errors(&self, dev: Dev) -> Result<Option<Ext4Errors>> {
        let name = format!("/sys/fs/ext4/{dev}/errors_count");
        self.call("read", name, GONE, |state| Ok(state.ext4_errors(dev)))
    }

    fn xfs_geometry(&self, root: &Fd) -> Result<XfsGeometry> {
        self.call("XFS_IOC_FSGEOMETRY", named(root), NONE, |s| {
            s.xfs_geometry(root.id)
        })
    }

    fn xfs_grow(&self, root: &Fd, blocks: u64, _: u32) -> Result<()> {
        self.call("XFS_IOC_FSGROWFSDATA", named(root), NONE, |state| {
            state.xfs_grow(root.id, blocks)
        })
    }

    fn btrfs_device(&self, root: &Fd) -> Result<BtrfsDevice> {
        self.call("BTRFS_IOC_FS_INFO", named(root), NONE, |state| {
            let number = state.device_of(root.id, "btrfs")?;
            let is_removed = state.disks.get(&number).is_some_and(|it| it.is_removed);
            Ok(match is_removed {
                true => BtrfsDevice::Removed,
                false => BtrfsDevice::One(device_dev(number)),
            })
        })
    }

    fn btrfs_geometry(&self, root: &Fd) -> Result<BtrfsGeometry> {
        self.call("BTRFS_IOC_DEV_INFO", named(root), NONE, |s| {
            s.btrfs_geometry(root.id)
        })
    }

    fn btrfs_errors(&self, root: &Fd) -> Result<BtrfsErrors> {
        self.call("BTRFS_IOC_GET_DEV_STATS", named(root), NONE, |s| {
            s.btrfs_errors(root.id)
        })
    }

    fn btrfs_grow(&self, root: &Fd, id: u64) -> Result<()> {
        self.call("BTRFS_IOC_RESIZE", named(root), NONE, |state| {
            state.btrfs_grow(root.id, id)
        })
    }

    fn syncfs(&self, root: &Fd) -> Result<()> {
        self.call("syncfs", named(root), NONE, |state| state.syncfs(root.id))
    }
}
