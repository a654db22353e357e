//! Facts about the simulated calls: the errnos that are results rather than failures, the calls
//! that may block, and the names of the objects that are called on.

use std::path::Path;

use rustix::io::Errno;

use super::Fd;

/// The errno for an object that does not exist. ENOENT is a result, not a failure, because the real
/// kernel returns ENOENT only in this case.
pub(super) const GONE: &[Errno] = &[Errno::NOENT];
/// The errnos of umount2(2) for a path on which nothing is mounted.
pub(super) const NOT_MOUNTED: &[Errno] = &[Errno::NOENT, Errno::INVAL];
pub(super) const NONE: &[Errno] = &[];

/// Returns the path with which a descriptor was opened.
pub(super) fn named(fd: &Fd) -> String {
    let state = fd.machine.lock();
    let found = state.open.get(&fd.id);
    found.map_or_else(String::new, |d| d.path.clone())
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The errnos that a fault can inject.
const ERRNOS: [(&str, Errno); 17] = [
    ("EIO", Errno::IO),
    ("EAGAIN", Errno::AGAIN),
    ("EBUSY", Errno::BUSY),
    ("EEXIST", Errno::EXIST),
    ("ENOENT", Errno::NOENT),
    ("EPERM", Errno::PERM),
    ("ENOSPC", Errno::NOSPC),
    ("EINVAL", Errno::INVAL),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("ESTALE", Errno::STALE),
    ("EPROTONOSUPPORT", Errno::PROTONOSUPPORT),
    ("EMFILE", Errno::MFILE),
    ("ENOMEM", Errno::NOMEM),
    ("EACCES", Errno::ACCESS),
    ("ENODEV", Errno::NODEV),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("ECONNREFUSED", Errno::CONNREFUSED),
];

/// The simulation's name for an openat2(2) call that queries no filesystem.
pub(super) const CACHED: &str = "openat2 RESOLVE_CACHED";

/// The calls that may wait for a disk or a server, as documented in [`crate::kernel::Kernel`].
const WAITING: [&str; 40] = [
    "open",
    "openat2",
    "openat",
    "statfs",
    "fstatfs",
    "lseek",
    "pread",
    "pwrite",
    "fsync",
    "fgetxattr",
    "fsetxattr",
    "fremovexattr",
    "LOOP_CONFIGURE",
    "LOOP_GET_STATUS64",
    "LOOP_SET_STATUS64",
    "LOOP_CLR_FD",
    "LOOP_SET_CAPACITY",
    "FITHAW",
    "umount2",
    "spawn",
    "mkfs write",
    "e2fsck open",
    "e2fsck read",
    "e2fsck write",
    "cryptsetup open",
    "cryptsetup read",
    "cryptsetup write",
    "DM_TABLE_LOAD",
    "DM_DEV_SUSPEND",
    "DM_DEV_REMOVE",
    "EXT4_IOC_RESIZE_FS",
    "XFS_IOC_FSGROWFSDATA",
    "BTRFS_IOC_FS_INFO",
    "BTRFS_IOC_RESIZE",
    "VIRTIO_BLK_T_GET_ID",
    "rescan",
    "getaddrinfo",
    "umount2 MNT_DETACH",
    "fstat",
    "fchmod",
];

pub(super) fn may_wait(name: &str, object: &str) -> bool {
    WAITING.contains(&name) || name == "fsconfig" && object == "create"
}

/// Returns the errno with this name; `None` if the errno is one of `answers`, which the call
/// returns as results rather than failures.
pub(super) fn failure(name: &str, answers: &[Errno]) -> Option<Errno> {
    let (_, errno) = ERRNOS.iter().find(|(known, _)| *known == name).unwrap();
    (!answers.contains(errno)).then_some(*errno)
}
