//! The format of archives: pax (POSIX.1-2024, "pax Interchange Format" and "ustar Interchange
//! Format"), with GNU tar's records for sparse files (its manual, "PAX Format, Version 1.0") and
//! star's records for extended attributes. Archives in GNU tar's own format can be read. This
//! module makes no system calls itself, and keeps the metadata of at most one file in memory.

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
/// Maximum size of the pax records of a file, in bytes. csi-driver-nfs refuses larger records,
/// since Go has this limit (`maxSpecialFileSize` in its archive/tar).
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
    /// A hard link: another name of an earlier file in the archive.
    Link,
    Symlink,
    Character,
    Block,
    Directory,
    Fifo,
    /// A socket, which no archive format supports.
    Socket,
}

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    /// Seconds since 1970.
    pub(super) seconds: i64,
    /// Nanoseconds within the second.
    pub(super) nanoseconds: u32,
}

/// A part of a file that is not a hole, as a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// A file in an archive.
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
    /// The size of the content, including holes, in bytes.
    pub(super) size: u64,
    /// The segments of a sparse file that contain data, in order. `None` if the file is not sparse.
    pub(super) segments: Option<Vec<Segment>>,
    /// Extended attributes.
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// A key that is equal for all names of a file with several names. The archive contains the
    /// content of the file for each name, since csi-driver-nfs would create an empty file from a
    /// hard link.
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
