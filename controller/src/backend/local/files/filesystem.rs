//! Properties of individual filesystems. btrfs writes overwritten blocks to new locations, and
//! keeps an old extent while any of its blocks is in use. On btrfs, a full volume that is
//! overwritten at random therefore uses far more space than its size. Files with the attribute
//! NOCOW (chattr(1), C) are overwritten in place.
//!
//! ext4 stops all writes after an internal error. Since Linux 6.15, statvfs(3) does not report that
//! an ext4 has stopped all writes, but the mount options in /proc/self/mountinfo do
//! (proc_pid_mountinfo(5)).

use super::{Backing, Files};
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::{AtFlags, IFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;

/// The magic number of btrfs: `BTRFS_SUPER_MAGIC` in statfs(2).
const BTRFS: u64 = 0x9123_683e;

/// Whether the directory is on a btrfs.
pub(super) fn is_btrfs(dir: &File) -> Result<bool, Errno> {
    let magic = rustix::fs::fstatfs(dir)?.f_type;
    Ok(u64::try_from(magic).is_ok_and(|magic| magic == BTRFS))
}

/// Whether the file is on a btrfs that allocates new space for each overwrite.
pub(in crate::backend::local) fn is_copied_on_write(file: &File) -> Result<bool, Errno> {
    match is_btrfs(file)? {
        true => Ok(!rustix::fs::ioctl_getflags(file)?.contains(IFlags::NOCOW)),
        false => Ok(false),
    }
}

/// Sets the attribute NOCOW of an empty file on a btrfs.
pub(in crate::backend::local) fn set_nocow(file: &File) -> Result<(), Errno> {
    let attributes = rustix::fs::ioctl_getflags(file)?;
    rustix::fs::ioctl_setflags(file, attributes | IFlags::NOCOW)
}

impl Backing {
    /// Sets the attribute NOCOW of this file, which must be empty.
    pub(super) fn write_in_place(&self) {
        if let Err(errno) = set_nocow(&self.file) {
            let why = os("ioctl FS_IOC_SETFLAGS NOCOW", &self.path, errno);
            tracing::warn!("{why}; the volume may need more space than its size");
        }
    }

    /// Sets the attribute NOCOW of this empty file to the same value as for `from`, since btrfs
    /// cannot share blocks between files with different values. If the attribute cannot be set, the
    /// data is copied instead.
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

    /// Whether the file is on a btrfs that allocates new space for each overwrite.
    ///
    /// # Errors
    /// Returns `Unreachable` if the filesystem does not report the attributes of the file.
    pub(in crate::backend::local) fn is_copied_on_write(&self) -> Result<bool, Failure> {
        is_copied_on_write(&self.file)
            .map_err(|errno| os("ioctl FS_IOC_GETFLAGS", &self.path, errno))
    }

    fn attributes(&self) -> Result<IFlags, Errno> {
        rustix::fs::ioctl_getflags(&self.file)
    }
}

/// The magic number of ext4: `EXT4_SUPER_MAGIC` in statfs(2).
const EXT4: u64 = 0xef53;

/// The mount option that an ext4 has after it has stopped all writes.
const STOPPED: &[u8] = b"emergency_ro";

const MOUNTS: &str = "/proc/self/mountinfo";

impl Files {
    /// Whether the filesystem is an ext4 that has stopped all writes. Returns false if the mount
    /// options cannot be read; the next write then reports the failure.
    pub(in crate::backend::local) fn is_stopped(&self) -> bool {
        let magic = rustix::fs::fstatfs(&self.dir).map(|stat| u64::try_from(stat.f_type));
        if magic != Ok(Ok(EXT4)) {
            return false;
        }
        let stat = rustix::fs::statx(&self.dir, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        let (Ok(stat), Ok(mounts)) = (stat, std::fs::read(MOUNTS)) else {
            return false;
        };
        is_stopped(&mounts, stat.stx_mnt_id)
    }
}

/// Whether the line of the mount with this ID has the option [`STOPPED`]. The options of the
/// filesystem are the last field of the line.
fn is_stopped(mounts: &[u8], id: u64) -> bool {
    let id = id.to_string();
    let mut lines = mounts.split(|&byte| byte == b'\n');
    let line = lines.find(|line| line.split(|&byte| byte == b' ').next() == Some(id.as_bytes()));
    let options = line.and_then(|line| line.rsplit(|&byte| byte == b' ').next());
    options.is_some_and(|options| options.split(|&byte| byte == b',').any(|it| it == STOPPED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_counts_among_the_options_of_that_mounts_filesystem_alone() {
        let mounts = b"\
            32 1 7:1 / /a rw,emergency_ro shared:1 - ext4 /dev/emergency_ro rw,errors=remount-ro\n\
            3 1 7:2 / /b rw - ext4 /dev/loop2 rw,errors=remount-ro,emergency_ro\n\
            33 1 7:3 / /c rw - ext4 /dev/loop3 emergency_ro,rw\n\
            333 1 7:4 / /d rw - ext4 /dev/loop4 rw,emergency_ro_not\n";
        let stopped = [3, 32, 33, 333, 2].map(|id| is_stopped(mounts, id));
        assert_eq!(stopped, [true, false, true, false, false]);
        assert!(!is_stopped(b"", 3));
    }
}
