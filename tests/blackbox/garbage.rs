//! Arbitrary input at a socket: the programs respond where a response is possible, and continue to
//! run.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::rig::{
    Chance, Controller, ControllerCalls, NodeCalls, PATIENCE, Rig, World, access, call_by_path,
    probe, refused, refused_with,
};

/// The first bytes of an HTTP/2 client (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame (RFC 9113, 6.5).
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

const CONNECTIONS: usize = 200;
const FIVE_MIB: usize = 5 << 20;

/// Sends bytes that are not a call; the other side may respond or close the connection, but must do
/// one of the two.
fn say(socket: &Path, bytes: &[u8]) {
    let mut stream = UnixStream::connect(socket).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    // The other side may close the connection before it has read everything.
    drop(stream.write_all(bytes));
    drop(stream.shutdown(Shutdown::Write));
    let mut heard = Vec::new();
    let end = stream.read_to_end(&mut heard).map_err(|error| error.kind());
    let in_time = !matches!(
        end,
        Err(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    );
    assert!(
        in_time,
        "the connection stays open after {} bytes",
        bytes.len()
    );
}

fn garbage(chance: &mut Chance) -> Vec<Vec<u8>> {
    let with_preface = |frame: &[u8]| [PREFACE, SETTINGS, frame].concat();
    // These are a frame of 16 MiB that never arrives, a frame of an unknown type, and a frame on a
    // stream that does not exist.
    let endless = with_preface(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
    let unknown = with_preface(&[0, 0, 1, 0xee, 0, 0, 0, 0, 0, 7]);
    let no_stream = with_preface(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 7]);
    let noise = with_preface(&chance.bytes(4096));
    vec![
        Vec::new(),
        chance.bytes(65_536),
        PREFACE[..12].to_vec(),
        PREFACE.to_vec(),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0; 65_536],
        endless,
        unknown,
        no_stream,
        noise,
    ]
}

#[test]
#[ignore = "needs root: make test"]
fn garbage_harms_neither_binary() {
    let rig = Rig::new();
    let controller = Controller::start(rig.test_dir());
    let mut chance = Chance::new("garbage_harms_neither_binary");
    let before = World::around(rig.test_dir());
    for bytes in garbage(&mut chance) {
        for socket in [rig.socket().as_path(), controller.socket()] {
            say(socket, &bytes);
            probe(socket).expect("the next call works");
        }
    }
    before.expect_unchanged(rig.test_dir(), "garbage");
    controller.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn silent_connections_lock_no_caller_out() {
    let rig = Rig::new();
    let controller = Controller::start(rig.test_dir());
    for socket in [rig.socket().as_path(), controller.socket()] {
        let mut idle = Vec::new();
        for n in 0..CONNECTIONS {
            let mut stream = UnixStream::connect(socket).expect("connect");
            // Every second connection starts to send.
            stream
                .write_all(&PREFACE[..(n % 2) * PREFACE.len()])
                .expect("write");
            idle.push(stream);
        }
        probe(socket).expect("a call among idle connections");
        drop(idle);
        probe(socket).expect("a call after them");
    }
    controller.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_message_that_is_too_large_is_refused() {
    let rig = Rig::new();
    let controller = Controller::start(rig.test_dir());
    let volume = rig.volume(1 << 20);
    let mut stage = volume.stage(access("ext4"));
    stage.secrets.insert("key".to_owned(), "x".repeat(FIVE_MIB));
    refused_with(rig.node().stage(stage), Code::InvalidArgument, &["65536"]);
    let order = csi::CreateVolumeRequest {
        name: "n".repeat(FIVE_MIB),
        ..Default::default()
    };
    refused_with(
        controller.calls().create(order),
        Code::InvalidArgument,
        &["1048576"],
    );
    for socket in [rig.socket().as_path(), controller.socket()] {
        probe(socket).expect("the next call works");
    }
    controller.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_service_that_a_binary_does_not_have_is_unimplemented() {
    let rig = Rig::new();
    let controller = Controller::start(rig.test_dir());
    let of_node = ControllerCalls::new(rig.socket()).create(csi::CreateVolumeRequest::default());
    refused(of_node, Code::Unimplemented);
    let node = NodeCalls::new(controller.socket().to_owned());
    refused(node.info(csi::NodeGetInfoRequest {}), Code::Unimplemented);
    controller.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_caller_that_takes_the_path_of_the_socket_for_an_authority_is_answered() {
    let rig = Rig::new();
    let controller = Controller::start(rig.test_dir());
    for socket in [rig.socket().as_path(), controller.socket()] {
        call_by_path(socket, "/csi.v1.Identity/Probe");
    }
    controller.terminate();
}
