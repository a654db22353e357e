//! The work of a helper process, which makes or removes one NFS mount, or reads the usage of its
//! filesystem. Each call may wait indefinitely for the server. This module knows nothing about
//! volumes or about the agent.

use belay_contract::nfs_mount::{Attempt, Refusal, try_each};
use belay_server::call::{Failure, Kind};

use crate::kernel::{
    Answer, Answered, Cause, Error, Kernel, Patience, RemoteCall, RemoteMount, Result, failed_busy,
    while_busy,
};

/// Executes a call of the agent in the helper process.
///
/// # Errors
/// Returns the kernel's error, as a failure whose kind depends on the server's response.
pub(crate) fn serve<K: Kernel>(kernel: &K, call: &RemoteCall) -> Answered<K::Fd> {
    match call {
        RemoteCall::Mount(mount) => make(kernel, mount).map(Answer::Mount),
        RemoteCall::Unmount(path) => {
            let umount = || kernel.umount(path);
            unmounted(while_busy(kernel, Patience::Moment, failed_busy, umount))
        }
        RemoteCall::Detach(path) => unmounted(kernel.umount_lazily(path)),
        RemoteCall::Usage(path) => Ok(Answer::Usage(kernel.statfs(path).map_err(failure)?)),
    }
}

/// Returns the result of an unmount. EINVAL and ENOENT mean that another process has removed the
/// mount.
fn unmounted<Fd>(result: Result<()>) -> Answered<Fd> {
    match result {
        Err(error) if !matches!(error.cause(), Cause::Invalid | Cause::Missing) => {
            Err(failure(error))
        }
        _ => Ok(Answer::Unmounted),
    }
}

/// Makes a detached mount, and sets the requested permissions of its root directory.
fn make<K: Kernel>(kernel: &K, mount: &RemoteMount) -> std::result::Result<K::Fd, Failure> {
    let addresses = kernel.addresses(&mount.server).map_err(|why| {
        let message = format!("{why}; this node cannot resolve the server's name");
        Failure::new(Kind::Unreachable, message)
    })?;
    let create = |attempt: &Attempt<'_>| create(kernel, mount, attempt);
    let (context, _) = try_each(addresses, &mount.options, create, refusal, failure)?;
    let made = kernel.fsmount(&context, mount.attrs).map_err(failure)?;
    if let Some(wanted) = mount.permissions {
        let root = kernel.open_root(&made).map_err(failure)?;
        // Call chmod only if the permissions must change: the server may refuse even a call that
        // changes nothing.
        if kernel.mode(&root).map_err(failure)? != wanted {
            kernel.chmod(&root, wanted).map_err(failure)?;
        }
    }
    Ok(made)
}

fn refusal(error: &Error) -> Refusal {
    match error.cause() {
        Cause::Version => Refusal::Version,
        Cause::Unreachable => Refusal::Address,
        _ => Refusal::Final,
    }
}

/// Creates a filesystem context, and its superblock, for one attempt to mount.
fn create<K: Kernel>(kernel: &K, mount: &RemoteMount, attempt: &Attempt<'_>) -> Result<K::Fd> {
    let context = kernel.fsopen("nfs")?;
    let own = attempt.parameters(&mount.source);
    for (name, value) in own.iter().chain(attempt.options.iter().copied()) {
        kernel.fsconfig_set(&context, name, value.as_deref())?;
    }
    let lacks_locks = attempt.is_version_three() && !attempt.has(&["nolock"]);
    let created = kernel.fsconfig_create(&context, true);
    created.map_err(|error| match error.cause() {
        Cause::Unreachable if lacks_locks => error.also(
            "NFS 3 without the mount option nolock also needs rpcbind and rpc.statd on this node",
        ),
        _ => error,
    })?;
    Ok(context)
}

/// Converts the error of a system call on the mount to a failure with advice.
fn failure(error: Error) -> Failure {
    let (kind, cure) = match error.cause() {
        Cause::Missing => (Kind::NotFound, "; the server does not have that directory"),
        Cause::Denied => (
            Kind::Precondition,
            "; the server refuses it to this node's root user",
        ),
        Cause::Invalid => (
            Kind::Invalid,
            "; a mount option or the source is not accepted",
        ),
        Cause::Version => (
            Kind::Precondition,
            "; the server or this kernel does not have that version of NFS",
        ),
        Cause::Unreachable => (Kind::Unreachable, "; the server does not answer"),
        // The mount is soft and the server does not respond, or the server has reported an I/O
        // error.
        Cause::Io => (Kind::Unreachable, "; the server fails or does not answer"),
        Cause::Busy => (Kind::Busy, "; a process uses the mount"),
        Cause::Stale => (
            Kind::Unreachable,
            "; the server no longer has the directory",
        ),
        Cause::NoDevice => (
            Kind::Precondition,
            "; load the kernel module nfs on this node",
        ),
        _ => return error.into(),
    };
    Failure::new(kind, format!("{error}{cure}"))
}

#[cfg(test)]
mod tests;
