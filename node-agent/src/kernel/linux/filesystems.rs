//! The calls on mounted filesystems. ext4 and xfs grow by ioctls, to a size that the caller
//! selects.

#![expect(
    unsafe_code,
    reason = "rustix has no calls for the ioctls of ext4 and xfs"
)]

use std::os::fd::OwnedFd;

use rustix::ioctl::{Getter, Opcode, Setter, opcode};

use super::files::of;
use super::{Linux, btrfs, disks, files, loopdev, mount, sysfs};
use crate::kernel::{
    BtrfsDevice, BtrfsErrors, BtrfsGeometry, Dev, Ext4Errors, Filesystems, Result, XfsGeometry,
};

impl Filesystems for Linux {
    fn thaw(&self, root: &OwnedFd) -> Result<()> {
        mount::thaw(root)
    }

    fn ext4_resize(&self, root: &OwnedFd, blocks: u64) -> Result<()> {
        ext4_resize(root, blocks)
    }

    fn ext4_errors(&self, dev: Dev) -> Result<Option<Ext4Errors>> {
        match loopdev::number(dev, self.loop_part_shift) {
            Some(number) => sysfs::ext4_errors(&format!("loop{number}")),
            None => disks::ext4_errors(dev),
        }
    }

    fn xfs_geometry(&self, root: &OwnedFd) -> Result<XfsGeometry> {
        xfs_geometry(root)
    }

    fn xfs_grow(&self, root: &OwnedFd, blocks: u64, imaxpct: u32) -> Result<()> {
        xfs_grow(root, blocks, imaxpct)
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

/// `EXT4_IOC_RESIZE_FS` (include/uapi/linux/ext4.h): the new number of blocks.
const EXT4_IOC_RESIZE_FS: Opcode = opcode::write::<u64>(b'f', 16);
/// `XFS_IOC_FSGROWFSDATA` (fs/xfs/libxfs/xfs_fs.h).
const XFS_IOC_FSGROWFSDATA: Opcode = opcode::write::<GrowfsData>(b'X', 110);
/// `XFS_IOC_FSGEOMETRY` in its fifth version (Linux 5.1).
const XFS_IOC_FSGEOMETRY: Opcode = opcode::read::<FsopGeom>(b'X', 126);

const _: () = assert!(EXT4_IOC_RESIZE_FS == 0x4008_6610);
const _: () = assert!(XFS_IOC_FSGROWFSDATA == 0x4010_586e);
const _: () = assert!(XFS_IOC_FSGEOMETRY == 0x8100_587e);

/// `struct xfs_growfs_data`.
#[repr(C)]
struct GrowfsData {
    newblocks: u64,
    imaxpct: u32,
    /// The padding that C adds implicitly. The padding is a field here so that no byte is
    /// uninitialised.
    padding: u32,
}

/// `struct xfs_fsop_geom`. Each of the fields `before_agcount`, `before_imaxpct` and `rest` covers
/// several fields of the C struct, which the agent does not read.
#[repr(C)]
struct FsopGeom {
    blocksize: u32,
    before_agcount: [u32; 2],
    agcount: u32,
    before_imaxpct: [u32; 3],
    imaxpct: u32,
    datablocks: u64,
    rest: [u64; 27],
}

const _: () = assert!(size_of::<GrowfsData>() == 16);
const _: () = assert!(size_of::<FsopGeom>() == 256);
const _: () = assert!(std::mem::offset_of!(FsopGeom, agcount) == 12);
const _: () = assert!(std::mem::offset_of!(FsopGeom, imaxpct) == 28);
const _: () = assert!(std::mem::offset_of!(FsopGeom, datablocks) == 32);

/// Implements `Kernel::ext4_resize`.
fn ext4_resize(root: &OwnedFd, blocks: u64) -> Result<()> {
    // SAFETY: the opcode takes a pointer to a u64 and only reads it; filesystems other than ext4
    // return ENOTTY.
    let done =
        unsafe { rustix::ioctl::ioctl(root, Setter::<EXT4_IOC_RESIZE_FS, u64>::new(blocks)) };
    done.map_err(of("EXT4_IOC_RESIZE_FS", root))
}

/// Implements `Kernel::xfs_geometry`.
fn xfs_geometry(root: &OwnedFd) -> Result<XfsGeometry> {
    // SAFETY: the opcode has the size of the struct, which the kernel fills completely; all of
    // its fields are integers, for which all bits are valid.
    let geometry =
        unsafe { rustix::ioctl::ioctl(root, Getter::<XFS_IOC_FSGEOMETRY, FsopGeom>::new()) }
            .map_err(of("XFS_IOC_FSGEOMETRY", root))?;
    Ok(XfsGeometry {
        block_bytes: geometry.blocksize,
        blocks: geometry.datablocks,
        groups: geometry.agcount,
        imaxpct: geometry.imaxpct,
    })
}

/// Implements `Kernel::xfs_grow`.
fn xfs_grow(root: &OwnedFd, blocks: u64, imaxpct: u32) -> Result<()> {
    let wanted = GrowfsData {
        newblocks: blocks,
        imaxpct,
        padding: 0,
    };
    // SAFETY: the opcode has the size of the struct, which the kernel only reads.
    let done = unsafe {
        rustix::ioctl::ioctl(
            root,
            Setter::<XFS_IOC_FSGROWFSDATA, GrowfsData>::new(wanted),
        )
    };
    done.map_err(of("XFS_IOC_FSGROWFSDATA", root))
}
