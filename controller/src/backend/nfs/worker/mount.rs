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

/// The root directory of the share.
///
/// # Errors
/// The kernel's or the server's reason.
pub(super) fn share(mount: &Mount) -> Result<OwnedFd, Failure> {
    let context = at_any_address(mount)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let made = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    let made = made.map_err(|errno| failure(mount, &Refused::by("fsmount", &context, errno)))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = retry_on_intr(|| rustix::fs::openat(&made, ".", flags, Mode::empty()));
    root.map_err(|errno| failure(mount, &Refused::by("openat", &context, errno)))
}

/// A call that failed, and the kernel's own words.
struct Refused {
    call: String,
    errno: Errno,
    log: String,
}

impl Refused {
    fn by(call: &str, context: &OwnedFd, errno: Errno) -> Self {
        Self {
            call: call.to_owned(),
            errno,
            log: log_of(context),
        }
    }
}

fn at_any_address(mount: &Mount) -> Result<OwnedFd, Failure> {
    let mut first = None;
    for address in addresses(&mount.server)? {
        match at(mount, address) {
            Err(refused) if kind(refused.errno) == Kind::Unreachable => {
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
fn at(mount: &Mount, address: IpAddr) -> Result<OwnedFd, Refused> {
    let (options, versions) = negotiable(&mount.options);
    let mut versions = versions.iter();
    loop {
        let version = versions.next().copied();
        match create(mount, &options, address, version) {
            Err(refused) if refused.errno == Errno::PROTONOSUPPORT && versions.len() > 0 => {}
            result => return result,
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
    if !has(&["sharecache", "nosharecache"]) {
        found.push(flag("nosharecache"));
    }
    // Nor may this one miss what another one has created since a look.
    if !has(&["lookupcache"]) {
        found.push(valued("lookupcache", "pos"));
    }
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
    })?;
    for (name, value) in parameters(mount, options, address, version) {
        let set = match value {
            Some(value) => rustix::mount::fsconfig_set_string(&context, &*name, &*value),
            None => rustix::mount::fsconfig_set_flag(&context, &*name),
        };
        set.map_err(|errno| Refused::by(&format!("mount option {name}"), &context, errno))?;
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

fn kind(errno: Errno) -> Kind {
    match errno {
        Errno::INVAL | Errno::PROTONOSUPPORT => Kind::Invalid,
        Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NODEV | Errno::NOTDIR => {
            Kind::Precondition
        }
        Errno::NOMEM | Errno::MFILE | Errno::NFILE => Kind::System,
        _ => Kind::Unreachable,
    }
}

fn failure(mount: &Mount, refused: &Refused) -> Failure {
    let Refused { call, errno, log } = refused;
    let source = source(mount);
    let advice = match *errno {
        Errno::NOENT => "the server does not have that share",
        Errno::ACCESS => "the server does not export the share to this host",
        Errno::PERM => "the controller needs CAP_SYS_ADMIN, or the server refuses this host",
        Errno::NODEV => "load the kernel module nfs on this host",
        Errno::INVAL => "a mount option is not accepted",
        Errno::PROTONOSUPPORT => "the server or this kernel does not have that version of NFS",
        _ => "the server does not answer",
    };
    let log = match log.is_empty() {
        true => String::new(),
        false => format!(" ({log})"),
    };
    Failure::new(
        kind(*errno),
        format!("{source}: {call}: {errno}{log}; {advice}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(server: &str, options: &[(&str, &str)]) -> Mount {
        let owned = |(name, value): &(&str, &str)| {
            let value = (!value.is_empty()).then(|| (*value).to_owned());
            ((*name).to_owned(), value)
        };
        Mount {
            server: server.to_owned(),
            share: "a/b".to_owned(),
            options: options.iter().map(owned).collect(),
        }
    }

    fn shown(options: &[(&str, &str)]) -> Vec<String> {
        let mount = mount("fd00::1", options);
        let (rest, versions) = negotiable(&mount.options);
        let address = "fd00::1".parse().unwrap();
        let found = parameters(&mount, &rest, address, versions.last().copied());
        let text = |(name, value): Parameter| match value {
            Some(value) => format!("{name}={value}"),
            None => name,
        };
        found.into_iter().map(text).collect()
    }

    #[test]
    fn a_mount_returns_errors_and_shares_no_cache_unless_the_class_says_otherwise() {
        let all = [
            "source=[fd00::1]:/a/b",
            "addr=fd00::1",
            "vers=3",
            "mountproto=tcp6",
            "nolock",
            "soft",
            "timeo=50",
            "retrans=2",
            "nosharecache",
            "lookupcache=pos",
        ];
        assert_eq!(shown(&[]), all);
        let chosen = [("nfsvers", "4.1"), ("hard", ""), ("sharecache", "")];
        let given = ["lookupcache=pos", "nfsvers=4.1", "hard", "sharecache"];
        assert_eq!(shown(&chosen), [&all[..2], &given].concat());
        let four = shown(&[("vers", "4")]);
        assert_eq!(four[2], "vers=4.0");
        assert!(!four.contains(&"nolock".to_owned()));
    }

    #[test]
    fn each_way_to_choose_a_version_is_kept_and_only_version_three_needs_more() {
        let of_three = |given: &[&str]| given.contains(&"nolock");
        for (options, version, is_three) in [
            (&[("vers", "4.2")][..], Some("vers=4.2"), false),
            (&[("nfsvers", "3")][..], Some("nfsvers=3"), true),
            (&[("vers", "3")][..], Some("vers=3"), true),
            (&[("v3", "")][..], Some("v3"), true),
            (&[("v4.1", "")][..], Some("v4.1"), false),
            (
                &[("vers", "4"), ("minorversion", "1")][..],
                Some("vers=4"),
                false,
            ),
            // Another option with that value, and one that begins like a version.
            (
                &[("vers", "4.0"), ("nconnect", "3")][..],
                Some("vers=4.0"),
                false,
            ),
            (
                &[("nfsvers", "4.0"), ("volume", "")][..],
                Some("nfsvers=4.0"),
                false,
            ),
            // Which version is tried last shows that all are.
            (&[("nconnect", "4")][..], Some("vers=3"), true),
            (
                &[("vers", "4"), ("nfsvers", "4")][..],
                Some("vers=4.0"),
                false,
            ),
        ] {
            let found = shown(options);
            let found: Vec<&str> = found.iter().map(String::as_str).collect();
            let versions = |word: &&&str| {
                ["vers=", "nfsvers=", "v3", "v4"]
                    .iter()
                    .any(|begin| word.starts_with(begin))
            };
            assert_eq!(found.iter().find(versions).copied(), version, "{found:?}");
            assert_eq!(of_three(&found), is_three, "{found:?}");
        }
    }

    #[test]
    fn what_the_class_chooses_replaces_each_default() {
        let count = |options: &[(&str, &str)], begin: &str| {
            let found = shown(options);
            found.iter().filter(|word| word.starts_with(begin)).count()
        };
        for transport in ["mountproto", "proto"] {
            assert_eq!(count(&[(transport, "udp")], "mountproto=tcp6"), 0);
        }
        assert_eq!(count(&[("udp", "")], "mountproto"), 0);
        for lock in ["lock", "nolock"] {
            assert_eq!(
                count(&[(lock, "")], "nolock") + count(&[(lock, "")], "lock"),
                1
            );
        }
        for patience in PATIENCE_PARAMETERS {
            let defaults = ["soft", "timeo=50", "retrans=2"];
            let found = shown(&[(patience, "7")]);
            assert!(!found.iter().any(|word| defaults.contains(&word.as_str())));
        }
        assert_eq!(count(&[("nosharecache", "")], "nosharecache"), 1);
    }

    #[test]
    fn a_server_has_its_address_or_a_few_that_its_name_has() {
        for (server, address) in [("192.0.2.7", "192.0.2.7"), ("[fd00::1]", "fd00::1")] {
            assert_eq!(
                addresses(server).unwrap(),
                [address.parse::<IpAddr>().unwrap()]
            );
        }
        let found = addresses("localhost").unwrap();
        assert!((1..=ADDRESSES_MAX).contains(&found.len()), "{found:?}");
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
        // The resolver returns each address once for each type of socket.
        let is_first = |(at, address): (usize, &IpAddr)| !found[..at].contains(address);
        assert!(found.iter().enumerate().all(is_first), "{found:?}");
        let failure = addresses("no..host").unwrap_err();
        assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
        let begin = "server no..host: the controller cannot resolve its name: ";
        assert!(failure.message.starts_with(begin), "{failure}");
    }

    #[test]
    fn each_refusal_has_its_kind_and_says_what_to_do() {
        for (errno, expected, advice) in [
            (
                Errno::INVAL,
                Kind::Invalid,
                "a mount option is not accepted",
            ),
            (
                Errno::PROTONOSUPPORT,
                Kind::Invalid,
                "does not have that version of NFS",
            ),
            (
                Errno::NOENT,
                Kind::Precondition,
                "the server does not have that share",
            ),
            (
                Errno::ACCESS,
                Kind::Precondition,
                "does not export the share to this host",
            ),
            (
                Errno::PERM,
                Kind::Precondition,
                "the controller needs CAP_SYS_ADMIN, or ",
            ),
            (
                Errno::NODEV,
                Kind::Precondition,
                "load the kernel module nfs on this host",
            ),
            (
                Errno::NOTDIR,
                Kind::Precondition,
                "the server does not answer",
            ),
            (Errno::NOMEM, Kind::System, "the server does not answer"),
            (
                Errno::TIMEDOUT,
                Kind::Unreachable,
                "the server does not answer",
            ),
        ] {
            let refused = |log: &str| Refused {
                call: "mount".to_owned(),
                errno,
                log: log.to_owned(),
            };
            let found = failure(&mount("filer", &[]), &refused(""));
            assert_eq!(found.kind, expected, "{found}");
            assert!(found.message.starts_with("filer:/a/b: mount: "), "{found}");
            assert!(
                found.message.contains(advice) && !found.message.contains("(the log)"),
                "{found}"
            );
            let found = failure(&mount("filer", &[]), &refused("the log"));
            assert!(found.message.contains(" (the log); "), "{found}");
        }
        for (bytes, is_long) in [(SOURCE_BYTES_MAX, false), (SOURCE_BYTES_MAX + 1, true)] {
            let server = "s".repeat(bytes - ":/a/b".len());
            let refused = Refused {
                call: "mount option source".to_owned(),
                errno: Errno::INVAL,
                log: String::new(),
            };
            let found = failure(&mount(&server, &[]), &refused);
            assert_eq!(found.message.ends_with("too long for the kernel"), is_long);
        }
    }

    #[test]
    fn an_error_has_the_source_the_errno_and_the_kernels_words() {
        let refused = Refused {
            call: "mount".to_owned(),
            errno: Errno::NOENT,
            log: "NFS4: Couldn't follow remote path".to_owned(),
        };
        let failure = failure(&mount("filer", &[]), &refused);
        assert_eq!(failure.kind, Kind::Precondition);
        for part in [
            "filer:/a/b: mount: ",
            "Couldn't follow",
            "does not have that share",
        ] {
            assert!(failure.message.contains(part), "{failure}");
        }
        assert_eq!(kind(Errno::TIMEDOUT), Kind::Unreachable);
    }
}
