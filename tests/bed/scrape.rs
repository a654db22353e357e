//! A running program seen from outside: its pages, and its entries in proc_pid_status(5).

use std::fmt::Display;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Maximum time for reading a page.
const PAGE_MAX: Duration = Duration::from_secs(60);

/// Returns a free port on loopback.
///
/// # Errors
/// Fails if no port is free.
pub fn free_port() -> io::Result<SocketAddr> {
    listen()?.local_addr()
}

/// Returns a listener on a loopback port, for a test that plays a server.
///
/// # Errors
/// Fails if no port is free.
pub fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Returns the status and the body of a page.
///
/// # Errors
/// Fails if no program responds in time and in HTTP/1.1.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PAGE_MAX))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let page = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?;
        Some((status.parse().ok()?, body.to_owned()))
    });
    let first = answer.lines().next().unwrap_or("nothing");
    page.ok_or_else(|| io::Error::other(format!("http://{address}{path} answered {first}")))
}

/// Parses a line of a metrics page: name, labels and value (prometheus.io, "Text-based format").
#[must_use]
pub fn sample(line: &str) -> Option<(&str, &str, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (key, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    match key.split_once('{') {
        Some((name, labels)) => Some((name, labels.strip_suffix('}')?, value)),
        None => Some((key, "", value)),
    }
}

/// Returns a number from the status of a process (`self`, or its PID); sizes such as `VmRSS` are in
/// KiB.
///
/// # Errors
/// Fails if the process has ended, or if its status does not contain the number.
pub fn status(process: impl Display, name: &str) -> io::Result<u64> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("{path}: no {name}")))
}
