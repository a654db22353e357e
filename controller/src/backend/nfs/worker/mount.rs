//! Mounts a share by fsopen(2), attached nowhere: the mount ends with its descriptor.

use super::super::call::Mount;
use super::super::options::Parameter;
use super::super::path;
use belay_contract::export::without_brackets;
use belay_server::call::{Failure, Kind};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::net::{IpAddr, ToSocketAddrs as _};
use std::os::fd::OwnedFd;

/// The versions of NFS, the best first.
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];
const VERSION_PARAMETERS: [&str; 3] = ["vers", "nfsvers", "minorversion"];
/// The parameters that choose the protocol below mountd's, which is UDP by default.
const TRANSPORT_PARAMETERS: [&str; 3] = ["mountproto", "proto", "udp"];
/// How many addresses of a host are tried.
const ADDRESSES_MAX: usize = 4;

/// Errors are wanted, instead of a wait without end; 5 s, and 2 retries.
const PATIENCE: [(&str, &str); 2] = [("timeo", "50"), ("retrans", "2")];
const PATIENCE_PARAMETERS: [&str; 5] = ["soft", "softerr", "hard", "timeo", "retrans"];

/// The kernel keeps at most 8 messages for a context (`struct fc_log`).
const LOG_MESSAGES_MAX: usize = 8;
const LOG_MESSAGE_BYTES_MAX: usize = 512;

/// How a server was reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    address: IpAddr,
    /// None: the options have it.
    version: Option<&'static str>,
}

/// The root directory of the share, and how its server was reached.
///
/// # Errors
/// The kernel's or the server's reason.
pub(super) fn share(mount: &Mount) -> Result<(OwnedFd, Way), Failure> {
    let (context, way) = at_any_address(mount)?;
    Ok((root(mount, &context)?, way))
}

/// The same of a server that was reached before, without asking for its versions again.
///
/// # Errors
/// Those of [`share`].
pub(super) fn again(mount: &Mount, way: Way) -> Result<OwnedFd, Failure> {
    let (options, _) = negotiable(&mount.options);
    let context = create(mount, &options, way.address, way.version);
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

/// A call that failed, and the kernel's own words.
struct Refused {
    call: String,
    errno: Errno,
    log: String,
    /// The server was asked.
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

    /// That of a call that only the kernel of this host answers.
    fn locally(self) -> Self {
        Self {
            is_of_server: false,
            ..self
        }
    }
}

fn at_any_address(mount: &Mount) -> Result<(OwnedFd, Way), Failure> {
    let mut first = None;
    for address in addresses(&mount.server)? {
        match at(mount, address) {
            Err(refused) if kind(&refused) == Kind::Unreachable => {
                first = first.or(Some(refused));
            }
            result => return result.map_err(|refused| failure(mount, &refused)),
        }
    }
    Err(first.map_or_else(
        || Failure::bug("a host without an address"),
        |refused| failure(mount, &refused),
    ))
}

fn addresses(server: &str) -> Result<Vec<IpAddr>, Failure> {
    if let Ok(address) = without_brackets(server).parse() {
        return Ok(vec![address]);
    }
    let unknown = |why: &str| {
        let message = format!("server {server}: the controller cannot resolve its name: {why}");
        Failure::new(Kind::Unreachable, message)
    };
    let found = (server, 0).to_socket_addrs();
    let found = found.map_err(|error| unknown(&error.to_string()))?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|address| address.ip()) {
        if !addresses.contains(&address) && addresses.len() < ADDRESSES_MAX {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(unknown("it has no address")),
        false => Ok(addresses),
    }
}

/// A context with a superblock, of the best version that the server has.
fn at(mount: &Mount, address: IpAddr) -> Result<(OwnedFd, Way), Refused> {
    let (options, versions) = negotiable(&mount.options);
    let mut versions = versions.iter();
    loop {
        let version = versions.next().copied();
        match create(mount, &options, address, version) {
            Err(refused) if refused.errno == Errno::PROTONOSUPPORT && versions.len() > 0 => {}
            result => return result.map(|context| (context, Way { address, version })),
        }
    }
}

/// The parameters without the version, and the versions to try; if the version is not to be
/// chosen, all parameters, and none. `vers=4` is the best of 4, as for mount.nfs; the kernel would
/// take it for 4.0.
fn negotiable(options: &[Parameter]) -> (Vec<&Parameter>, &'static [&'static str]) {
    let is_four = |(name, value): &Parameter| {
        ["vers", "nfsvers"].contains(&name.as_str()) && value.as_deref() == Some("4")
    };
    let is_version = |(name, _): &Parameter| {
        let short = name.strip_prefix('v');
        VERSION_PARAMETERS.contains(&name.as_str())
            || short.is_some_and(|rest| rest.starts_with(['2', '3', '4']))
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

/// The parameters of a mount, in order.
fn parameters(
    mount: &Mount,
    options: &[&Parameter],
    address: IpAddr,
    version: Option<&str>,
) -> Vec<Parameter> {
    let has = |names: &[&str]| {
        options
            .iter()
            .any(|(name, _)| names.contains(&name.as_str()))
    };
    let is_three = version == Some("3")
        || options.iter().any(|(name, value)| {
            name == "v3"
                || VERSION_PARAMETERS.contains(&name.as_str()) && value.as_deref() == Some("3")
        });
    let valued = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
    let flag = |name: &str| (name.to_owned(), None);
    let mut found = vec![
        valued("source", &source(mount)),
        valued("addr", &address.to_string()),
    ];
    found.extend(version.map(|version| valued("vers", version)));
    if is_three && !has(&TRANSPORT_PARAMETERS) {
        let tcp = if address.is_ipv6() { "tcp6" } else { "tcp" };
        found.push(valued("mountproto", tcp));
    }
    // It locks nothing, and lockd would need rpcbind and rpc.statd here.
    if is_three && !has(&["lock", "nolock"]) {
        found.push(flag("nolock"));
    }
    if !has(&PATIENCE_PARAMETERS) {
        found.push(flag("soft"));
        found.extend(PATIENCE.map(|(name, value)| valued(name, value)));
    }
    // Another process may have the share mounted, with an older view of it.
    found.push(flag("nosharecache"));
    // Nor may this one miss what another one has created since a look.
    found.push(valued("lookupcache", "pos"));
    found.extend(options.iter().map(|it| (*it).clone()));
    found
}

fn create(
    mount: &Mount,
    options: &[&Parameter],
    address: IpAddr,
    version: Option<&str>,
) -> Result<OwnedFd, Refused> {
    let context = rustix::mount::fsopen("nfs", FsOpenFlags::FSOPEN_CLOEXEC);
    let context = context.map_err(|errno| Refused {
        call: "fsopen nfs".to_owned(),
        errno,
        log: String::new(),
        is_of_server: false,
    })?;
    for (name, value) in parameters(mount, options, address, version) {
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

/// The filesystem's messages: one a read(2), prefixed with its level.
fn log_of(context: &OwnedFd) -> String {
    let mut said = Vec::new();
    let mut message = [0; LOG_MESSAGE_BYTES_MAX];
    for _ in 0..LOG_MESSAGES_MAX {
        match retry_on_intr(|| rustix::io::read(context, &mut message)) {
            Ok(0) | Err(Errno::NODATA) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&message[..length]);
                let text = text.trim();
                let levels = ["e ", "w ", "i "];
                let bare = levels.iter().find_map(|level| text.strip_prefix(level));
                said.push(bare.unwrap_or(text).to_owned());
            }
            // The kernel drops a message that is too long; the next one may fit.
            Err(_) => {}
        }
    }
    said.join("; ")
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
