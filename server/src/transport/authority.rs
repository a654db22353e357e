//! Replaces invalid `:authority` values, so that the HTTP library accepts the call.
//!
//! A gRPC client that dials the bare path of a socket sends that path, percent-encoded; the kubelet
//! does so where it looks for plugins. It is not a valid authority (RFC 3986, section 3.2), so h2
//! would reject the call. On a Unix socket the value is not used: it is overwritten in place by as
//! many valid bytes. Parses only as much HTTP/2 as needed to find it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Any letter is an authority.
const VALID: u8 = b'x';

/// RFC 9113, section 4.1.
const FRAME_HEADER_BYTES: usize = 9;
/// RFC 9113, sections 6.2 and 6.10: types and flags of the frames with header fields.
const HEADERS: u8 = 0x01;
const CONTINUATION: u8 = 0x09;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

/// RFC 7541, appendix A: the index of `:authority`, the same in every connection.
const AUTHORITY: usize = 1;
/// The name as such, which clients of gRPC's C core (Python, C++, Ruby, PHP) send instead, and
/// the same compressed (RFC 7541, appendix B).
const NAME: &[u8] = b":authority";
const NAME_COMPRESSED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// RFC 7541, section 5.2: the bit that says that a string is compressed.
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

/// The state of a client's frames. Malformed bytes are left for the HTTP library to refuse.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    payload: Payload,
    block: Block,
}

/// The remaining parts of a frame's payload, in this order.
#[derive(Debug, Default)]
struct Payload {
    pad_length: bool,
    priority: usize,
    fields: usize,
    rest: usize,
}

impl Frames {
    /// Parses the next bytes, and repairs them.
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let taken = self.step(bytes).clamp(1, bytes.len());
            bytes = &mut bytes[taken..];
        }
    }

    /// Returns how many bytes were parsed.
    fn step(&mut self, bytes: &mut [u8]) -> usize {
        let left = &mut self.payload;
        if left.pad_length {
            left.pad_length = false;
            let padding = usize::from(bytes[0]).min(left.fields);
            left.fields -= padding;
            left.rest = padding;
            1
        } else if left.priority > 0 {
            left.priority -= 1;
            1
        } else if left.fields > 0 {
            let taken = left.fields.min(bytes.len());
            left.fields -= taken;
            bytes[..taken]
                .iter_mut()
                .for_each(|byte| self.block.pass(byte));
            taken
        } else if left.rest > 0 {
            let taken = left.rest.min(bytes.len());
            left.rest -= taken;
            taken
        } else {
            self.header[self.header_bytes] = bytes[0];
            self.header_bytes += 1;
            if self.header_bytes == FRAME_HEADER_BYTES {
                self.header_bytes = 0;
                self.begin();
            }
            1
        }
    }

    /// A frame's header is complete.
    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.payload = match kind {
            HEADERS => {
                self.block = Block::default();
                let pad_length = flags & PADDED != 0 && length > 0;
                let length = length - usize::from(pad_length);
                let asked = if flags & PRIORITY == 0 {
                    0
                } else {
                    PRIORITY_BYTES
                };
                let priority = asked.min(length);
                Payload {
                    pad_length,
                    priority,
                    fields: length - priority,
                    rest: 0,
                }
            }
            CONTINUATION => Payload {
                fields: length,
                ..Payload::default()
            },
            _ => Payload {
                rest: length,
                ..Payload::default()
            },
        };
    }
}

/// The state of a block of header fields (RFC 7541, section 6).
#[derive(Debug, Default)]
struct Block {
    next: Next,
    /// Whether the current field is the authority; within its name, whether it may be.
    authority: bool,
    /// How the current field's name would be if it were the authority's.
    name: &'static [u8],
}

/// What the next byte belongs to.
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

#[derive(Clone, Copy, Debug, PartialEq)]
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
            Next::Field => self.field(*byte),
            Next::Length(text) => {
                if text == Text::Name {
                    let is_compressed = *byte & HUFFMAN != 0;
                    self.name = if is_compressed { NAME_COMPRESSED } else { NAME };
                } else if self.authority {
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
                if text == Text::Name {
                    // A name that may still be the authority's has the same length.
                    self.authority = self.authority && self.name[self.name.len() - left] == *byte;
                } else if self.authority {
                    *byte = VALID;
                }
                Self::text(left - 1, text)
            }
        };
    }

    fn field(&mut self, byte: u8) -> Next {
        let (prefix_bits, of) = match byte {
            0x80.. => (7, Number::Whole),
            0x40..=0x7f => (6, Number::NameIndex),
            0x20..=0x3f => (5, Number::Whole),
            0x00..=0x1f => (4, Number::NameIndex),
        };
        self.number(byte, prefix_bits, of)
    }

    fn number(&mut self, byte: u8, prefix_bits: u32, of: Number) -> Next {
        let most = (1 << prefix_bits) - 1;
        let number = usize::from(byte & most);
        if number < usize::from(most) {
            self.counted(number, of)
        } else {
            Next::Number {
                number,
                shift: 0,
                of,
            }
        }
    }

    fn counted(&mut self, number: usize, of: Number) -> Next {
        match of {
            Number::Whole => Next::Field,
            Number::NameIndex => {
                self.authority = number == AUTHORITY;
                Next::Length(if number == 0 { Text::Name } else { Text::Value })
            }
            Number::Length(text) => {
                if text == Text::Name {
                    self.authority = number == self.name.len();
                }
                Self::text(number, text)
            }
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
