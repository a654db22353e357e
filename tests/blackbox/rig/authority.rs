//! Makes a call as grpc-go does on the bare path of a socket: the percent-encoded path is the
//! authority. No Rust client can send that, so this writes the frames itself.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use belay_bed::patience::PATIENCE;

/// The start of a connection, and the required frames (RFC 9113, sections 3.4, 4.1 and 6).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// An empty gRPC message.
const NO_MESSAGE: [u8; 5] = [0; 5];

/// Makes a call with an empty message, and expects a response.
#[track_caller]
pub(crate) fn call_by_path(socket: &Path, method: &str) {
    let mut stream = UnixStream::connect(socket).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    let request = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_HEADERS, 1, &fields(socket, method)),
        &frame(DATA, END_STREAM, 1, &NO_MESSAGE),
    ];
    stream.write_all(&request.concat()).expect("write");
    loop {
        let mut header = [0; FRAME_HEADER_BYTES];
        stream.read_exact(&mut header).expect("a frame");
        let [high, middle, low, kind, ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        stream.read_exact(&mut payload).expect("a payload");
        match kind {
            HEADERS => return,
            RST_STREAM => panic!("{method} at {}: reset {payload:?}", socket.display()),
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    let mut frame = vec![high, middle, low, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Returns the header fields (RFC 7541, appendix A): POST, http, the authority, the path, and the
/// content type.
fn fields(socket: &Path, method: &str) -> Vec<u8> {
    let authority = socket.to_str().expect("UTF-8").replace('/', "%2F");
    let mut fields = vec![0x83, 0x86];
    for (name, value) in [
        (0x41, &*authority),
        (0x44, method),
        (0x5f, "application/grpc"),
    ] {
        fields.extend([name, u8::try_from(value.len()).expect("short")]);
        fields.extend_from_slice(value.as_bytes());
    }
    fields
}
