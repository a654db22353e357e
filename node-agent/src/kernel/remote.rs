//! Filesystems of servers. A call that a server must answer may never return, so a helper process
//! makes it: the agent can kill a process, but not a thread. Defines the call and the answer of a
//! helper. Knows no protocol of a server.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use belay_contract::nfs_mount::Parameter;
use belay_server::call::Failure;
use belay_server::helper::Process;
use serde::{Deserialize, Serialize};

use super::{Descriptors, MountAttrs, Result, Usage};

/// A call that may wait for a server. Its paths come from requests, and thus are UTF-8.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RemoteCall {
    /// Makes a detached mount.
    Mount(RemoteMount),
    /// umount2(2).
    Unmount(PathBuf),
    /// umount2(2) with `MNT_DETACH`.
    Detach(PathBuf),
    /// statfs(2).
    Usage(PathBuf),
}

/// The mount to make.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteMount {
    /// The host's name or address, without brackets.
    pub(crate) server: String,
    /// The source of the mount, as the kernel expects it.
    pub(crate) source: String,
    /// Attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// Parameters of the filesystem, in this order: name, and value if it has one.
    pub(crate) options: Vec<Parameter>,
    /// The mode that the root of the mount must have; `None` leaves it as it is.
    pub(crate) permissions: Option<u32>,
}

/// The result of a successful call.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer<Fd> {
    /// A detached mount. The helper holds it as well until [`Process::close`], so that the agent
    /// never closes the last descriptor of a mount, which may wait for the server.
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
    /// The source; of a server's filesystem, with the directory that is mounted.
    pub(crate) source: OsString,
    /// The attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// The filesystem itself is read-only.
    pub(crate) superblock_read_only: bool,
}

/// A running helper process.
pub(crate) trait Helper<Fd>: Process {
    /// Waits for the answer. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Returns the failure of the call; `System` if the process has ended without an answer.
    fn answer(&mut self) -> impl Future<Output = Answered<Fd>> + Send;
}

/// The system calls for filesystems of servers.
pub(crate) trait Remotes: Descriptors {
    /// A helper process.
    type Helper: Helper<Self::Fd>;
    /// Starts a process for one call. Quick.
    fn start_helper(&self, call: &RemoteCall) -> Result<Self::Helper>;
    /// getaddrinfo(3): the addresses of a host, at least one; else the resolver's message, since
    /// it returns no errno. For a helper.
    fn addresses(&self, host: &str) -> std::result::Result<Vec<IpAddr>, String>;
    /// umount2(2) with `UMOUNT_NOFOLLOW | MNT_DETACH`. For a helper: if nothing uses the
    /// filesystem, it waits for the server as a plain umount2 does.
    fn umount_lazily(&self, path: &std::path::Path) -> Result<()>;
    /// The permissions of an open directory (fstat(2)). For a helper.
    fn mode(&self, fd: &Self::Fd) -> Result<u32>;
    /// fchmod(2). For a helper.
    fn chmod(&self, fd: &Self::Fd, mode: u32) -> Result<()>;
    /// The source of the mount whose root is `path`; `None` if it is not the root of a mount.
    /// statmount(2) where it shows sources (Linux 6.13), else mountinfo. Quick.
    fn mount_source(&self, path: &std::path::Path) -> Result<Option<MountSource>>;
}
