//! The Unix socket of a server. The socket file is private before it becomes visible, never
//! replaces a socket that another process serves, and is removed at shutdown only if it was not
//! replaced. This module does not depend on the services.

mod rival;

use crate::endpoint::Endpoint;
use crate::process::Liveness;
use rival::Patience;
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Stat, chmodat, chownat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of connections that wait to be accepted. The kubelet opens a connection for each
/// call, and at its start, it makes calls for all volumes at once. The kernel lowers the number to
/// net.core.somaxconn.
const BACKLOG: i32 = 1024;

/// Number of attempts to lock the directory. A different process holds the lock only for the
/// duration of a few system calls.
const LOCK_TRIES: u32 = 10;
/// Number of attempts to lock the directory on a thread that already serves other callers.
const LOCK_TRIES_WHILE_SERVING: u32 = 1;
/// Pause between two attempts to lock the directory.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Number of attempts to bind the socket, since a different process may replace the dead socket
/// first.
const BIND_TRIES: u32 = 3;

/// The mode of a socket that only root may connect to, since the callers of a CSI driver can mount
/// anything.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The mode of a socket that the members of the file's group may also connect to.
const SHARED: Mode = PRIVATE.union(Mode::RGRP).union(Mode::WGRP);

/// A listening socket and its file.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

impl Socket {
    /// Binds and listens. A socket without a live server is replaced, even if a thread that hangs
    /// in the kernel keeps the socket of a killed server open.
    ///
    /// # Errors
    /// Returns an error with the path in its text if the directory is missing, another kind of file
    /// exists there, or another process serves the socket.
    pub fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        Self::bind_within(endpoint, LOCK_TRIES, Patience::AtStart)
    }

    /// Binds and listens like [`Socket::bind`], but never waits, for a thread that serves other
    /// callers.
    ///
    /// # Errors
    /// Returns the errors of [`Socket::bind`], and an error if it would wait.
    pub(crate) fn bind_at_once(endpoint: &Endpoint) -> io::Result<Self> {
        Self::bind_within(endpoint, LOCK_TRIES_WHILE_SERVING, Patience::None)
    }

    fn bind_within(endpoint: &Endpoint, tries: u32, patience: Patience) -> io::Result<Self> {
        let path = &endpoint.path;
        let mut dead = None;
        for _ in 0..BIND_TRIES {
            let directory = lock_directory_of(path, tries)?;
            let listening = listen(path, dead).map_err(|error| cannot_listen(path, error))?;
            if let Attempt::Ours(listener) = listening {
                let file =
                    SocketFile::at(path).map_err(|error| explain(path, "cannot stat", error))?;
                return Ok(Self {
                    listener: UnixListener::from(listener),
                    file,
                });
            }
            // Release the lock, since other processes may need it meanwhile.
            drop(directory);
            if let Attempt::Theirs(seen) = listening {
                expect_dead(path, patience)?;
                dead = Some(seen);
            }
        }
        Err(cannot_listen(path, Errno::ADDRINUSE))
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Lets the members of a group connect as well. Without `CAP_CHOWN`, this process must be a
    /// member of the group.
    ///
    /// # Errors
    /// Returns an error with the path in its text. After an error, the group cannot connect.
    pub fn share_with(&self, group: u32) -> io::Result<()> {
        let path = self.path();
        let none = AtFlags::empty();
        chownat(CWD, path, None, Some(Gid::from_raw(group)), none).map_err(|error| {
            explain(path, format!("cannot give it to the group {group}"), error)
        })?;
        // Widen the mode last, so that the socket remains private until its group is set.
        chmodat(CWD, path, SHARED, none)
            .map_err(|error| explain(path, "cannot let its group connect", error))
    }

    /// Returns the listener for the runtime, and the file, which is removed when dropped.
    pub(crate) fn into_parts(self) -> io::Result<(tokio::net::UnixListener, SocketFile)> {
        Ok((
            tokio::net::UnixListener::from_std(self.listener)?,
            self.file,
        ))
    }
}

