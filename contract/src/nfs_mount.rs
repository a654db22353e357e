//! Mounts a directory of an NFS server: selects the address of the server and the version of the
//! protocol, and sets the mount parameters accordingly. Calls only the resolver.

use crate::export::without_brackets;
use belay_server::call::Failure;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

/// The versions of NFS that are tried, the newest first.
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];
/// The mount options that select the version of NFS.
const VERSION_PARAMETERS: [&str; 3] = ["vers", "nfsvers", "minorversion"];
/// The mount options that select the transport protocol for mountd, which is UDP by default.
const TRANSPORT_PARAMETERS: [&str; 3] = ["mountproto", "proto", "udp"];
/// Maximum number of addresses of a host to try.
const ADDRESSES_MAX: usize = 4;

/// A parameter of fsconfig(2): the name, and the value if the parameter has a value.
pub type Parameter = (String, Option<String>);

/// The parameters of one attempt to mount a directory.
#[derive(Debug)]
pub struct Attempt<'a> {
    /// The address and the version of this attempt.
    pub way: Way,
    /// The given mount options, without the version if this attempt selects the version.
    pub options: Vec<&'a Parameter>,
}

/// The address of a server and the version of NFS to use.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The address of the server.
    pub address: IpAddr,
    /// The version of NFS; `None` if the mount options select it.
    pub version: Option<&'static str>,
}

/// The reason why an attempt failed, which determines the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server or the kernel does not support the version of NFS.
    Version,
    /// The address does not respond.
    Address,
    /// Further attempts cannot succeed.
    Final,
}

