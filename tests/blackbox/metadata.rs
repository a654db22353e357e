//! An agent that learns its node's ID and zone from a metadata service, in every state of the
//! service.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use belay_bed::scrape::{free_port, listen};
use tonic::Code;

use crate::rig::{Kubelet, NodeCalls, Pages, Process, TestDir, probe, until};

const ID: &str = "7f8b1c2d-1111-4222-8333-444455556666";
const OTHER_ID: &str = "00000000-1111-4222-8333-444455556666";
const ZONE_KEY: &str = "topology.cinder.csi.openstack.org/zone";
/// Parts of the document that no log and no error may contain.
const SECRETS: [&str; 2] = ["pAssw0rd", "ssh-ed25519"];
const LOCAL: &str = "local.csi.belay.dev";

/// The reaction of a service to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Knows(&'static str),
    Answers(&'static str),
    /// Sends an endless response.
    Floods,
    /// Sends no response, and keeps the connection open.
    Hangs,
}

struct Service {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Service {
    fn start(state: State) -> Self {
        let listener = listen().expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming().flatten() {
                let state = *shared.lock().expect("no panic");
                kept.extend(serve(stream, state));
            }
        });
        Service { address, state }
    }

    fn becomes(&self, state: State) {
        *self.state.lock().expect("no panic") = state;
    }
}

/// Responds to one request; returns a connection that must stay open.
fn serve(mut stream: TcpStream, state: State) -> Option<TcpStream> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        request.extend(byte);
    }
    let request = String::from_utf8(request).expect("text");
    let begin = "GET /openstack/latest/meta_data.json HTTP/1.1\r\nhost: 127.0.0.1:";
    assert!(request.starts_with(begin), "{request}");
    match state {
        State::Hangs => return Some(stream),
        State::Answers(response) => drop(stream.write_all(response.as_bytes())),
        State::Floods => {
            let zeros = [b' '; 4096];
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n"));
            while stream.write_all(&zeros).is_ok() {}
        }
        State::Knows(id) => {
            let document = format!(
                r#"{{"random_seed": "x", "uuid": "{id}", "admin_pass": "{}", "availability_zone":
                "zone 1", "public_keys": {{"uuid": "{} AAAA"}}, "devices": [{{"uuid": 1}}]}}"#,
                SECRETS[0], SECRETS[1]
            );
            let (one, two) = document.split_at(100);
            let response = format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{one}\r\n{:x}\r\n\
                 {two}\r\n0\r\n\r\n",
                two.len()
            );
            drop(stream.write_all(response.as_bytes()));
        }
    }
    None
}

/// An agent with a local driver, and one driver of a cloud for each service.
struct Bed {
    agent: Process,
    pages: Pages,
    services: Vec<Service>,
    _kubelet: Kubelet,
    test_dir: TestDir,
}

impl Bed {
    fn new(states: &[State], order: &str) -> Self {
        Self::with(states.iter().copied().map(Service::start).collect(), order)
    }

    fn with(services: Vec<Service>, order: &str) -> Self {
        let test_dir = TestDir::new();
        test_dir.directory(LOCAL);
        let kubelet = Kubelet::start(&test_dir.path().join("registry"));
        let agent = start(&test_dir, &services, order);
        Bed {
            pages: Pages::of(&agent),
            agent,
            services,
            _kubelet: kubelet,
            test_dir,
        }
    }

    fn socket(&self, name: &str) -> PathBuf {
        socket(&self.test_dir, name)
    }

    fn is_offered(&self, name: &str) -> bool {
        let registry = self.test_dir.path().join("registry");
        registry.join(format!("{name}-reg.sock")).exists()
    }

    fn is_ready(&self, name: &str) -> bool {
        let answer = probe(&self.socket(name));
        // The socket may not exist yet.
        answer.is_ok_and(|answer| answer.ready.expect("always set"))
    }