/// The file of a socket. When this value is dropped, the file is removed if it is still the same
/// socket.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> Result<Self, Errno> {
        let found = rustix::fs::lstat(path)?;
        Ok(Self {
            path: path.to_owned(),
            identity: identity(&found),
        })
    }

    /// Whether the file exists and was not replaced.
    pub(crate) fn stands(&self) -> bool {
        rustix::fs::lstat(&self.path).is_ok_and(|it| identity(&it) == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock, another server could replace the file between the stat and the unlink.
        let directory = lock_directory_of(&self.path, LOCK_TRIES);
        if !self.stands() {
            return;
        }
        if let Err(error) = directory.and_then(|_| Ok(rustix::fs::unlink(&self.path)?)) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// Returns the numbers of the device and the inode.
fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// Locks the directory of the socket, so that two servers cannot replace each other's socket at the
/// same time. Waits briefly if a different server holds the lock. A separate lock file is not
/// possible, since CSI forbids other files next to the socket. The lock is released when the result
/// is dropped.
fn lock_directory_of(path: &Path, tries: u32) -> io::Result<OwnedFd> {
    let directory = path.parent().unwrap_or(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(|error| explain(directory, "cannot open the directory of the socket", error))?;
    let mut tries_left = tries;
    loop {
        tries_left -= 1;
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::INTR) if tries_left > 0 => pause(),
            Err(error) => return Err(explain(directory, "cannot lock the directory", error)),
            Ok(()) => return Ok(opened),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event reports that another process unlocks it; nothing is served yet or later, \
              except for a rare socket that is removed while others are served"
)]
fn pause() {
    std::thread::sleep(LOCK_PAUSE);
}

/// The result of an attempt to listen.
enum Attempt {
    Ours(OwnedFd),
    /// The file of a different socket exists. The process that listens on that socket must be
    /// inspected first.
    Theirs(SocketState),
}

/// The state of a socket file when it was inspected. The state includes the time of the file's last
/// change, since the socket of a different server may get the same inode number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketState {
    identity: (u64, u64),
    changed: (i64, u64),
}

impl SocketState {
    fn of(found: &Stat) -> Self {
        Self {
            identity: identity(found),
            changed: (found.st_ctime, found.st_ctime_nsec),
        }
    }
}

/// Listens on the socket, and replaces the `dead` socket if it still exists.
fn listen(path: &Path, dead: Option<SocketState>) -> Result<Attempt, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Set the mode of the unbound socket: bind gives the file this mode without the bits of the
    // umask, so that the file never has a wider mode (unix(7); in the kernel, unix_bind_bsd).
    rustix::fs::fchmod(&socket, PRIVATE)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            let found = rustix::fs::lstat(path)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
                return Err(Errno::NOTSOCK);
            }
            if dead != Some(SocketState::of(&found)) {
                return Ok(Attempt::Theirs(SocketState::of(&found)));
            }
            rustix::fs::unlink(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(Attempt::Ours(socket))
}

/// Fails with the reason, unless the process that listens on the socket is dead.
fn expect_dead(path: &Path, patience: Patience) -> io::Result<()> {
    let address = SocketAddrUnix::new(path).map_err(|error| cannot_listen(path, error))?;
    match rival::look(&address, patience) {
        Ok(Liveness::Dead(why)) => {
            tracing::info!(path = %path.display(), why, "replacing a dead socket");
            Ok(())
        }
        Ok(Liveness::Alive(who)) => {
            let error = cannot_listen(path, Errno::ADDRINUSE);
            Err(io::Error::new(error.kind(), format!("{error} ({who})")))
        }
        // The socket was removed meanwhile.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(cannot_listen(path, error)),
    }
}

fn cannot_listen(path: &Path, error: Errno) -> io::Error {
    explain(path, "cannot listen", error)
}

