//! Converts failed system calls to failures that name the call, the path, the errno and the remedy.
//! The functions of this module do not know the purpose of the system call.

use belay_contract::reason::volume;
use belay_server::call::{Failure, Kind};
use belay_server::size::Exact;
use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use std::path::Path;

/// Returns the failure for a system call that failed on a path.
pub(super) fn os(call: &str, path: &Path, errno: Errno) -> Failure {
    let (name, kind, advice) = meaning(errno);
    let name = name.map_or_else(|| format!("errno {}", errno.raw_os_error()), str::to_owned);
    Failure::new(kind, format!("{call} {}: {name}; {advice}", path.display()))
}

/// Returns the failure for a function of the standard library that failed on a path.
pub(super) fn at(call: &str, path: &Path, error: &io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(errno) => os(call, path, errno),
        None => Failure::new(
            Kind::Unreachable,
            format!("{call} {}: {error}", path.display()),
        ),
    }
}

/// Returns the message for a file of `bytes` bytes that must have at least `least_bytes`.
pub(super) fn truncated(path: impl Display, bytes: u64, least_bytes: u64) -> String {
    format!(
        "{path}: has {} of {}: it was truncated, and the data beyond its end is lost; restore it \
         from a backup or a snapshot (docs/health.md, {})",
        Exact(bytes),
        Exact(least_bytes),
        volume::BACKING_FILE_SHORT.name()
    )
}

/// Returns the message for the backing file of a filesystem that was in use but has no data now.
pub(super) fn emptied(path: impl Display) -> String {
    format!(
        "{path}: holds no data, but the volume was in use: the file was emptied, and the data is \
         lost; restore it from a backup or a snapshot (docs/health.md, {})",
        volume::BACKING_FILE_EMPTY.name()
    )
}

/// Converts a failure to look up a name, or to complete or remove the object with the name. If the
/// disk could not be read, an earlier call may have created the object. The failure must not be
/// final in that case, since the caller would forget the object.
pub(super) fn unread(failure: Failure) -> Failure {
    match failure.kind {
        Kind::Unreachable => failure.may_be_running(),
        _ => failure,
    }
}

fn meaning(errno: Errno) -> (Option<&'static str>, Kind, &'static str) {
    const LOOK: &str = "check the kernel log, repair the disk, and repeat the call";
    const RIGHTS: &str = "check owner and attributes (lsattr) of the state directory";
    match errno {
        Errno::NOSPC => (
            Some("ENOSPC"),
            Kind::Quota,
            "the disk of the state directory is full: delete volumes and snapshots that are not \
             needed (by their PVCs, never their files), or enlarge it",
        ),
        Errno::DQUOT => (
            Some("EDQUOT"),
            Kind::Quota,
            "raise the quota of the state directory",
        ),
        Errno::FBIG => (
            Some("EFBIG"),
            Kind::Range,
            "this filesystem does not support files of that size",
        ),
        Errno::IO => (Some("EIO"), Kind::Unreachable, LOOK),
        Errno::ACCESS => (
            Some("EACCES"),
            Kind::Unreachable,
            "run the controller as the owner of the state directory, or correct owner and mode",
        ),
        Errno::PERM => (Some("EPERM"), Kind::Unreachable, RIGHTS),
        Errno::ROFS => (
            Some("EROFS"),
            Kind::Unreachable,
            "the filesystem is mounted read-only: check the kernel log, and mount it writable",
        ),
        Errno::EXIST => (
            Some("EEXIST"),
            Kind::Unreachable,
            "move the foreign file away",
        ),
        Errno::XDEV => (
            Some("EXDEV"),
            Kind::Unreachable,
            "keep volumes and snapshots on one filesystem",
        ),
        Errno::NOENT => (
            Some("ENOENT"),
            Kind::Unreachable,
            "mount the disk of the state directory, or restore the directory",
        ),
        Errno::NOTDIR => (
            Some("ENOTDIR"),
            Kind::Unreachable,
            "a part of this path is a file; name a directory by --state-dir",
        ),
        Errno::LOOP => (
            Some("ELOOP"),
            Kind::Unreachable,
            "replace the symbolic link by a regular file",
        ),
        Errno::NFILE => (
            Some("ENFILE"),
            Kind::Unreachable,
            "raise the system's limit of open files",
        ),
        Errno::MFILE => (
            Some("EMFILE"),
            Kind::Unreachable,
            "raise the process's limit of open files",
        ),
        Errno::NOMEM => (Some("ENOMEM"), Kind::Unreachable, "out of memory"),
        _ => (None, Kind::Unreachable, LOOK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_a_broken_one_and_each_error_has_its_name() {
        let errors = [
            (Errno::NOSPC, "ENOSPC", Kind::Quota),
            (Errno::DQUOT, "EDQUOT", Kind::Quota),
            (Errno::FBIG, "EFBIG", Kind::Range),
            (Errno::IO, "EIO", Kind::Unreachable),
            (Errno::ACCESS, "EACCES", Kind::Unreachable),
            (Errno::PERM, "EPERM", Kind::Unreachable),
            (Errno::ROFS, "EROFS", Kind::Unreachable),
            (Errno::EXIST, "EEXIST", Kind::Unreachable),
            (Errno::XDEV, "EXDEV", Kind::Unreachable),
            (Errno::NOENT, "ENOENT", Kind::Unreachable),
            (Errno::NOTDIR, "ENOTDIR", Kind::Unreachable),
            (Errno::LOOP, "ELOOP", Kind::Unreachable),
            (Errno::NFILE, "ENFILE", Kind::Unreachable),
            (Errno::MFILE, "EMFILE", Kind::Unreachable),
            (Errno::NOMEM, "ENOMEM", Kind::Unreachable),
            (Errno::STALE, "errno 116", Kind::Unreachable),
        ];
        for (errno, name, kind) in errors {
            let failure = os("write", Path::new("/state/v"), errno);
            let start = format!("write /state/v: {name}; ");
            assert!(failure.message.starts_with(&start), "{failure}");
            assert_eq!(failure.kind, kind, "{failure}");
        }
    }
}
