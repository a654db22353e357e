//! Replaces invalid values of `:authority`, so that the HTTP library accepts the call.
//!
//! The kubelet's plugin watcher dials the bare path of a registration socket, and gRPC-Go then
//! sends that path, percent-encoded, as the authority. That path is not a valid authority (RFC
//! 3986, section 3.2), so h2 would reject the call. Since an authority has no meaning on a Unix
//! socket, it is overwritten in place by the same number of valid bytes. Other clients in Go (the
//! kubelet's CSI client, sidecars, csi-sanity, grpcurl) send `localhost`. Clients with gRPC's C
//! core must set the option `grpc.default_authority`.
//!
//! The parser handles only the frames and fields of HTTP/2 that gRPC-Go sends. All other bytes pass
//! unchanged, and the HTTP library refuses malformed bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// The byte that replaces each byte of an authority, since any string of letters is a valid
/// authority.
const VALID: u8 = b'x';

/// The length of a frame's header (RFC 9113, section 4.1).
const FRAME_HEADER_BYTES: usize = 9;
/// The type of the frame that begins a call (RFC 9113, section 6.2).
const HEADERS: u8 = 0x01;
/// The flags of a HEADERS frame that contains bytes other than header fields (section 6.2).
const PADDED_OR_PRIORITY: u8 = 0x08 | 0x20;

/// The index of `:authority` in the static table of HPACK (RFC 7541, appendix A).
const AUTHORITY: usize = 1;
/// The bit that marks a compressed string (RFC 7541, section 5.2).
const HUFFMAN: u8 = 0x80;
/// The maximum number of bits of a length in a header block, since a frame is shorter than 2^28
/// bytes.
const SHIFT_MAX: u32 = 28;

/// The bytes that a client sends after its preface, with valid authorities.
#[derive(Debug)]
pub(crate) struct SanitizedAuthority<R> {
    inner: R,
    frames: Frames,
}

impl<R> SanitizedAuthority<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self {
            inner,
            frames: Frames::default(),
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for SanitizedAuthority<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let seen = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.frames.pass(&mut buffer.filled_mut()[seen..]);
        Poll::Ready(Ok(()))
    }
}

/// The state of the parser of a client's frames.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    /// The number of bytes of the current frame that have not arrived yet.
    rest: usize,
    /// The parser of the header fields of the current frame; `None` in a frame without header
    /// fields.
    block: Option<Block>,
}

impl Frames {
    /// Parses the next bytes, and overwrites the authorities in them.
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.rest == 0 {
                self.header[self.header_bytes] = bytes[0];
                self.header_bytes += 1;
                if self.header_bytes == FRAME_HEADER_BYTES {
                    self.header_bytes = 0;
                    self.begin();
                }
                bytes = &mut bytes[1..];
                continue;
            }
            let (payload, others) = bytes.split_at_mut(self.rest.min(bytes.len()));
            self.rest -= payload.len();
            if let Some(block) = &mut self.block {
                payload.iter_mut().for_each(|byte| block.pass(byte));
            }
            bytes = others;
        }
    }

    /// Begins a frame, whose header is complete.
    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.rest = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let has_fields = kind == HEADERS && flags & PADDED_OR_PRIORITY == 0;
        self.block = has_fields.then(Block::default);
    }
}

/// The state of the parser of a block of header fields (RFC 7541, section 6).
#[derive(Debug, Default)]
struct Block {
    /// Whether strings follow the index of the current field.
    is_literal: bool,
    /// Whether the current field is the authority.
    is_authority: bool,
    /// The number of strings of the current field that have not been parsed yet: two for name and
    /// value, or one for only the value.
    strings: u8,
    /// The number of bytes of the current string that have not arrived yet.
    left: usize,
    /// An index or a length that continues in the next byte (section 5.1), and the number of bits
    /// that have been read.
    number: Option<(usize, u32)>,
}

impl Block {
    fn pass(&mut self, byte: &mut u8) {
        if self.left > 0 {
            self.left -= 1;
            if self.is_authority {
                *byte = VALID;
            }
            return;
        }
        let Some(number) = self.number(byte) else {
            return;
        };
        if self.strings > 0 {
            self.strings -= 1;
            self.left = number;
        } else if self.is_literal {
            // If the index is 0, the name of the field follows as a string.
            self.strings = if number == 0 { 2 } else { 1 };
            self.is_authority = number == AUTHORITY;
        }
    }

    /// Parses a byte of the index of a field or of the length of a string. Returns the number after
    /// its last byte.
    fn number(&mut self, byte: &mut u8) -> Option<usize> {
        let (number, bits, is_over) = if let Some((number, bits)) = self.number.take() {
            let more = usize::from(*byte & 0x7f) << bits;
            (
                number.saturating_add(more),
                bits + 7,
                *byte & 0x80 == 0 || bits >= SHIFT_MAX,
            )
        } else {
            let prefix_bits = match *byte {
                _ if self.strings > 0 => 7,
                0x80.. => 7,
                0x40.. => 6,
                0x20.. => 5,
                _ => 4,
            };
            if self.strings == 0 {
                self.is_literal = matches!(prefix_bits, 4 | 6);
            } else if self.is_authority {
                *byte &= !HUFFMAN;
            }
            let most = (1 << prefix_bits) - 1;
            let number = *byte & most;
            (usize::from(number), 0, number < most)
        };
        if !is_over {
            self.number = Some((number, bits));
        }
        is_over.then_some(number)
    }
}

#[cfg(test)]
mod tests;
