//! A failed system call: its name, the object that it was called on, and the reason. Code outside
//! of the directory `kernel` does not see the errno.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use belay_server::call::{Failure, Kind};
use rustix::io::Errno;

use super::Kernel;

/// The result of a system call.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A failed system call.
#[expect(
    clippy::error_impl_error,
    reason = "its users write kernel::Error, not Error"
)]
#[derive(Clone, Debug)]
pub(crate) struct Error {
    call: &'static str,
    object: Box<str>,
    errno: Errno,
    detail: Box<str>,
}

/// The cause of a failed call, as far as callers distinguish causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// ENOENT, ENOTDIR: the name does not exist.
    Missing,
    /// EEXIST.
    Exists,
    /// EBUSY, ETXTBSY.
    Busy,
    /// EAGAIN: the call would block.
    Again,
    /// EPERM, EACCES: a capability or a permission is missing.
    Denied,
    /// EROFS.
    ReadOnly,
    /// ENOSPC, EDQUOT.
    Full,
    /// ENOTEMPTY.
    NotEmpty,
    /// EISDIR: the path is a directory, but the call expects a file.
    Directory,
    /// ELOOP, EXDEV: the path contains a symlink or the root of another mount, which the call does
    /// not allow.
    Escapes,
    /// EINVAL.
    Invalid,
    /// ENXIO, ENODEV, ENOMEDIUM: the device was removed.
    NoDevice,
    /// EIO and similar: the disk failed.
    Io,
    /// EMFILE, ENFILE: the limit of open files of this process, or of the machine, is reached.
    Files,
    /// ENOSYS, EOPNOTSUPP: the kernel does not support the call.
    Unsupported,
    /// EPROTONOSUPPORT: the server, or this kernel, does not support that version of the protocol.
    Version,
    /// ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH and similar: the server does not respond.
    Unreachable,
    /// ESTALE: the server no longer has the file or directory.
    Stale,
    /// Any other errno.
    Other,
}

impl Error {
    /// The system call `call` on `object` failed with `errno`.
    pub(super) fn new(call: &'static str, object: impl Into<Box<str>>, errno: Errno) -> Self {
        Error {
            call,
            object: object.into(),
            errno,
            detail: Box::default(),
        }
    }

    /// The system call `call` on `path` failed with `errno`.
    pub(super) fn at(call: &'static str, path: &Path, errno: Errno) -> Self {
        Error::new(call, path.to_string_lossy().into_owned(), errno)
    }

    /// Adds the kernel's message, if there is more than an errno.
    pub(super) fn because(mut self, detail: impl Into<Box<str>>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Appends what the caller knows about the failure.
    pub(crate) fn also(mut self, more: &str) -> Self {
        let separator = if self.detail.is_empty() { "" } else { "; " };
        self.detail = format!("{}{separator}{more}", self.detail).into();
        self
    }

    /// Returns the cause of the failure.
    pub(crate) fn cause(&self) -> Cause {
        match self.errno {
            Errno::NOENT | Errno::NOTDIR => Cause::Missing,
            Errno::EXIST => Cause::Exists,
            Errno::BUSY | Errno::TXTBSY => Cause::Busy,
            Errno::AGAIN => Cause::Again,
            Errno::PERM | Errno::ACCESS => Cause::Denied,
            Errno::ROFS => Cause::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => Cause::Full,
            Errno::NOTEMPTY => Cause::NotEmpty,
            Errno::ISDIR => Cause::Directory,
            Errno::LOOP | Errno::XDEV => Cause::Escapes,
            Errno::INVAL => Cause::Invalid,
            Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => Cause::NoDevice,
            // ext4, xfs and btrfs report a damaged block as EBADMSG or EUCLEAN.
            Errno::IO | Errno::NODATA | Errno::REMOTEIO | Errno::UCLEAN | Errno::BADMSG => {
                Cause::Io
            }
            Errno::MFILE | Errno::NFILE => Cause::Files,
            Errno::NOSYS | Errno::OPNOTSUPP => Cause::Unsupported,
            Errno::PROTONOSUPPORT => Cause::Version,
            Errno::TIMEDOUT
            | Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::NETUNREACH
            | Errno::NETDOWN => Cause::Unreachable,
            Errno::STALE => Cause::Stale,
            _ => Cause::Other,
        }
    }

    /// Returns the errno's name, for callers that write their own message.
    pub(crate) fn errno_name(&self) -> &'static str {
        name(self.errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.errno.raw_os_error()).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        write!(
            f,
            "{} {}: {} ({text})",
            self.call,
            self.object,
            name(self.errno)
        )?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Error> for Failure {
    /// Converts an error that no caller handles: the message names the call, the object and the
    /// errno.
    fn from(error: Error) -> Failure {
        let kind = match error.cause() {
            Cause::Full | Cause::Files => Kind::Quota,
            _ => Kind::System,
        };
        let is_device = error.object.starts_with("/dev/");
        let cure = match error.errno {
            Errno::MFILE => {
                "; the node agent has as many files open as RLIMIT_NOFILE allows: raise it"
            }
            Errno::NOSPC if is_device => {
                "; the storage behind this device is full: free space there (of a local volume: on \
                 the filesystem of --loop-dir)"
            }
            Errno::NOSPC => "; free space on its filesystem",
            Errno::NFILE => "; the node has as many files open as fs.file-max allows: raise it",
            _ => "",
        };
        Failure::new(kind, format!("{error}{cure}"))
    }
}

/// Pairs each constant with its name in errno(3); rustix names most constants without the E.
macro_rules! names {
    ($($errno:ident)*) => {
        &[
            (Errno::ACCESS, "EACCES"),
            (Errno::TOOBIG, "E2BIG"),
            $((Errno::$errno, concat!("E", stringify!($errno))),)*
        ]
    };
}

/// The errnos of filesystems, block devices and this agent's calls, including network disks.
const NAMES: &[(Errno, &str)] = names! {
    AGAIN ALREADY BADE BADF BADFD BADMSG BUSY CANCELED CHILD COMM CONNABORTED CONNREFUSED CONNRESET
    DEADLK DOM DQUOT EXIST FAULT FBIG HOSTDOWN HOSTUNREACH HWPOISON ILSEQ INPROGRESS INTR INVAL IO
    ISDIR KEYEXPIRED KEYREJECTED KEYREVOKED LOOP MEDIUMTYPE MFILE MLINK NAMETOOLONG NETDOWN
    NETUNREACH NFILE NOBUFS NODATA NODEV NOENT NOEXEC NOKEY NOLCK NOLINK NOMEDIUM NOMEM NONET
    NOPKG NOSPC NOSYS NOTBLK NOTCONN NOTDIR NOTEMPTY NOTRECOVERABLE NOTTY NXIO OPNOTSUPP OVERFLOW
    OWNERDEAD PERM PIPE PROTO PROTONOSUPPORT RANGE REMOTE REMOTEIO RESTART ROFS SHUTDOWN SPIPE SRCH
    STALE TIME TIMEDOUT TOOMANYREFS TXTBSY UCLEAN USERS XDEV
};

fn name(errno: Errno) -> &'static str {
    NAMES
        .iter()
        .find(|(known, _)| *known == errno)
        .map_or("unnamed errno", |(_, name)| name)
}

/// How long a call that fails with EBUSY is repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Retries for 31 ms, so that the caller reports soon that a device is in use.
    Moment,
    /// Retries for 1023 ms, because the last user should have closed the device by then.
    Second,
}

