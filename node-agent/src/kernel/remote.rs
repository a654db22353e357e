//! Network filesystems. A call that waits for a server may never return, so a helper process makes
//! the call: the agent can kill a process, but not a thread. This module defines the call and the
//! answer of a helper, independent of the server's protocol.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use belay_contract::nfs_mount::Parameter;
use belay_server::call::Failure;
use belay_server::helper::Process;
use serde::{Deserialize, Serialize};

use super::{Descriptors, MountAttrs, Result, Usage};

/// A call that may wait for a server. Its paths come from CSI requests, and thus are UTF-8.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RemoteCall {
    /// Creates a detached mount.
    Mount(RemoteMount),
    /// umount2(2).
    Unmount(PathBuf),
    /// umount2(2) with `MNT_DETACH`.
    Detach(PathBuf),
    /// statfs(2).
    Usage(PathBuf),
}

/// The parameters of a mount.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteMount {
    /// The server's name or address, without brackets.
    pub(crate) server: String,
    /// The source of the mount, as the kernel expects it.
    pub(crate) source: String,
    /// Attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// The parameters of the filesystem in the order in which they are set: name, and value if
    /// there is one.
    pub(crate) options: Vec<Parameter>,
    /// The mode that the mount's root directory must have; `None` leaves the mode unchanged.
    pub(crate) permissions: Option<u32>,
}

/// The result of a successful call.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer<Fd> {
    /// A detached mount. The helper also keeps the mount open until [`Process::close`], so that the
    /// agent never closes a mount's last descriptor, which may wait for the server.
    Mount(Fd),
    /// The mount was removed.
    Unmounted,
    /// The usage of the filesystem.
    Usage(Usage),
}

/// The result of a helper process: an answer, or the failure of the call.
pub(crate) type Answered<Fd> = std::result::Result<Answer<Fd>, Failure>;

/// The source of a mount, as the filesystem itself reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// The filesystem type, as in /proc/filesystems.
    pub(crate) fs_type: String,
    /// The source of the mount. For a network filesystem, the source includes the mounted
    /// directory.
    pub(crate) source: OsString,
    /// The attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// Whether the filesystem itself is read-only.
    pub(crate) superblock_read_only: bool,
}

/// A helper process that makes one call.
pub(crate) trait Helper<Fd>: Process {
    /// Waits for the answer. Cancel-safe: dropping the future loses no data.
    ///
    /// # Errors
    /// Returns the failure of the call; `System` if the process has exited without an answer.
    fn answer(&mut self) -> impl Future<Output = Answered<Fd>> + Send;
}

/// The system calls for network filesystems.
pub(crate) trait Remotes: Descriptors {
    /// A helper process.
    type Helper: Helper<Self::Fd>;
    /// Starts a helper process for a call. Does not block.
    fn start_helper(&self, call: &RemoteCall) -> Result<Self::Helper>;
    /// getaddrinfo(3): returns the addresses of a host, at least one. Fails with the resolver's
    /// message, because the resolver returns no errno. Called only in helper processes.
    fn addresses(&self, host: &str) -> std::result::Result<Vec<IpAddr>, String>;
    /// umount2(2) with `UMOUNT_NOFOLLOW | MNT_DETACH`. Called only in helper processes: if no
    /// process uses the filesystem, the call waits for the server as a plain umount2 does.
    fn umount_lazily(&self, path: &std::path::Path) -> Result<()>;
    /// Returns the permissions of an open directory (fstat(2)). Called only in helper processes.
    fn mode(&self, fd: &Self::Fd) -> Result<u32>;
    /// Changes the permissions of an open directory (fchmod(2)). Called only in helper processes.
    fn chmod(&self, fd: &Self::Fd, mode: u32) -> Result<()>;
    /// Returns the source of the mount whose root is `path`; `None` if `path` is not the root of a
    /// mount. Uses statmount(2) if it returns sources (Linux 6.13), else mountinfo. Does not block.
    fn mount_source(&self, path: &std::path::Path) -> Result<Option<MountSource>>;
}