    /// Checks that the driver is not ready, for these reasons, and not registered.
    fn expect_waiting(&self, name: &str, reasons: &[&str]) {
        let mut last = String::new();
        until(&format!("{name} reports {reasons:?}"), || {
            let refused = NodeCalls::new(self.socket(name)).info(Default::default());
            let refused = refused.expect_err("nothing knows the node's ID");
            assert_eq!(refused.code(), Code::Unavailable, "{refused}");
            refused.message().clone_into(&mut last);
            reasons.iter().all(|reason| last.contains(reason))
        });
        assert!(last.contains(name), "{last}");
        assert!(!self.is_ready(name) && !self.is_offered(name), "{name}");
        let (status, page) = self.pages.health();
        assert!(status == 503 && page.contains(name), "{page}");
    }

    fn expect_known(&self, name: &str, id: &str) {
        until(&format!("{name} is ready"), || self.is_ready(name));
        let info = NodeCalls::new(self.socket(name)).info(Default::default());
        let info = info.expect("the cloud has said who the node is");
        assert_eq!(info.node_id, id);
        // The disks of this machine are subtracted.
        let room = info.max_volumes_per_node;
        assert!((1..=256).contains(&room), "{room}");
        let topology = info.accessible_topology.expect("with --with-topology");
        let segments: Vec<_> = topology.segments.into_iter().collect();
        assert_eq!(segments, [(ZONE_KEY.to_owned(), "zone-1".to_owned())]);
        until("it is offered to the kubelet", || self.is_offered(name));
    }

    fn expect_no_secret_logged(&self) {
        let log = self.agent.log();
        for secret in SECRETS {
            assert!(!log.contains(secret), "{log}");
        }
    }
}

fn name(service: usize) -> String {
    format!("cloud{service}.belay.dev")
}

fn socket(test_dir: &TestDir, name: &str) -> PathBuf {
    test_dir.path().join(format!("{name}.sock"))
}

