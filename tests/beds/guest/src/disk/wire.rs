//! Messages of the vhost-user protocol (docs/interop/vhost-user.rst of QEMU). This module handles
//! the format of the messages, not their meaning.

use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

const HEADER: usize = 12;
/// VHOST_USER_VERSION, in the flags of each message.
const VERSION: u32 = 1;
const IS_REPLY: u32 = 1 << 2;
const NEEDS_REPLY: u32 = 1 << 3;
/// The maximum size of a message's body; the bodies of all known messages are smaller.
const BODY_MAX: u32 = 4096;

/// A message from the guest.
#[derive(Debug)]
pub(super) struct Message {
    /// The number that identifies the type of the request.
    pub(super) request: u32,
    flags: u32,
    body: Vec<u8>,
    /// The descriptors that were sent with the message.
    pub(super) files: Vec<OwnedFd>,
}

impl Message {
    /// Receives the next message; `None` once the guest has closed the connection.
    pub(super) fn receive(mut stream: &UnixStream) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let count = recvmsg(stream, &mut parts, &mut control, flags)?.bytes;
        let mut files = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                files.extend(rights);
            }
        }
        if count == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut header[count..])?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| header[at + n]));
        let length = word(8).min(BODY_MAX);
        let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        stream.read_exact(&mut body)?;
        Ok(Some(Message {
            request: word(0),
            flags: word(4),
            body,
            files,
        }))
    }

    pub(super) fn u32_at(&self, at: usize) -> io::Result<u32> {
        let bytes = self.body.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map(u32::from_le_bytes).ok_or_else(too_short)
    }

    pub(super) fn u64_at(&self, at: usize) -> io::Result<u64> {
        let bytes = self.body.get(at..at + 8).and_then(|b| b.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(too_short)
    }

    /// Sends a reply to the message.
    pub(super) fn answer(&self, stream: &UnixStream, body: &[u8]) -> io::Result<()> {
        send(stream, self.request, VERSION | IS_REPLY, body)
    }

    /// Sends a reply if the guest requests an acknowledgement.
    pub(super) fn acknowledge(&self, stream: &UnixStream) -> io::Result<()> {
        match self.flags & NEEDS_REPLY {
            0 => Ok(()),
            _ => self.answer(stream, &0_u64.to_le_bytes()),
        }
    }
}

/// Sends a request from the disk to the guest.
pub(super) fn request(stream: &UnixStream, request: u32) -> io::Result<()> {
    send(stream, request, VERSION, &[])
}

fn send(mut stream: &UnixStream, request: u32, flags: u32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(HEADER + body.len());
    for word in [request, flags, length] {
        message.extend(word.to_le_bytes());
    }
    message.extend(body);
    stream.write_all(&message)
}

fn too_short() -> io::Error {
    io::Error::other("a message is too short")
}
