//! The format of archives: pax (POSIX.1-2024, "pax Interchange Format" and "ustar Interchange
//! Format"), with GNU tar's records for sparse files (its manual, "PAX Format, Version 1.0") and
//! star's for extended attributes. GNU tar's own format is read. Makes no system calls itself, and
//! keeps at most the metadata of one file of an archive in memory.

mod block;
mod head;
mod pax;
mod read;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub(super) use head::{END, head, padding};
pub(super) use read::{Flaw, Reader};

/// The size of a block, in bytes.
pub(super) const BLOCK: usize = 512;
/// Maximum size of the records of a file, in bytes, as in Go (`maxSpecialFileSize` in its
/// archive/tar): csi-driver-nfs refuses larger ones.
const RECORDS_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a path that is read, in bytes.
const PATH_BYTES_MAX: u64 = 128 << 10;
/// Maximum number of segments of a sparse file that are read.
const SEGMENTS_MAX: u64 = 1 << 20;

/// The type of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Type {
    #[default]
    File,
    /// Another name of an earlier file.
    Link,
    Symlink,
    Character,
    Block,
    Directory,
    Fifo,
    /// A socket, which no format of archives supports.
    Socket,
}

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    /// Seconds since 1970.
    pub(super) seconds: i64,
    /// Nanoseconds within the second.
    pub(super) nanoseconds: u32,
}

/// A part of a file that is not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// A file of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The path below the volume's root, with `/` between the names.
    pub(super) path: Vec<u8>,
    pub(super) kind: Type,
    /// The target of a link.
    pub(super) target: Vec<u8>,
    /// The mode, without the bits of the type.
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) modified: Time,
    pub(super) accessed: Option<Time>,
    /// The major and minor number of a device.
    pub(super) device: (u32, u32),
    /// The size with holes, in bytes.
    pub(super) size: u64,
    /// The stored segments of a sparse file, in order.
    pub(super) segments: Option<Vec<Segment>>,
    /// Extended attributes.
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Files with the same key are names of one file; each has its content here, since
    /// csi-driver-nfs would make an empty file of a link.
    pub(super) links: Option<String>,
}

impl Entry {
    /// Returns the number of stored bytes of the content.
    pub(super) fn stored(&self) -> u64 {
        self.pieces().iter().map(|it| it.length).sum()
    }

    /// Returns the stored segments of the content.
    pub(super) fn pieces(&self) -> Cow<'_, [Segment]> {
        match &self.segments {
            Some(segments) => Cow::Borrowed(segments),
            None => Cow::Owned(vec![Segment {
                offset: 0,
                length: self.size,
            }]),
        }
    }
}
