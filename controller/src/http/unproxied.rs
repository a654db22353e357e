//! The hosts that `NO_PROXY` excludes from the use of a proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

/// The entries of `NO_PROXY`. `localhost` and loopback addresses are excluded without an entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Unproxied(Vec<Rule>);

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug)]
enum Rule {
    /// `*`: all hosts.
    All,
    /// A network in CIDR notation, such as `10.0.0.0/8`.
    Network { first: IpAddr, bits: u32 },
    /// An IP address, such as `10.0.0.1` or `10.0.0.1:5000`.
    Address { ip: IpAddr, port: Option<String> },
    /// A domain and its subdomains, such as `example.org`, or only the subdomains, such as
    /// `.example.org`. Both forms may have a port.
    Domain {
        /// The domain with a leading dot.
        suffix: String,
        /// Whether the rule also matches the domain itself.
        has_itself: bool,
        port: Option<String>,
    },
}

impl Unproxied {
    /// Parses the value of `NO_PROXY`, in which commas separate the entries.
    ///
    /// # Errors
    /// Describes the first entry that cannot match any host.
    pub(super) fn new(value: &str) -> Result<Self, String> {
        let entries = value.split(',').map(str::trim);
        let rule = |entry: &str| {
            let rule = Rule::new(&entry.to_ascii_lowercase());
            // Quote only the text after `@`, since the text before `@` may contain a password if
            // the entry is a URL.
            let shown = entry.rsplit('@').next().unwrap_or_default();
            rule.ok_or_else(|| {
                format!(
                    "entry \"{shown}\" matches no host; use HOST[:PORT], .DOMAIN[:PORT], IP, \
                     IP:PORT, NETWORK/BITS or *, separated by commas"
                )
            })
        };
        let rules = entries.filter(|entry| !entry.is_empty()).map(rule);
        rules.collect::<Result<_, _>>().map(Self)
    }

    /// Whether a host is reached without a proxy. `host` is a name or an IP address, which may be
    /// in brackets.
    pub(super) fn has(&self, host: &str, port: &str) -> bool {
        let plain = host.trim_start_matches('[').trim_end_matches(']');
        let ip = plain.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        self.0.iter().any(|rule| rule.has(&host, ip, port))
    }
}

impl Rule {
    /// Parses an entry; `None` if it cannot match any host.
    fn new(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Rule::All);
        }
        if let Some((first, bits)) = entry.split_once('/') {
            return network(first.parse().ok()?, bits);
        }
        if let Ok(ip) = entry.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            return Some(Rule::Address { ip, port: None });
        }
        let (host, port) = match entry.strip_prefix('[') {
            Some(rest) => rest.split_once("]:")?,
            None => entry.split_once(':').unwrap_or((entry, "")),
        };
        let is_port = |it: NonZeroU16| it.to_string() == port;
        let port = match port {
            "" => None,
            port => Some(port.parse().is_ok_and(is_port).then(|| port.to_owned())?),
        };
        if let Ok(ip) = host.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            return Some(Rule::Address { ip, port });
        }
        let host = host
            .strip_prefix('*')
            .filter(|it| it.starts_with('.'))
            .unwrap_or(host);
        let is_name = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        // Refuse incomplete addresses, such as `10.0.0`.
        let is_half = host.contains(|char: char| char.is_ascii_digit())
            && host
                .chars()
                .all(|char| char.is_ascii_digit() || char == '.');
        if host.is_empty() || !host.chars().all(is_name) || host.contains("..") || is_half {
            return None;
        }
        let has_itself = !host.starts_with('.');
        let dot = if has_itself { "." } else { "" };
        Some(Rule::Domain {
            suffix: format!("{dot}{host}"),
            has_itself,
            port,
        })
    }

    fn has(&self, host: &str, ip: Option<IpAddr>, port: &str) -> bool {
        let is_port = |own: &Option<String>| own.as_ref().is_none_or(|own| own == port);
        match self {
            Rule::All => true,
            Rule::Network { first, bits } => ip.is_some_and(|ip| network_of(ip, *bits) == *first),
            Rule::Address { ip: own, port } => ip == Some(*own) && is_port(port),
            Rule::Domain {
                suffix,
                has_itself,
                port,
            } => {
                let is_below = host.ends_with(suffix);
                let is_itself = *has_itself && host == &suffix[1..];
                ip.is_none() && (is_below || is_itself) && is_port(port)
            }
        }
    }
}

/// Returns the rule for a network, given any address in the network and the length of its prefix.
/// Returns `None` if the length is invalid.
fn network(of: IpAddr, bits: &str) -> Option<Rule> {
    let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits: u32 = is_number.then(|| bits.parse().ok())??;
    let bits_max = if of.is_ipv4() { 32 } else { 128 };
    let first = network_of(of, (bits <= bits_max).then_some(bits)?);
    // An IPv4 network may be written as an IPv4-mapped IPv6 network, whose prefix is 96 bits
    // longer.
    let (first, bits) = match (of, first.to_canonical()) {
        (IpAddr::V6(_), first @ IpAddr::V4(_)) => (first, bits - 96),
        _ => (first, bits),
    };
    Some(Rule::Network { first, bits })
}

/// Returns the first address of the network that contains `ip` and has a prefix of `bits` bits.
fn network_of(ip: IpAddr, bits: u32) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX
                .checked_shl(32_u32.saturating_sub(bits))
                .unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX
                .checked_shl(128_u32.saturating_sub(bits))
                .unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}
