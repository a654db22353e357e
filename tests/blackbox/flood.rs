//! Callers that hold thousands of idle connections: they must not lock out the kubelet, whose
//! probes would then end the program, or its calls.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::rig::{Kubelet, Pages, Process, TestDir, probe, text};

/// The number of idle connections, far more than needed.
const IDLE: usize = 1000;
/// The number of callers, more than the slots of a CSI socket.
const CALLERS: usize = 400;
const PROBES: usize = 50;
/// The timeout of the readiness probe in the chart, the strictest one.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The address of the kubelet, which no pod outside the node's network has.
const KUBELET: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The kernel accepts at once, if at all.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The start of HTTP/2 (RFC 9113, section 3.4), with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Both programs, with their pages.
struct Programs {
    test_dir: TestDir,
    processes: Vec<(Process, SocketAddr)>,
}

impl Programs {
    fn start() -> Self {
        let test_dir = TestDir::new();
        let (state, volumes) = (test_dir.directory("state"), test_dir.directory("volumes"));
        let registry = test_dir.directory("plugins_registry");
        let common = ["--node-id", "node-1", "--http-endpoint", "127.0.0.1:0"];
        let controller = ["--backend", "local", "--state-dir", text(&state)];
        let mut node = vec!["--loop-dir", text(&volumes)];
        node.extend(["--registration-dir", text(&registry)]);
        let endpoint = test_dir.path().join("belay-node.sock");
        node.extend(["--kubelet-registration-path", text(&endpoint)]);
        let start = |name: &str, flags: &[&str]| {
            let socket = test_dir.path().join(format!("{name}.sock"));
            let process = Process::start(&test_dir, name, &socket, &[&common, flags].concat());
            let address = Pages::of(&process).address();
            (process, address)
        };
        let processes = vec![
            start("belay-node", &node),
            start("belay-controller", &controller),
        ];
        Programs {
            test_dir,
            processes,
        }
    }

    fn terminate(self) {
        for (process, _) in self.processes {
            process.terminate();
        }
        self.test_dir.expect_nothing_left();
    }
}

/// Connects as the kubelet does. On Linux, the send timeout also applies to connect(2).
fn connect_as_kubelet(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&stream, timeout, Some(PROBE_TIMEOUT))?;
    }
    bind(&stream, &SocketAddrV4::new(KUBELET, 0))?;
    connect(&stream, &address)?;
    Ok(stream.into())
}

/// Whether a probe of the kubelet succeeds.
fn is_alive(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = connect_as_kubelet(address)?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, io::Error>(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 OK"))
}

#[track_caller]
fn expect_alive(address: SocketAddr) {
    for number in 0..PROBES {
        assert!(is_alive(address), "probe {number} failed");
    }
}

/// Opens a connection and sends these bytes; `None` if the listener's queue is full.
fn open(address: SocketAddr, words: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).ok()?;
    // The connection may already be closed.
    drop(stream.write_all(words));
    Some(stream)
}

/// Opens connections, sends these bytes on each, and keeps the most recent ones open.
fn keep_opening(address: SocketAddr, words: &[u8], is_over: &AtomicBool) {
    let mut kept = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        if kept.len() == IDLE {
            kept.clear();
        }
        kept.extend(open(address, words));
    }
}

/// Stops the opener when this is dropped, even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn probes_are_answered_while_a_thousand_connections_are_idle_and_more_are_opened() {
    let programs = Programs::start();
    for (_, address) in &programs.processes {
        let half = b"GET /metrics HTTP/1.1\r\nHost: b\r\n".as_slice();
        for words in [b"".as_slice(), half] {
            let idle: Vec<_> = (0..IDLE).map_while(|_| open(*address, words)).collect();
            expect_alive(*address);
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let end = End(&is_over);
                scope.spawn(|| keep_opening(*address, words, &is_over));
                expect_alive(*address);
                drop(end);
            });
            drop(idle);
        }
    }
    programs.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn probes_are_answered_while_others_ask_for_pages_and_do_not_read_them() {
    let programs = Programs::start();
    for (process, address) in &programs.processes {
        let deaf: Vec<_> = (0..CALLERS)
            .map_while(|_| {
                let request = b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n";
                let stream = open(*address, request)?;
                set_socket_recv_buffer_size(&stream, 2048).expect("a small buffer");
                Some(stream)
            })
            .collect();
        expect_alive(*address);
        assert!(process.sockets() < CALLERS / 2, "{}", process.sockets());
        drop(deaf);
    }
    programs.terminate();
}

/// Opens a connection that sends the start of HTTP/2, and then nothing.
#[track_caller]
fn idle_caller(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("connect");
    stream
        .set_read_timeout(Some(PROBE_TIMEOUT))
        .expect("a deadline");
    stream.write_all(PREFACE).expect("write");
    let greeted = stream.read_exact(&mut [0; 9]);
    greeted.unwrap_or_else(|error| panic!("kept out of {}: {error}", socket.display()));
    stream
}

#[test]
#[ignore = "needs root: make test"]
fn callers_that_keep_idle_connections_lock_no_caller_out() {
    let programs = Programs::start();
    let path = |name: &str| programs.test_dir.path().join(name);
    let registration = path("plugins_registry/local.csi.belay.dev-reg.sock");
    let sockets = [path("belay-node.sock"), path("belay-controller.sock")];
    for socket in &sockets {
        let idle: Vec<_> = (0..CALLERS).map(|_| idle_caller(socket)).collect();
        let ready = probe(socket).expect("probe").ready;
        assert_eq!(ready, Some(true));
        drop(idle);
    }
    let idle: Vec<_> = (0..CALLERS).map(|_| idle_caller(&registration)).collect();
    Kubelet::start(registration.parent().expect("a directory")).asks(&registration);
    drop(idle);
    programs.terminate();
}
