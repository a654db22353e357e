//! btrfs writes overwritten blocks elsewhere, and keeps an old extent while any block of it is in
//! use: a full volume that is overwritten at random takes far more space than its size. Files with
//! the attribute NOCOW (chattr(1), C) are overwritten in place.

use super::Backing;
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::IFlags;
use rustix::io::Errno;
use std::fs::File;

/// `BTRFS_SUPER_MAGIC` of statfs(2).
const BTRFS: u64 = 0x9123_683e;

/// Whether the filesystem of that directory is a btrfs.
pub(super) fn is_btrfs(dir: &File) -> Result<bool, Errno> {
    let magic = rustix::fs::fstatfs(dir)?.f_type;
    Ok(u64::try_from(magic).is_ok_and(|magic| magic == BTRFS))
}

/// Whether an overwrite allocates space on the file's btrfs.
pub(in crate::backend::local) fn is_copied_on_write(file: &File) -> Result<bool, Errno> {
    match is_btrfs(file)? {
        true => Ok(!rustix::fs::ioctl_getflags(file)?.contains(IFlags::NOCOW)),
        false => Ok(false),
    }
}

/// Sets NOCOW on a file that is empty and on a btrfs.
pub(in crate::backend::local) fn set_nocow(file: &File) -> Result<(), Errno> {
    let attributes = rustix::fs::ioctl_getflags(file)?;
    rustix::fs::ioctl_setflags(file, attributes | IFlags::NOCOW)
}

impl Backing {
    /// Sets NOCOW on the file, which is empty.
    pub(super) fn write_in_place(&self) {
        if let Err(errno) = set_nocow(&self.file) {
            let why = os("ioctl FS_IOC_SETFLAGS NOCOW", &self.path, errno);
            tracing::warn!("{why}; the volume may need more space than its size");
        }
    }

    /// Sets NOCOW on the file, which is empty, as on the other file: files that differ in it cannot
    /// share blocks. If this fails, they do not.
    pub(super) fn overwrite_like(&self, from: &Self) {
        let (Ok(ours), Ok(theirs)) = (self.attributes(), from.attributes()) else {
            return;
        };
        let mut wanted = ours;
        wanted.set(IFlags::NOCOW, theirs.contains(IFlags::NOCOW));
        if wanted != ours
            && let Err(errno) = rustix::fs::ioctl_setflags(&self.file, wanted)
        {
            let why = os("ioctl FS_IOC_SETFLAGS", &self.path, errno);
            tracing::warn!("{why}; its blocks are copied");
        }
    }

    /// Whether an overwrite allocates space on its btrfs.
    ///
    /// # Errors
    /// `Unreachable`.
    pub(in crate::backend::local) fn is_copied_on_write(&self) -> Result<bool, Failure> {
        is_copied_on_write(&self.file)
            .map_err(|errno| os("ioctl FS_IOC_GETFLAGS", &self.path, errno))
    }

    fn attributes(&self) -> Result<IFlags, Errno> {
        rustix::fs::ioctl_getflags(&self.file)
    }
}