/// Tries the addresses in order, each with all versions from the newest, until `create` succeeds.
/// Returns the result of `create`, with the address and version that succeeded.
///
/// # Errors
/// Returns the error of the address that has refused the mount, or the error of the first address
/// if no address responds.
pub fn try_each<T, E>(
    addresses: Vec<IpAddr>,
    options: &[Parameter],
    create: impl Fn(&Attempt<'_>) -> Result<T, E>,
    refusal: impl Fn(&E) -> Refusal,
    failure: impl Fn(E) -> Failure,
) -> Result<(T, Way), Failure> {
    let mut first = None;
    let (options, versions) = negotiable(options);
    for address in addresses {
        let mut versions = versions.iter();
        let error = loop {
            let version = versions.next().copied();
            let options = options.clone();
            let way = Way { address, version };
            match create(&Attempt { way, options }) {
                Ok(made) => return Ok((made, way)),
                Err(error) if refusal(&error) == Refusal::Version && versions.len() > 0 => {}
                Err(error) => break error,
            }
        };
        if refusal(&error) != Refusal::Address {
            return Err(failure(error));
        }
        first = first.or(Some(error));
    }
    Err(first.map_or_else(|| Failure::bug("a host without an address"), failure))
}

/// Returns the addresses of a host, at least one and at most four.
///
/// # Errors
/// Returns the error of the resolver, or an error if the host has no address.
pub fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = without_brackets(host).parse() {
        return Ok(vec![address]);
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in (host, 0).to_socket_addrs()?.map(|address| address.ip()) {
        if !addresses.contains(&address) && addresses.len() < ADDRESSES_MAX {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(io::Error::other("it has no address")),
        false => Ok(addresses),
    }
}

impl<'a> Attempt<'a> {
    /// Returns the successful attempt with these mount options, whose address and version are
    /// `way`.
    #[must_use]
    pub fn again(options: &'a [Parameter], way: Way) -> Self {
        let (options, _) = negotiable(options);
        Self { way, options }
    }

    /// Whether one of these mount options was given.
    #[must_use]
    pub fn has(&self, names: &[&str]) -> bool {
        let mut options = self.options.iter();
        options.any(|(name, _)| names.contains(&name.as_str()))
    }

    /// Whether the version is 3.
    #[must_use]
    pub fn is_version_three(&self) -> bool {
        let is_three = |(name, value): &&Parameter| {
            name == "v3"
                || VERSION_PARAMETERS.contains(&name.as_str()) && value.as_deref() == Some("3")
        };
        self.way.version == Some("3") || self.options.iter().any(is_three)
    }

    /// Returns the parameters of fsconfig(2) that must precede the mount options.
    #[must_use]
    pub fn parameters(&self, source: &str) -> Vec<Parameter> {
        let Way { address, version } = self.way;
        let of = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let mut found = vec![of("source", source), of("addr", &address.to_string())];
        found.extend(version.map(|version| of("vers", version)));
        if self.is_version_three() && !self.has(&TRANSPORT_PARAMETERS) {
            let tcp = if address.is_ipv6() { "tcp6" } else { "tcp" };
            found.push(of("mountproto", tcp));
        }
        found
    }
}

/// Returns the mount options without the version, and the versions to try. If the options select
/// the version, returns all options, and no versions. `vers=4` selects the newest version 4.x that
/// the server supports, as for mount.nfs; the kernel would use 4.0.
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

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;
    use std::cell::RefCell;

    fn options(given: &[(&str, &str)]) -> Vec<Parameter> {
        let owned = |(name, value): &(&str, &str)| {
            let value = (!value.is_empty()).then(|| (*value).to_owned());
            ((*name).to_owned(), value)
        };
        given.iter().map(owned).collect()
    }

    /// Simulates mount attempts on a server that supports no NFS version, and returns the
    /// parameters of the last attempt.
    fn last(given: &[(&str, &str)]) -> Vec<String> {
        let address = "fd00::1".parse().unwrap();
        let shown = RefCell::new(Vec::new());
        let create = |attempt: &Attempt<'_>| -> Result<(), Refusal> {
            let options = attempt.options.iter().map(|it| (*it).clone());
            let all = attempt.parameters("s:/a").into_iter().chain(options);
            let text = |(name, value): Parameter| match value {
                Some(value) => format!("{name}={value}"),
                None => name,
            };
            *shown.borrow_mut() = all.map(text).collect();
            Err(Refusal::Version)
        };
        let failure = |_| Failure::bug("why");
        let tried = try_each(vec![address], &options(given), create, |it| *it, failure);
        assert_eq!(tried.unwrap_err().kind, Kind::Bug);
        shown.into_inner()
    }

    #[test]
    fn each_way_to_choose_a_version_is_kept_and_mountd_is_asked_by_tcp_for_version_three() {
        for (given, expected) in [
            (&[][..], &["vers=3", "mountproto=tcp6"][..]),
            (&[("vers", "4.2")], &["vers=4.2"]),
            (&[("nfsvers", "3")], &["mountproto=tcp6", "nfsvers=3"]),
            (&[("vers", "3")], &["mountproto=tcp6", "vers=3"]),
            (&[("v3", "")], &["mountproto=tcp6", "v3"]),
            (&[("v4.1", "")], &["v4.1"]),
            (
                &[("vers", "4"), ("minorversion", "1")],
                &["vers=4", "minorversion=1"],
            ),
            // In the first case, the value of `nconnect` looks like a version. In the second case,
            // the name `volume` begins with `v`.
            (
                &[("vers", "4.0"), ("nconnect", "3")],
                &["vers=4.0", "nconnect=3"],
            ),
            (
                &[("nfsvers", "4.0"), ("volume", "")],
                &["nfsvers=4.0", "volume"],
            ),
            // The last attempt has the oldest version, so all versions were tried.
            (
                &[("nconnect", "4")],
                &["vers=3", "mountproto=tcp6", "nconnect=4"],
            ),
            (&[("vers", "4")], &["vers=4.0"]),
            (&[("vers", "4"), ("nfsvers", "4")], &["vers=4.0"]),
            (
                &[("vers", "3"), ("mountproto", "udp")],
                &["vers=3", "mountproto=udp"],
            ),
            (&[("vers", "3"), ("proto", "udp")], &["vers=3", "proto=udp"]),
            (&[("vers", "3"), ("udp", "")], &["vers=3", "udp"]),
        ] {
            let found = last(given);
            assert_eq!(found[..2], ["source=s:/a", "addr=fd00::1"]);
            assert_eq!(found[2..], *expected, "{given:?}");
        }
    }

    #[test]
    fn the_next_address_is_tried_only_if_one_does_not_answer() {
        let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| it.parse().unwrap());
        let tried = |refusals: [Refusal; 3]| {
            let create = |attempt: &Attempt<'_>| -> Result<(), (IpAddr, Refusal)> {
                let address = attempt.way.address;
                let at = addresses.iter().position(|it| *it == address).unwrap();
                Err((address, refusals[at]))
            };
            let failure = |(address, _): (IpAddr, _)| Failure::bug(address.to_string());
            let refusal = |(_, refusal): &(_, Refusal)| *refusal;
            let tried = try_each(addresses.to_vec(), &[], create, refusal, failure);
            tried.unwrap_err().message
        };
        use Refusal::{Address, Final, Version};
        assert_eq!(tried([Address, Address, Address]), "10.0.0.1");
        assert_eq!(tried([Address, Final, Address]), "10.0.0.2");
        assert_eq!(tried([Address, Version, Final]), "10.0.0.2");
    }

    #[test]
    fn a_server_has_its_address_or_a_few_that_its_name_has() {
        for (server, address) in [("192.0.2.7", "192.0.2.7"), ("[fd00::1]", "fd00::1")] {
            let expected: IpAddr = address.parse().unwrap();
            assert_eq!(addresses(server).unwrap(), [expected]);
        }
        let found = addresses("localhost").unwrap();
        assert!((1..=ADDRESSES_MAX).contains(&found.len()), "{found:?}");
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
        // The resolver returns each address once for each type of socket.
        let is_first = |(at, address): (usize, &IpAddr)| !found[..at].contains(address);
        assert!(found.iter().enumerate().all(is_first), "{found:?}");
        assert!(addresses("no..host").is_err());
    }
}