impl Patience {
    /// Returns the pauses between attempts, in milliseconds.
    fn pauses_ms(self) -> &'static [u64] {
        const ALL: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
        match self {
            Patience::Moment => &ALL[..5],
            Patience::Second => &ALL,
        }
    }
}

/// Repeats `attempt` while `is_busy` is true for its result, for the time that `patience` allows.
///
/// Other processes hold devices and mounts briefly: udev probes a changed device, and a child has
/// copies of all descriptors of the agent between fork and exec. No event reports when the other
/// processes close a device or mount.
pub(crate) fn while_busy<K: Kernel, T>(
    kernel: &K,
    patience: Patience,
    is_busy: impl Fn(&Result<T>) -> bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    for pause_ms in patience.pauses_ms() {
        let result = attempt();
        if !is_busy(&result) {
            return result;
        }
        kernel.pause(Duration::from_millis(*pause_ms));
    }
    attempt()
}

/// Whether the call failed with EBUSY or ETXTBSY.
pub(crate) fn failed_busy<T>(result: &Result<T>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.cause() == Cause::Busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_call_the_path_and_the_errno() {
        let error = Error::at("umount2", Path::new("/stage"), Errno::BUSY).because("held");
        assert_eq!(
            error.to_string(),
            "umount2 /stage: EBUSY (Device or resource busy): held"
        );
        assert_eq!(error.cause(), Cause::Busy);
    }

    #[test]
    fn a_limit_of_open_files_is_named_and_is_no_fault_of_the_system() {
        for (errno, limit) in [
            (Errno::MFILE, "RLIMIT_NOFILE"),
            (Errno::NFILE, "fs.file-max"),
        ] {
            let failure = Failure::from(Error::at("openat", Path::new("/dev/loop0"), errno));
            assert_eq!(failure.kind, Kind::Quota);
            assert!(failure.message.starts_with("openat /dev/loop0: E"));
            assert!(failure.message.contains(limit), "{failure}");
        }
    }

    /// The errnos are from errno(3) and from `blk_status_to_errno` (Linux: block/blk-core.c).
    #[test]
    fn what_a_failing_disk_or_filesystem_answers_has_a_name() {
        for (errno, name) in [
            (Errno::ACCESS, "EACCES"),
            (Errno::BADMSG, "EBADMSG"),
            (Errno::UCLEAN, "EUCLEAN"),
            (Errno::NOTRECOVERABLE, "ENOTRECOVERABLE"),
            (Errno::SHUTDOWN, "ESHUTDOWN"),
            (Errno::NOMEDIUM, "ENOMEDIUM"),
            (Errno::NOLINK, "ENOLINK"),
            (Errno::BADE, "EBADE"),
            (Errno::ILSEQ, "EILSEQ"),
            (Errno::TIME, "ETIME"),
            (Errno::TOOMANYREFS, "ETOOMANYREFS"),
            (Errno::HWPOISON, "EHWPOISON"),
            (Errno::NOKEY, "ENOKEY"),
        ] {
            assert_eq!(Error::new("read", "/dev/loop0", errno).errno_name(), name);
        }
    }

    #[test]
    fn a_damaged_block_is_a_failure_of_the_disk() {
        for errno in [Errno::IO, Errno::UCLEAN, Errno::BADMSG] {
            assert_eq!(Error::new("read", "/dev/loop0", errno).cause(), Cause::Io);
        }
    }
}
