//! The root of a mounted filesystem that answers no question any more. xfs says EIO to every statx
//! and open once it has shut itself down after an error; what is mounted where is then still known
//! to the kernel, without asking the filesystem.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::files::{of, path_of};
use super::mountinfo;
use crate::kernel::{Dev, Error, FileKind, MountFacts, Result, Stat};

/// What can be known of it.
pub(super) struct Root {
    /// Without a mount id: the one that is told here may come again.
    pub(super) stat: Stat,
    pub(super) facts: MountFacts,
}

/// The root of the mount on `path`; `None` when it is not one, and the error stands for itself.
pub(super) fn root(path: &Path) -> Result<Option<Root>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    let Ok(fd) = opened else {
        return Ok(None);
    };
    let (mount_id, ino) = described(&fd)?;
    let Some(found) = mountinfo::with_id(mount_id, Path::new(&path_of(&fd)))? else {
        return Ok(None);
    };
    let stat = Stat {
        kind: FileKind::Directory,
        dev: found.dev,
        rdev: Dev { major: 0, minor: 0 },
        ino,
        bytes: 0,
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

/// The mount and the inode that a descriptor is in (proc_pid_fdinfo(5)).
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
