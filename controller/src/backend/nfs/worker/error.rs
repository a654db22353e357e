//! Converts failed system calls in a share to failures of the call. The message contains the system
//! call, the path, the name of the errno, and a remedy.

use belay_server::call::{Failure, Kind};
use rustix::io::Errno;
use std::fmt::Display;

/// A failed system call.
#[derive(Debug)]
pub(super) struct Error {
    call: &'static str,
    path: String,
    pub(super) errno: Errno,
}

/// The system call that moves a directory.
pub(super) const RENAME: &str = "renameat";
/// The remedy for a rename that fails with EXDEV. Belay never renames a file across mounts, so the
/// cause is a project quota.
const OTHER_PROJECT: &str = "the server does not move it into or out of .belay/trash; with project \
                             quotas (xfs, ext4), the directory that it is moved into passes on \
                             another project ID: on the server, clear that flag, for a deletion by \
                             xfs_io -c 'chattr -R -P' .belay/trash, else of the directory above \
                             this one, or give both one project";

pub(super) type Result<T> = std::result::Result<T, Error>;

/// Returns a function that converts an errno to the error of a system call on a path below the
/// share.
pub(super) fn at(call: &'static str, path: impl Display) -> impl FnOnce(Errno) -> Error {
    move |errno| Error {
        call,
        path: path.to_string(),
        errno,
    }
}

impl Error {
    /// Whether the server has responded to the system call, which then cannot take effect later.
    pub(super) fn is_answered(&self) -> bool {
        meaning(self.errno).1 != Kind::Unreachable
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let Error { call, path, errno } = error;
        let (name, kind, advice) = match (call, errno) {
            (RENAME, Errno::XDEV) => (Some("EXDEV"), Kind::Precondition, OTHER_PROJECT),
            _ => meaning(errno),
        };
        let name = name.map_or_else(|| format!("errno {}", errno.raw_os_error()), str::to_owned);
        Failure::new(
            kind,
            format!("{call} {path:?} in the share: {name}; {advice}"),
        )
    }
}

/// Whether a repeated call would fail in the same way. If so, the worker keeps no temporary files
/// for a repeated call.
pub(super) fn is_final(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NotFound | Kind::Incompatible | Kind::Precondition | Kind::Quota
    )
}

fn meaning(errno: Errno) -> (Option<&'static str>, Kind, &'static str) {
    const REFUSED: &str = "the server refuses it to the root user of this host; export the share \
                           with no_root_squash, or give the directory to the user that it maps \
                           root to";
    const UNSUPPORTED: &str = "the server, or the filesystem that it exports, does not support it; \
                               remove it there, or use another server";
    const GONE: &str = "the server does not answer, or has lost the directory; repeat the call";
    match errno {
        Errno::NOSPC => (
            Some("ENOSPC"),
            Kind::Quota,
            "the server's filesystem is full",
        ),
        Errno::DQUOT => (Some("EDQUOT"), Kind::Quota, "raise the quota on the server"),
        Errno::ACCESS => (Some("EACCES"), Kind::Precondition, REFUSED),
        Errno::PERM => (Some("EPERM"), Kind::Precondition, REFUSED),
        Errno::ROFS => (
            Some("EROFS"),
            Kind::Precondition,
            "the server exports the share read-only",
        ),
        Errno::LOOP => (
            Some("ELOOP"),
            Kind::Precondition,
            "a symbolic link is in the path, and none is followed; remove it",
        ),
        Errno::NOTDIR => (
            Some("ENOTDIR"),
            Kind::Precondition,
            "a file or a symbolic link is in the place of a directory; move it away",
        ),
        Errno::EXIST => (
            Some("EEXIST"),
            Kind::Precondition,
            "another file has that name; move it away",
        ),
        Errno::XDEV => (
            Some("EXDEV"),
            Kind::Precondition,
            "another filesystem is mounted there on the server; nothing crosses into it",
        ),
        Errno::NAMETOOLONG => (
            Some("ENAMETOOLONG"),
            Kind::Precondition,
            "the server does not have names of that length",
        ),
        Errno::OPNOTSUPP => (Some("EOPNOTSUPP"), Kind::Precondition, UNSUPPORTED),
        Errno::INVAL => (Some("EINVAL"), Kind::Precondition, UNSUPPORTED),
        Errno::RANGE => (Some("ERANGE"), Kind::Precondition, UNSUPPORTED),
        Errno::TOOBIG => (Some("E2BIG"), Kind::Precondition, UNSUPPORTED),
        Errno::FBIG => (Some("EFBIG"), Kind::Precondition, UNSUPPORTED),
        Errno::NOENT => (
            Some("ENOENT"),
            Kind::Busy,
            "it was removed meanwhile; repeat the call",
        ),
        Errno::NOTEMPTY => (
            Some("ENOTEMPTY"),
            Kind::Busy,
            "files are still created in it, or open on this host; stop their pods, and repeat the \
             call",
        ),
        Errno::BUSY => (Some("EBUSY"), Kind::Busy, "it is in use; repeat the call"),
        Errno::IO => (Some("EIO"), Kind::Unreachable, GONE),
        Errno::STALE => (Some("ESTALE"), Kind::Unreachable, GONE),
        Errno::TIMEDOUT => (Some("ETIMEDOUT"), Kind::Unreachable, GONE),
        _ => (None, Kind::Unreachable, GONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Belay never renames a file across mounts.
    #[test]
    fn a_directory_that_cannot_be_moved_has_another_project() {
        let moved = Failure::from(at(RENAME, "pvc-1")(Errno::XDEV));
        let found = Failure::from(at("openat2", "pvc-1")(Errno::XDEV));
        for (failure, words) in [(moved, "another project"), (found, "is mounted there")] {
            assert_eq!(failure.kind, Kind::Precondition);
            assert!(failure.message.contains(words), "{failure}");
        }
    }

    #[test]
    fn a_server_that_refuses_is_not_one_that_does_not_answer() {
        for (errno, name, kind) in [
            (Errno::ACCESS, "EACCES", Kind::Precondition),
            (Errno::LOOP, "ELOOP", Kind::Precondition),
            (Errno::DQUOT, "EDQUOT", Kind::Quota),
            (Errno::STALE, "ESTALE", Kind::Unreachable),
            (Errno::NOMEM, "errno 12", Kind::Unreachable),
        ] {
            let error = at("mkdirat", "a/b")(errno);
            assert_eq!(error.is_answered(), kind != Kind::Unreachable);
            let failure = Failure::from(error);
            let start = format!("mkdirat \"a/b\" in the share: {name}; ");
            assert!(failure.message.starts_with(&start), "{failure}");
            assert_eq!(failure.kind, kind);
        }
    }
}
