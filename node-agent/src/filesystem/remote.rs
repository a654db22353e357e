//! What a helper process does: makes one mount of an NFS server, removes one, or reads its usage.
//! Each call may wait for the server, forever. Knows no volume, and nothing of the agent.

use std::net::IpAddr;

use belay_server::call::{Failure, Kind};

use crate::kernel::{
    Answer, Answered, Cause, Error, Kernel, Patience, RemoteCall, RemoteMount, Result, failed_busy,
    while_busy,
};

/// The versions of NFS, the best first.
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];
/// The parameters that choose the version.
const VERSION_PARAMETERS: [&str; 3] = ["vers", "nfsvers", "minorversion"];
/// The parameters that choose the protocol below mountd's, which is UDP by default.
const TRANSPORT_PARAMETERS: [&str; 3] = ["mountproto", "proto", "udp"];
/// How many addresses of a host are tried. With one that does not answer, the first is the last.
const ADDRESSES_MAX: usize = 4;

/// Makes the call.
///
/// # Errors
/// The kernel's error, as a failure whose kind depends on the server's answer.
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

/// EINVAL and ENOENT: another process has unmounted it.
fn unmounted<Fd>(result: Result<()>) -> Answered<Fd> {
    match result {
        Err(error) if !matches!(error.cause(), Cause::Invalid | Cause::Missing) => {
            Err(failure(error))
        }
        _ => Ok(Answer::Unmounted),
    }
}

/// A detached mount, whose root has the permissions that were asked for.
fn make<K: Kernel>(kernel: &K, mount: &RemoteMount) -> std::result::Result<K::Fd, Failure> {
    let context = at_any_address(kernel, mount)?;
    let made = kernel.fsmount(&context, mount.attrs).map_err(failure)?;
    if let Some(wanted) = mount.permissions {
        let root = kernel.open_root(&made).map_err(failure)?;
        // The server need not allow it where nothing changes.
        if kernel.mode(&root).map_err(failure)? != wanted {
            kernel.chmod(&root, wanted).map_err(failure)?;
        }
    }
    Ok(made)
}

fn at_any_address<K: Kernel>(
    kernel: &K,
    mount: &RemoteMount,
) -> std::result::Result<K::Fd, Failure> {
    let addresses = kernel.addresses(&mount.server).map_err(|why| {
        let message = format!("{why}; this node cannot resolve the server's name");
        Failure::new(Kind::Unreachable, message)
    })?;
    let mut first = None;
    for address in addresses.into_iter().take(ADDRESSES_MAX) {
        match at(kernel, mount, address) {
            Err(error) if error.cause() == Cause::Unreachable => first = first.or(Some(error)),
            result => return result.map_err(failure),
        }
    }
    Err(first.map_or_else(|| Failure::bug("a host without an address"), failure))
}

/// A context with a superblock, of the best version that the server has.
fn at<K: Kernel>(kernel: &K, mount: &RemoteMount, address: IpAddr) -> Result<K::Fd> {
    let (options, versions) = negotiable(&mount.options);
    let mut versions = versions.iter();
    loop {
        let version = versions.next().copied();
        match create(kernel, mount, &options, address, version) {
            Err(error) if error.cause() == Cause::Version && versions.len() > 0 => {}
            result => return result,
        }
    }
}

type Parameter = (String, Option<String>);

/// The parameters without the version, and the versions to try; if the version is not to be
/// chosen, all parameters, and none. `vers=4` is the best of 4, as for mount.nfs; the kernel would
/// take it for 4.0.
fn negotiable(options: &[Parameter]) -> (Vec<&Parameter>, &'static [&'static str]) {
    let is_four = |(name, value): &Parameter| {
        ["vers", "nfsvers"].contains(&name.as_str()) && value.as_deref() == Some("4")
    };
    let is_version = |(name, _): &Parameter| {
        VERSION_PARAMETERS.contains(&name.as_str())
            || name
                .strip_prefix('v')
                .is_some_and(|rest| rest.starts_with(['2', '3', '4']))
    };
    let mut chosen = options.iter().filter(|it| is_version(it)).peekable();
    if chosen.peek().is_none() {
        return (options.iter().collect(), &VERSIONS);
    }
    match chosen.all(is_four) {
        true => {
            let others = options.iter().filter(|it| !is_four(it));
            (others.collect(), &VERSIONS[..3])
        }
        false => (options.iter().collect(), &[]),
    }
}

fn create<K: Kernel>(
    kernel: &K,
    mount: &RemoteMount,
    options: &[&Parameter],
    address: IpAddr,
    version: Option<&str>,
) -> Result<K::Fd> {
    let context = kernel.fsopen("nfs")?;
    let set = |key: &str, value: &str| kernel.fsconfig_set(&context, key, Some(value));
    set("source", &mount.source)?;
    set("addr", &address.to_string())?;
    if let Some(version) = version {
        set("vers", version)?;
    }
    let names = || options.iter().map(|(name, _)| name.as_str());
    let is_three = version == Some("3")
        || options.iter().any(|(name, value)| {
            name == "v3"
                || VERSION_PARAMETERS.contains(&name.as_str()) && value.as_deref() == Some("3")
        });
    if is_three && !names().any(|name| TRANSPORT_PARAMETERS.contains(&name)) {
        set("mountproto", if address.is_ipv6() { "tcp6" } else { "tcp" })?;
    }
    for (name, value) in options {
        kernel.fsconfig_set(&context, name, value.as_deref())?;
    }
    kernel
        .fsconfig_create(&context, true)
        .map_err(|error| {
            match error.cause() {
        Cause::Unreachable if is_three && !names().any(|name| name == "nolock") => error.also(
            "NFS 3 without the mount option nolock also needs rpcbind and rpc.statd on this node",
        ),
        _ => error,
    }
        })?;
    Ok(context)
}

/// The failure that a call to a server ends with.
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
        // Of a soft mount, whose server does not answer; or the server's own error.
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
