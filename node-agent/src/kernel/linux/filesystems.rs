//! The verbs on mounted filesystems of the running kernel.

use std::os::fd::OwnedFd;

use super::{Linux, btrfs, disks, files, grow, loopdev, mount, sysfs};
use crate::kernel::{
    BtrfsDevice, BtrfsErrors, BtrfsGeometry, Dev, Ext4Errors, Filesystems, Result, XfsGeometry,
};

impl Filesystems for Linux {
    fn thaw(&self, root: &OwnedFd) -> Result<()> {
        mount::thaw(root)
    }

    fn ext4_resize(&self, root: &OwnedFd, blocks: u64) -> Result<()> {
        grow::ext4_resize(root, blocks)
    }

    fn ext4_errors(&self, dev: Dev) -> Result<Option<Ext4Errors>> {
        match loopdev::number(dev, self.loop_part_shift) {
            Some(number) => sysfs::ext4_errors(&format!("loop{number}")),
            None => disks::ext4_errors(dev),
        }
    }

    fn xfs_geometry(&self, root: &OwnedFd) -> Result<XfsGeometry> {
        grow::xfs_geometry(root)
    }

    fn xfs_grow(&self, root: &OwnedFd, blocks: u64, imaxpct: u32) -> Result<()> {
        grow::xfs_grow(root, blocks, imaxpct)
    }

    fn btrfs_device(&self, root: &OwnedFd) -> Result<BtrfsDevice> {
        btrfs::device(root)
    }

    fn btrfs_geometry(&self, root: &OwnedFd) -> Result<BtrfsGeometry> {
        btrfs::geometry(root)
    }

    fn btrfs_errors(&self, root: &OwnedFd) -> Result<BtrfsErrors> {
        btrfs::errors(root)
    }

    fn btrfs_grow(&self, root: &OwnedFd, id: u64) -> Result<()> {
        btrfs::grow(root, id)
    }

    fn syncfs(&self, root: &OwnedFd) -> Result<()> {
        files::syncfs(root)
    }
}
