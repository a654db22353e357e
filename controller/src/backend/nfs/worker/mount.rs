//! Mounts a share with fsopen(2) and fsmount(2), without attaching it to a path. The kernel
//! unmounts the share when its descriptor is closed.

use super::super::call::Mount;
use super::super::path;
use belay_contract::nfs_mount::{Attempt, Parameter, Refusal, Way, addresses, try_each};
use belay_server::call::{Failure, Kind};
use belay_server::file::log_of;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::OwnedFd;

/// Options of a soft mount, whose system calls fail instead of waiting indefinitely: 2 retries, and
/// a timeout of 5 s (`timeo` is in tenths of a second).
const PATIENCE: [(&str, &str); 2] = [("timeo", "50"), ("retrans", "2")];
const PATIENCE_PARAMETERS: [&str; 5] = ["soft", "softerr", "hard", "timeo", "retrans"];

/// Mounts a share. Returns the root directory of the share, and the server's address and NFS
/// version that were used.
///
/// # Errors
/// Returns the error of the kernel or of the server.
pub(super) fn share(mount: &Mount) -> Result<(OwnedFd, Way), Failure> {
    let addresses = addresses(&mount.server).map_err(|error| {
        let server = &mount.server;
        let message = format!("server {server}: the controller cannot resolve its name: {error}");
        Failure::new(Kind::Unreachable, message)
    })?;
    let create = |attempt: &Attempt<'_>| create(mount, attempt);
    let failure = |refused| failure(mount, &refused);
    let (context, way) = try_each(addresses, &mount.options, create, refusal, failure)?;
    Ok((root(mount, &context)?, way))
}

/// Mounts a share again, with the server's address and NFS version that were used before.
///
/// # Errors
/// Returns the error of the kernel or of the server.
pub(super) fn again(mount: &Mount, way: Way) -> Result<OwnedFd, Failure> {
    let context = create(mount, &Attempt::again(&mount.options, way));
    let context = context.map_err(|refused| failure(mount, &refused))?;
    root(mount, &context)
}

fn root(mount: &Mount, context: &OwnedFd) -> Result<OwnedFd, Failure> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let made = rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    let made = made.map_err(|errno| Refused::by("fsmount", context, errno).locally());
    let made = made.map_err(|refused| failure(mount, &refused))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = retry_on_intr(|| rustix::fs::openat(&made, ".", flags, Mode::empty()));
    root.map_err(|errno| failure(mount, &Refused::by("openat", context, errno)))
}

/// A failed system call, and the kernel's messages about it.
struct Refused {
    call: String,
    errno: Errno,
    log: String,
    /// Whether the error may come from the server, and not only from this host's kernel.
    is_of_server: bool,
}

impl Refused {
    fn by(call: &str, context: &OwnedFd, errno: Errno) -> Self {
        Self {
            call: call.to_owned(),
            errno,
            log: log_of(context),
            is_of_server: true,
        }
    }

    /// Marks the error as an error of this host's kernel, for a system call that does not contact
    /// the server.
    fn locally(self) -> Self {
        Self {
            is_of_server: false,
            ..self
        }
    }
}

fn refusal(refused: &Refused) -> Refusal {
    match kind(refused) {
        Kind::Unreachable => Refusal::Address,
        _ if refused.errno == Errno::PROTONOSUPPORT => Refusal::Version,
        _ => Refusal::Final,
    }
}

/// Returns the parameters for fsconfig(2), in order.
fn parameters(mount: &Mount, attempt: &Attempt<'_>) -> Vec<Parameter> {
    let flag = |name: &str| (name.to_owned(), None);
    let valued = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    let mut found = attempt.parameters(&source(mount));
    // The controller locks no files, and locks of NFS 3 would need rpcbind and rpc.statd on this
    // host.
    if attempt.is_version_three() && !attempt.has(&["lock", "nolock"]) {
        found.push(flag("nolock"));
    }
    if !attempt.has(&PATIENCE_PARAMETERS) {
        found.push(flag("soft"));
        found.extend(PATIENCE.map(|(name, value)| valued(name, value)));
    }
    // The cache of another process's mount may contain an older state of the share.
    found.push(flag("nosharecache"));
    // This process must see files that another process has created since the last lookup.
    found.push(valued("lookupcache", "pos"));
    found.extend(attempt.options.iter().map(|it| (*it).clone()));
    found
}

fn create(mount: &Mount, attempt: &Attempt<'_>) -> Result<OwnedFd, Refused> {
    let context = rustix::mount::fsopen("nfs", FsOpenFlags::FSOPEN_CLOEXEC);
    let context = context.map_err(|errno| Refused {
        call: "fsopen nfs".to_owned(),
        errno,
        log: String::new(),
        is_of_server: false,
    })?;
    for (name, value) in parameters(mount, attempt) {
        let set = match value {
            Some(value) => rustix::mount::fsconfig_set_string(&context, &*name, &*value),
            None => rustix::mount::fsconfig_set_flag(&context, &*name),
        };
        let call = format!("mount option {name}");
        set.map_err(|errno| Refused::by(&call, &context, errno).locally())?;
    }
    let created = rustix::mount::fsconfig_create(&context);
    created.map_err(|errno| Refused::by("mount", &context, errno))?;
    Ok(context)
}

fn source(mount: &Mount) -> String {
    path::source(&mount.server, &mount.share)
}

fn kind(refused: &Refused) -> Kind {
    match refused.errno {
        Errno::INVAL | Errno::PROTONOSUPPORT => Kind::Invalid,
        Errno::NODEV | Errno::PERM => Kind::Precondition,
        _ if !refused.is_of_server => Kind::System,
        Errno::NOENT | Errno::ACCESS | Errno::NOTDIR => Kind::Precondition,
        Errno::NOMEM | Errno::MFILE | Errno::NFILE => Kind::System,
        _ => Kind::Unreachable,
    }
}

fn advice(refused: &Refused) -> &'static str {
    match refused.errno {
        Errno::INVAL => "a mount option is not accepted",
        Errno::PROTONOSUPPORT => "the server or this kernel does not have that version of NFS",
        Errno::NODEV => "load the kernel module nfs on this host",
        Errno::PERM if !refused.is_of_server => "the controller needs CAP_SYS_ADMIN",
        Errno::NOMEM | Errno::MFILE | Errno::NFILE => "the controller's host lacks memory or files",
        _ if !refused.is_of_server => "the kernel of the controller's host refuses it",
        Errno::NOENT => "the server does not have that share",
        Errno::ACCESS => "the server does not export the share to this host",
        Errno::PERM => "the controller needs CAP_SYS_ADMIN, or the server refuses this host",
        Errno::NOTDIR => "the share is no directory on the server",
        _ => "the server does not answer",
    }
}

fn failure(mount: &Mount, refused: &Refused) -> Failure {
    let source = source(mount);
    let advice = advice(refused);
    let Refused {
        call, errno, log, ..
    } = refused;
    let log = match log.is_empty() {
        true => String::new(),
        false => format!(" ({log})"),
    };
    Failure::new(
        kind(refused),
        format!("{source}: {call}: {errno}{log}; {advice}"),
    )
}

#[cfg(test)]
mod tests;
