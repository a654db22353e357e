//! The root directory of a mounted filesystem that refuses all calls. After xfs has shut itself
//! down, it returns EIO for every statx and open. The kernel still reports the mounts of the
//! filesystem, without a call to the filesystem.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::files::{of, path_of};
use super::mountinfo;
use crate::kernel::{Cause, Dev, Error, FileKind, MountFacts, Result, Stat};

/// The root directory of a filesystem that has shut down, as described by mountinfo and fdinfo.
pub(super) struct Root {
    /// The stat of the root, without a mount ID, because the kernel may reuse the ID that fdinfo
    /// shows.
    pub(super) stat: Stat,
    pub(super) facts: MountFacts,
}

/// Returns the root of the mount on `path`; `None` if `path` is not the root of a mount.
pub(super) fn root(path: &Path) -> Result<Option<Root>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    match opened {
        Ok(fd) => root_of(&fd),
        Err(_) => Ok(None),
    }
}

/// Returns the root of the mount that `fd` refers to; `None` if `fd` does not refer to the root of
/// a mount.
pub(super) fn root_of(fd: &OwnedFd) -> Result<Option<Root>> {
    let (mount_id, ino) = described(fd)?;
    let Some(found) = mountinfo::with_id(mount_id, Path::new(&path_of(fd)))? else {
        return Ok(None);
    };
    let stat = Stat {
        kind: FileKind::Directory,
        dev: found.dev,
        rdev: Dev { major: 0, minor: 0 },
        ino,
        bytes: 0,
        allocated: 0,
        links: 1,
        mount_root: true,
        mount_id: 0,
    };
    let facts = MountFacts {
        shut_down: true,
        ..found.facts
    };
    Ok(Some(Root { stat, facts }))
}

/// Returns the result of statx(2). If statx has failed with EIO, returns the stat of the
/// filesystem's root instead, if `root` finds it.
pub(super) fn or_described<T: From<Stat>>(
    found: Result<T>,
    root: impl FnOnce() -> Result<Option<Root>>,
) -> Result<T> {
    match found {
        Err(error) if error.cause() == Cause::Io => {
            root()?.map(|root| root.stat.into()).ok_or(error)
        }
        found => found,
    }
}

/// Reads the mount ID and the inode number of a descriptor (proc_pid_fdinfo(5)).
fn described(fd: &OwnedFd) -> Result<(u64, u64)> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::at("read", Path::new(&path), errno)
    })?;
    let field = |name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse().ok()
    };
    field("mnt_id:")
        .zip(field("ino:"))
        .ok_or_else(|| of("read of fdinfo", fd)(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::linux::files;

    #[test]
    fn the_root_of_a_mount_is_described_as_statx_describes_it() {
        let path = Path::new("/proc");
        let (root, stat) = (root(path).unwrap().unwrap(), files::look(path).unwrap());
        let stat = stat.unwrap();
        assert_eq!((root.stat.ino, root.stat.dev), (stat.ino, stat.dev));
        assert!(root.stat.mount_root && root.facts.shut_down);
        assert_eq!(root.facts.fs_type, "proc");
    }

    #[test]
    fn what_is_not_the_root_of_a_mount_is_not_described() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [dir.path(), &file, Path::new("/no/such/path")] {
            assert!(root(path).unwrap().is_none(), "{path:?}");
        }
    }
}