/// Returns the error with the path, and with advice if the remedy is not obvious.
fn explain(path: &Path, what: impl fmt::Display, error: Errno) -> io::Error {
    let kind = io::Error::from(error).kind();
    let advice = match error {
        Errno::NOTSOCK => "another kind of file exists there; move it away, or name another path",
        Errno::ADDRINUSE => "another process serves it; stop that process first",
        Errno::AGAIN => "another process holds a lock on it; find it in /proc/locks, and stop it",
        Errno::NOENT => "create the directory first",
        Errno::ACCESS => "run this program as a user that may write to the directory",
        Errno::ROFS => "name a path on a writable filesystem",
        _ => "",
    };
    let separator = if advice.is_empty() { "" } else { "; " };
    io::Error::new(
        kind,
        format!("{}: {what}: {error}{separator}{advice}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;
    use tempfile::TempDir;

    fn endpoint(directory: &TempDir) -> Endpoint {
        Endpoint {
            path: directory.path().join("csi.sock"),
        }
    }

    fn refused(endpoint: &Endpoint) -> String {
        Socket::bind(endpoint).unwrap_err().to_string()
    }

    #[test]
    fn a_socket_is_alone_in_its_directory_and_removed_at_the_end() {
        let directory = TempDir::new().unwrap();
        let socket = Socket::bind(&endpoint(&directory)).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        UnixStream::connect(socket.path()).unwrap();
        drop(socket);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_is_private_until_it_is_shared_with_a_group() {
        let directory = TempDir::new().unwrap();
        let socket = Socket::bind(&endpoint(&directory)).unwrap();
        let found = || std::fs::metadata(socket.path()).unwrap();
        assert_eq!(found().mode() & 0o777, 0o600);
        let group = rustix::process::getegid().as_raw();
        socket.share_with(group).unwrap();
        assert_eq!((found().mode() & 0o777, found().gid()), (0o660, group));
    }

    #[test]
    fn a_dead_socket_is_replaced() {
        let directory = TempDir::new().unwrap();
        let endpoint = endpoint(&directory);
        drop(UnixListener::bind(&endpoint.path).unwrap());
        assert!(endpoint.path.exists());
        let socket = Socket::bind(&endpoint).unwrap();
        UnixStream::connect(socket.path()).unwrap();
    }

    #[test]
    fn a_socket_that_is_closed_while_it_is_inspected_is_replaced() {
        let directory = TempDir::new().unwrap();
        let endpoint = endpoint(&directory);
        let dying = UnixListener::bind(&endpoint.path).unwrap();
        std::thread::scope(|scope| {
            // The old server accepts the first connection of the new server, and then closes its
            // own socket.
            scope.spawn(move || dying.accept().map(drop));
            let socket = Socket::bind(&endpoint).unwrap();
            UnixStream::connect(socket.path()).unwrap();
        });
    }

    #[test]
    fn a_socket_that_changed_since_it_was_found_dead_is_not_replaced() {
        let directory = TempDir::new().unwrap();
        let path = endpoint(&directory).path;
        drop(UnixListener::bind(&path).unwrap());
        let seen = || SocketState::of(&rustix::fs::lstat(&path).unwrap());
        let dead = seen();
        // The filesystem's timestamps may not change for some milliseconds.
        while seen() == dead {
            chmodat(CWD, &path, SHARED, AtFlags::empty()).unwrap();
        }
        let again = listen(&path, Some(dead)).unwrap();
        assert!(matches!(again, Attempt::Theirs(found) if found == seen()));
        let ours = listen(&path, Some(seen())).unwrap();
        assert!(matches!(ours, Attempt::Ours(_)));
    }

    #[test]
    fn a_served_socket_is_left_alone() {
        let directory = TempDir::new().unwrap();
        let endpoint = endpoint(&directory);
        let first = Socket::bind(&endpoint).unwrap();
        let error = refused(&endpoint);
        let us = format!("(process {})", std::process::id());
        for part in ["csi.sock", "another process", &us] {
            assert!(error.contains(part), "{error}");
        }
        UnixStream::connect(first.path()).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let directory = TempDir::new().unwrap();
        let endpoint = endpoint(&directory);
        std::fs::write(&endpoint.path, "precious").unwrap();
        let error = refused(&endpoint);
        assert!(error.contains("another kind of file"), "{error}");
        assert_eq!(std::fs::read_to_string(&endpoint.path).unwrap(), "precious");

        std::fs::remove_file(&endpoint.path).unwrap();
        std::os::unix::fs::symlink("nowhere.sock", &endpoint.path).unwrap();
        let error = refused(&endpoint);
        assert!(error.contains("another kind of file"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let directory = TempDir::new().unwrap();
        let error = refused(&Endpoint {
            path: directory.path().join("missing/csi.sock"),
        });
        assert!(
            error.contains("missing: ") && error.contains("create the directory first"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_that_another_process_locks_is_named() {
        let directory = TempDir::new().unwrap();
        let holder = std::fs::File::open(directory.path()).unwrap();
        rustix::fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
        let error = refused(&endpoint(&directory));
        let name = directory.path().to_str().unwrap();
        assert!(
            error.starts_with(name) && error.contains("another process holds a lock"),
            "{error}"
        );
        drop(holder);
        Socket::bind(&endpoint(&directory)).unwrap();
    }

    #[test]
    fn the_end_of_an_old_server_leaves_the_socket_of_its_successor() {
        let directory = TempDir::new().unwrap();
        let endpoint = endpoint(&directory);
        let old = Socket::bind(&endpoint).unwrap();
        std::fs::remove_file(&endpoint.path).unwrap();
        let new = Socket::bind(&endpoint).unwrap();
        drop(old);
        UnixStream::connect(new.path()).unwrap();
    }
}
