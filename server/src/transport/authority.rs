//! Replaces paths as `:authority`, so that the HTTP library accepts the call.
//!
//! The kubelet's plugin watcher dials the bare path of a registration socket, and gRPC-Go then
//! sends that path, percent-encoded, as the authority. It is not a valid one (RFC 3986, section
//! 3.2), so h2 would reject the call. On a Unix socket the value is not used: it is overwritten in
//! place by as many valid bytes. Other clients in Go (the kubelet's CSI client, sidecars,
//! csi-sanity, grpcurl) send `localhost`; clients of gRPC's C core need `grpc.default_authority`.
//!
//! Parses only as much HTTP/2 as gRPC-Go sends: other frames and fields pass as they are, and
//! malformed bytes are left for the HTTP library to refuse.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// The byte that replaces each byte of an authority: any string of letters is valid.
const VALID: u8 = b'x';

/// The length of a frame's header (RFC 9113, section 4.1).
const FRAME_HEADER_BYTES: usize = 9;
/// The type of the frame that begins a call, and the flags of frames that contain other bytes than
/// header fields (RFC 9113, section 6.2).
const HEADERS: u8 = 0x01;
const PADDED_OR_PRIORITY: u8 = 0x08 | 0x20;

/// The index of `:authority`, the same in every connection (RFC 7541, appendix A).
const AUTHORITY: usize = 1;
/// The bit of compressed strings (RFC 7541, section 5.2).
const HUFFMAN: u8 = 0x80;
/// No length in a header block has more bits: a frame is shorter than 2^28 bytes.
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

/// The state of a client's frames.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    /// Bytes of the current frame that are still to come.
    rest: usize,
    /// The header fields of the current frame; `None` in a frame without any.
    block: Option<Block>,
}

impl Frames {
    /// Parses the next bytes, and repairs them.
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

/// The state of a block of header fields (RFC 7541, section 6).
#[derive(Debug, Default)]
struct Block {
    next: Next,
    /// Whether the current field is the authority.
    is_authority: bool,
}

/// The element to which the next byte belongs.
#[derive(Clone, Copy, Debug, Default)]
enum Next {
    #[default]
    Field,
    Length(Text),
    /// The rest of a number that does not fit in its first byte (section 5.1).
    Number {
        number: usize,
        shift: u32,
        of: Number,
    },
    Bytes(usize, Text),
}

#[derive(Clone, Copy, Debug)]
enum Text {
    Name,
    Value,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    /// An indexed field, or a table size: nothing follows.
    Whole,
    /// The index of a field's name, 0 if the name follows; then its value follows.
    NameIndex,
    Length(Text),
}

impl Block {
    fn pass(&mut self, byte: &mut u8) {
        self.next = match self.next {
            Next::Field => match *byte {
                0x80.. => self.number(*byte, 7, Number::Whole),
                0x40.. => self.number(*byte, 6, Number::NameIndex),
                0x20.. => self.number(*byte, 5, Number::Whole),
                0x00.. => self.number(*byte, 4, Number::NameIndex),
            },
            Next::Length(text) => {
                if self.is_authority {
                    *byte &= !HUFFMAN;
                }
                self.number(*byte, 7, Number::Length(text))
            }
            Next::Number { number, shift, of } => {
                let number = number.saturating_add(usize::from(*byte & 0x7f) << shift);
                if *byte & 0x80 == 0 || shift >= SHIFT_MAX {
                    self.counted(number, of)
                } else {
                    let shift = shift + 7;
                    Next::Number { number, shift, of }
                }
            }
            Next::Bytes(left, text) => {
                if self.is_authority {
                    *byte = VALID;
                }
                Self::text(left - 1, text)
            }
        };
    }

    fn number(&mut self, byte: u8, prefix_bits: u32, of: Number) -> Next {
        let most = (1 << prefix_bits) - 1;
        let number = usize::from(byte & most);
        if number < usize::from(most) {
            self.counted(number, of)
        } else {
            let shift = 0;
            Next::Number { number, shift, of }
        }
    }

    fn counted(&mut self, number: usize, of: Number) -> Next {
        match of {
            Number::Whole => Next::Field,
            Number::NameIndex => {
                self.is_authority = number == AUTHORITY;
                Next::Length(if number == 0 { Text::Name } else { Text::Value })
            }
            Number::Length(text) => Self::text(number, text),
        }
    }

    fn text(left: usize, text: Text) -> Next {
        match (left, text) {
            (0, Text::Name) => Next::Length(Text::Value),
            (0, Text::Value) => Next::Field,
            _ => Next::Bytes(left, text),
        }
    }
}

#[cfg(test)]
mod tests;
