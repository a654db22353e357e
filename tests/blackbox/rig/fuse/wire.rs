//! The bytes of requests and replies (include/uapi/linux/fuse.h, version 7.33). Handles the layout
//! of messages; independent of the filesystem.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

/// Kinds of requests.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
}

/// The maximum size of a write in one piece.
pub(super) const WRITE_BYTES_MAX: usize = 1 << 20;

/// `FUSE_BIG_WRITES`: writes may be larger than a page.
const BIG_WRITES: u32 = 1 << 5;
/// `FUSE_MAX_PAGES`: requests may have the number of pages that [`init`] reports.
const MAX_PAGES: u32 = 1 << 22;
/// `FUSE_HANDLE_KILLPRIV_V2`: the kernel does not query `security.capability` before every write.
const HANDLE_KILLPRIV_V2: u32 = 1 << 28;

/// The size of `struct fuse_in_header`, in bytes.
const HEAD_BYTES: usize = 40;

/// A request, parsed from its start.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    head: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Request<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        Request { head, rest }
    }

    /// Returns the kind of the request: one of [`op`].
    pub(crate) fn op(&self) -> u32 {
        u32::from_ne_bytes(self.head[4..8].try_into().expect("four bytes"))
    }

    pub(super) fn unique(&self) -> u64 {
        u64::from_ne_bytes(self.head[8..16].try_into().expect("eight bytes"))
    }

    /// Returns the inode of the request.
    pub(crate) fn node(&self) -> u64 {
        u64::from_ne_bytes(self.head[16..24].try_into().expect("eight bytes"))
    }

    /// Skips this many bytes.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Reads the next number, of 32 bits.
    pub(crate) fn u32(&mut self) -> u32 {
        let (number, rest) = self.rest.split_at(4);
        self.rest = rest;
        u32::from_ne_bytes(number.try_into().expect("four bytes"))
    }

    /// Reads the next number, of 64 bits.
    pub(crate) fn u64(&mut self) -> u64 {
        let (number, rest) = self.rest.split_at(8);
        self.rest = rest;
        u64::from_ne_bytes(number.try_into().expect("eight bytes"))
    }

    /// Reads the next name, which ends with a zero byte.
    pub(crate) fn name(&mut self) -> String {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let (name, rest) = self.rest.split_at(end.expect("a name ends"));
        self.rest = &rest[1..];
        String::from_utf8(name.to_vec()).expect("UTF-8")
    }

    /// Reads the next bytes.
    pub(crate) fn bytes(&mut self, count: u32) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(usize::try_from(count).expect("memory"));
        self.rest = rest;
        bytes
    }
}

/// The fields of `struct fuse_attr` that differ between files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) ino: u64,
    pub(crate) bytes: u64,
    /// The allocated space, in units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) mode: u32,
    /// The number of names.
    pub(crate) links: u32,
    /// The time of the last change of content and attributes.
    pub(crate) changed: SystemTime,
}

/// The body of a reply, built from its start.
#[derive(Default)]
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    /// Appends numbers of 64 bits.
    pub(crate) fn u64s(mut self, numbers: &[u64]) -> Self {
        for number in numbers {
            self.0.extend(number.to_ne_bytes());
        }
        self
    }

    /// Appends numbers of 32 bits.
    pub(crate) fn u32s(mut self, numbers: &[u32]) -> Self {
        for number in numbers {
            self.0.extend(number.to_ne_bytes());
        }
        self
    }

    /// Appends bytes.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Creates a `struct fuse_entry_out`. Nothing is cached: the kernel requests each name and size
    /// again.
    pub(crate) fn entry(attributes: &Attributes) -> Self {
        Reply::default()
            .u64s(&[attributes.ino, 0, 0, 0, 0])
            .attributes(attributes)
    }

    /// Creates a `struct fuse_attr_out`, which is not cached either.
    pub(crate) fn attr(attributes: &Attributes) -> Self {
        Reply::default().u64s(&[0, 0]).attributes(attributes)
    }

    fn attributes(self, of: &Attributes) -> Self {
        let changed = of.changed.duration_since(UNIX_EPOCH).expect("after 1970");
        let (seconds, parts) = (changed.as_secs(), changed.subsec_nanos());
        // The nanoseconds follow, three times, then mode, links, owner, group, device and block
        // size.
        self.u64s(&[of.ino, of.bytes, of.blocks, seconds, seconds, seconds])
            .u32s(&[parts, parts, parts, of.mode, of.links, 0, 0, 0, 4096, 0])
    }

    /// Returns the bytes.
    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Creates a `struct fuse_init_out`. Writes are not cached (`FUSE_WRITEBACK_CACHE`).
pub(super) fn init() -> Vec<u8> {
    let write_bytes_max = u32::try_from(WRITE_BYTES_MAX).expect("small");
    let flags = BIG_WRITES | MAX_PAGES | HANDLE_KILLPRIV_V2;
    // The two halves are the maximum of background requests, and the number that counts as
    // congested.
    let background = u32::from_ne_bytes([12, 0, 9, 0]);
    // The granularity of timestamps follows, then the pages per request.
    let pages_max = write_bytes_max / 4096;
    let mut out = Reply::default()
        .u32s(&[7, 33, 1 << 16, flags, background, write_bytes_max, 1])
        .u32s(&[pages_max])
        .done();
    out.resize(64, 0);
    out
}

/// Returns a reply with its `struct fuse_out_header`.
pub(super) fn framed(unique: u64, answer: Result<Vec<u8>, Errno>) -> Vec<u8> {
    let (error, body) = match answer {
        Ok(body) => (0, body),
        Err(errno) => (-errno.raw_os_error(), Vec::new()),
    };
    let length = u32::try_from(16 + body.len()).expect("small");
    let mut framed = length.to_ne_bytes().to_vec();
    framed.extend(error.to_ne_bytes());
    framed.extend(unique.to_ne_bytes());
    framed.extend(body);
    framed
}
