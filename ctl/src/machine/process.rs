//! The process of a driver: which process listens on a socket, its HTTP ports, CPU time and memory
//! (proc(5)).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use super::children;

/// Returns the ID of the process that listens on a socket. Returns `None` if nothing listens, or if
/// the process is in a PID namespace that is not visible here.
pub(crate) async fn of(socket: &Path) -> Option<u32> {
    let peer = UnixStream::connect(socket).await.ok()?.peer_cred().ok()?;
    u32::try_from(peer.pid()?).ok().filter(|pid| *pid > 0)
}

/// Returns the value of a line of /proc/PID/status, without its unit.
pub(crate) fn status(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(its, _)| *its == name)?;
    value.split_whitespace().next().map(str::to_owned)
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn memory(pid: u32) -> Option<u64> {
    let kib: u64 = status(pid, "VmRSS")?.parse().ok()?;
    Some(kib << 10)
}

/// Returns the arguments and the environment variables of a process, split at `=`. Returns nothing
/// if they cannot be read.
pub(crate) fn words(pid: u32) -> Vec<String> {
    let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let text = [read("cmdline"), read("environ")].concat();
    let words = text.split(|byte| matches!(byte, 0 | b'='));
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Returns the user and system time of a process. The kernel counts in clock ticks of 1/100 s
/// (USER_HZ, fixed on all architectures that Belay supports).
pub(crate) fn cpu(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // In the stat files of /proc, the program's name may contain any characters, and ends at the
    // last `)`.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11);
    let ticks: u64 = times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Returns the TCP addresses on which a process listens; empty if the process is in a different
/// network namespace.
pub(crate) fn listens(pid: u32) -> Vec<SocketAddr> {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    if namespace(&pid.to_string()) != namespace("self") {
        return Vec::new();
    }
    let inode = |link| {
        let target = fs::read_link(link).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?;
        Some(inode.strip_suffix(']')?.to_owned())
    };
    let links = children(Path::new(&format!("/proc/{pid}/fd"))).into_iter();
    let inodes: Vec<String> = links.filter_map(inode).collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        let lines = table.lines().filter_map(listening);
        found.extend(
            lines
                .filter(|(_, inode)| inodes.contains(inode))
                .map(|(at, _)| at),
        );
    }
    found
}

/// Returns the address and inode from a line of /proc/net/tcp; `None` if the socket is not
/// listening (state 0A). Replaces the unspecified address by the loopback address.
fn listening(line: &str) -> Option<(SocketAddr, String)> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    if *state != "0A" {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The address consists of 32-bit words, each in the byte order of this machine.
    let words = (0..address.len()).step_by(8).map(|at| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.concat();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    let ip = match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    Some((SocketAddr::new(ip, port), (*inode).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_listeners_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listens(std::process::id()).contains(&address));
        assert!(memory(std::process::id()).unwrap() > 0);
        assert!(cpu(std::process::id()).is_some());
    }

    #[test]
    fn all_interfaces_are_reached_by_the_loopback() {
        let zeros = "0".repeat(32);
        let line = |local: &str| format!("0: {local}:2650 x:0 0A 0:0 0:0 0 0 0 77 1");
        let (address, inode) = listening(&line(&zeros)).unwrap();
        assert_eq!(
            (address.to_string().as_str(), inode.as_str()),
            ("[::1]:9808", "77")
        );
        assert_eq!(
            listening("0: 0100007F:2650 x:0 01 0:0 0:0 0 0 0 77 1"),
            None
        );
    }
}