fn start(test_dir: &TestDir, services: &[Service], order: &str) -> Process {
    let path = |path: &Path| path.display().to_string();
    let first = socket(test_dir, LOCAL);
    let mut flags = vec![
        "--http-endpoint=127.0.0.1:0".to_owned(),
        "--log-level=debug".to_owned(),
        "--node-name=node-1".to_owned(),
        format!(
            "--registration-dir={}",
            path(&test_dir.path().join("registry"))
        ),
        format!("--kubelet-registration-path={}", path(&first)),
        format!("--loop-dir={}", path(&test_dir.path().join(LOCAL))),
    ];
    for (at, service) in services.iter().enumerate() {
        let socket = path(&socket(test_dir, &name(at)));
        flags.extend([
            "--next-driver".to_owned(),
            "--driver-kind=openstack".to_owned(),
            "--with-topology".to_owned(),
            format!("--driver-name={}", name(at)),
            format!("--endpoint={socket}"),
            format!("--kubelet-registration-path={socket}"),
            format!("--metadata-search-order={order}"),
            format!("--metadata-address={}", service.address),
        ]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Process::start(test_dir, "belay-node", &first, &flags)
}

#[test]
#[ignore = "needs root: make test"]
fn a_metadata_service_in_trouble_delays_its_driver_and_no_other_until_it_is_healthy() {
    let elsewhere = Service::start(State::Knows(OTHER_ID));
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{}/openstack/latest/meta_data.json\r\n\
         Content-Length: 0\r\n\r\n",
        elsewhere.address
    );
    let answers = [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "HTTP status 404",
        ),
        (
            "HTTP/1.1 500 Internal Server Error\r\n\r\npAssw0rd",
            "HTTP status 500",
        ),
        (redirect.leak(), "302, a redirect, which is not followed"),
        (
            "HTTP/1.1 200 OK\r\n\r\n<html>pAssw0rd</html>",
            "not valid JSON at line 1 column 1",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            "not HTTP/1.1: ",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\n{\"admin_pass\": \"pAssw0rd\"}",
            "the document has no uuid",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\n{\"uuid\": \"1\"}",
            "no availability_zone",
        ),
        ("SSH-2.0-OpenSSH\r\n", "not HTTP/1.1"),
    ];
    let mut troubles: Vec<_> = answers
        .map(|(response, why)| (State::Answers(response), why))
        .into();
    troubles.push((State::Floods, "more than 512 KiB"));
    troubles.push((State::Hangs, "no complete response within 10 s"));
    let states: Vec<_> = troubles.iter().map(|(state, _)| *state).collect();
    let bed = Bed::new(&states, "metadataService");
    assert!(bed.is_ready(LOCAL), "the driver of another kind serves");
    let info = NodeCalls::new(bed.socket(LOCAL)).info(Default::default());
    assert_eq!(info.expect("info").node_id, "node-1");
    for (at, (_, why)) in troubles.iter().enumerate() {
        let url = format!("metadataService (http://{}/", bed.services[at].address);
        bed.expect_waiting(&name(at), &[&url, why]);
    }
    for service in &bed.services {
        service.becomes(State::Knows(ID));
    }
    for at in 0..troubles.len() {
        bed.expect_known(&name(at), ID);
    }
    bed.expect_no_secret_logged();
}

#[test]
#[ignore = "needs root: make test"]
fn each_start_asks_again_and_a_source_that_is_absent_leaves_it_to_the_next() {
    let order = "configDrive,metadataService";
    let bed = Bed::new(&[State::Knows(ID)], order);
    bed.expect_known(&name(0), ID);
    bed.expect_no_secret_logged();
    // Use another instance, created from an image of this one.
    bed.services[0].becomes(State::Knows(OTHER_ID));
    bed.agent.terminate();
    let agent = start(&bed.test_dir, &bed.services, order);
    let bed = Bed {
        pages: Pages::of(&agent),
        agent,
        ..bed
    };
    bed.expect_known(&name(0), OTHER_ID);
}

#[test]
#[ignore = "needs root: make test"]
fn without_any_source_the_reason_of_each_is_reported() {
    let address = free_port().expect("a port");
    let state = Arc::new(Mutex::new(State::Hangs));
    let bed = Bed::with(
        vec![Service { address, state }],
        "configDrive,metadataService",
    );
    bed.expect_waiting(&name(0), &["configDrive: no disk", "Connection refused"]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_variable_that_the_first_driver_does_not_know_applies_to_the_second_and_both_serve() {
    let test_dir = TestDir::new();
    test_dir.directory(LOCAL);
    let path = |name: &str| socket(&test_dir, name).display().to_string();
    let flags = [
        "--node-name=node-1".to_owned(),
        format!("--loop-dir={}", test_dir.path().join(LOCAL).display()),
        "--next-driver".to_owned(),
        "--driver-kind=openstack".to_owned(),
        format!("--endpoint={}", path("cinder")),
        format!("--node-id={ID}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let environment = [
        "env",
        "BELAY_WITH_TOPOLOGY=true",
        "BELAY_ADDITIONAL_TOPOLOGY=topology.kubernetes.io/region=one",
        "BELAY_NODE_ZONE=zone-1",
        "BELAY_INSTANCE_FILE=/absent",
    ];
    let first = socket(&test_dir, LOCAL);
    let agent = Process::start_by(&environment, &test_dir, "belay-node", &first, &flags);
    for (name, id, expected) in [
        (
            LOCAL,
            "node-1",
            &[("topology.local.csi.belay.dev/node", "node-1")][..],
        ),
        (
            "cinder",
            ID,
            &[
                (ZONE_KEY, "zone-1"),
                ("topology.kubernetes.io/region", "one"),
            ],
        ),
    ] {
        let node = NodeCalls::new(socket(&test_dir, name));
        let mut info = Err(String::new());
        until(&format!("{name} serves"), || {
            info = node
                .info(Default::default())
                .map_err(|refused| refused.to_string());
            info.is_ok()
        });
        let info = info.expect("info");
        assert_eq!(info.node_id, id);
        let topology = info.accessible_topology.expect("with BELAY_WITH_TOPOLOGY");
        let mut segments: Vec<_> = topology.segments.into_iter().collect();
        segments.sort();
        let expected = expected
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        assert_eq!(segments, expected.collect::<Vec<_>>());
    }
    let ignored = "BELAY_INSTANCE_FILE: ignored: no driver of this node agent has the setting";
    assert!(agent.log().contains(ignored), "{}", agent.log());
}
