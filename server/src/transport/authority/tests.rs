//! Tests with headers that grpc-go and other clients send, whole and in pieces.

use super::*;

/// The name of a socket as grpc-go sends it.
const SOCKET: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Flocal.csi.belay.dev-reg.sock";

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
    frame.extend_from_slice(payload);
    frame
}

/// A field with a name from the static table, added to the dynamic table.
fn literal(index: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![0x40 | index, u8::try_from(value.len()).unwrap()];
    field.extend_from_slice(value);
    field
}

/// A field whose name follows, added to the dynamic table.
fn named(name: &[u8], compressed: u8, value: &[u8]) -> Vec<u8> {
    let length = |text: &[u8]| u8::try_from(text.len()).unwrap();
    let name = [&[0x40, compressed | length(name)], name].concat();
    [name.as_slice(), &[length(value)], value].concat()
}

/// `:method: POST`, an authority, a literal name with a value, and a literal without a table.
fn fields(authority: &[u8]) -> Vec<u8> {
    let rest = b"\x00\x02te\x08trailers\x0f\x0d\x01A".as_slice();
    [b"\x83", literal(1, authority).as_slice(), rest].concat()
}

/// Returns the output, which must be the same for every split of the input: unsplit, in two parts
/// at each byte, and byte by byte.
fn passed(bytes: &[u8]) -> Vec<u8> {
    let mut whole = bytes.to_vec();
    Frames::default().pass(&mut whole);
    for cut in 0..bytes.len() {
        let mut parts = bytes.to_vec();
        let (first, second) = parts.split_at_mut(cut);
        let mut frames = Frames::default();
        frames.pass(first);
        frames.pass(second);
        assert_eq!(parts, whole, "cut at {cut}");
    }
    let (mut single, mut frames) = (bytes.to_vec(), Frames::default());
    single.chunks_mut(1).for_each(|byte| frames.pass(byte));
    assert_eq!(single, whole);
    whole
}

fn valid(length: usize) -> Vec<u8> {
    vec![VALID; length]
}

#[test]
fn the_path_of_a_socket_becomes_an_authority_of_the_same_length() {
    let sent = frame(HEADERS, 0x04, &fields(SOCKET));
    let expected = frame(HEADERS, 0x04, &fields(&valid(SOCKET.len())));
    assert_eq!(passed(&sent), expected);
}

#[test]
fn frames_as_only_other_clients_send_them_are_left_alone() {
    for flags in [0x08, 0x20, 0x28] {
        let payload = [b"\x03\0\0\0\0\xff", fields(SOCKET).as_slice(), b"\x41\x01/"].concat();
        let sent = frame(HEADERS, 0x04 | flags, &payload);
        assert_eq!(passed(&sent), sent);
    }
}

#[test]
fn a_compressed_authority_is_no_longer_compressed() {
    let sent = [0x41, HUFFMAN | 3, 0xff, 0xfe, 0xfd, 0x83];
    let expected = [0x41, 3, VALID, VALID, VALID, 0x83];
    assert_eq!(
        passed(&frame(HEADERS, 0x04, &sent)),
        frame(HEADERS, 0x04, &expected)
    );
}

#[test]
fn an_authority_with_a_multi_byte_length_is_replaced_whole() {
    let field = |value: &[u8]| [b"\x01\x7f\x03", value, b"\x83"].concat();
    let sent = frame(HEADERS, 0x04, &field(&[b'/'; 130]));
    assert_eq!(passed(&sent), frame(HEADERS, 0x04, &field(&valid(130))));
}

#[test]
fn nothing_else_is_touched() {
    let settings = frame(0x04, 0, b"\x00\x02\x00\x00\x00\x00");
    let data = frame(0x00, 0x01, &literal(1, b"%2F"));
    let path = frame(HEADERS, 0x04, &literal(4, b"/csi.v1.Node/NodeGetInfo"));
    let resized = frame(
        HEADERS,
        0x04,
        &[b"\x3f\x01", literal(4, b"/").as_slice()].concat(),
    );
    let mut names = vec![0xc1];
    for name in [":authority", ":path"] {
        names.extend(named(name.as_bytes(), 0, b"/"));
    }
    names.extend(named(&[0xff; 8], HUFFMAN, b"/"));
    let others = frame(HEADERS, 0x04, &names);
    let all = [settings, data, path, resized, others].concat();
    assert_eq!(passed(&all), all);
}

#[test]
fn malformed_bytes_cause_neither_a_panic_nor_a_hang() {
    let endless = frame(HEADERS, 0x04, &[0xff; 200]);
    passed(&endless);
}
