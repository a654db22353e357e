//! Reads and copies the content of files. If the server supports copying within the server (NFS
//! 4.2), the content does not pass through this host.

use super::super::error::at;
use super::super::tar::Segment;
use super::super::tree::{self, alive};
use super::report::Report;
use super::{Item, Stop};
use belay_server::call::Failure;
use belay_server::size::Rounded;
use rustix::fs::{SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::OwnedFd;

/// Maximum number of bytes that one copy_file_range(2) copies: few enough that a slow server
/// responds within the timeout of a soft mount.
const RANGE_BYTES: u64 = 16 << 20;
/// Number of written bytes after which a file is synced, so that no fsync(2) takes long.
pub(in super::super) const SYNC_BYTES: u64 = 64 << 20;
/// Number of bytes that are read at once.
pub(in super::super) const BUFFER_BYTES: usize = 1 << 20;
/// Size of a block, in bytes. A block that contains only zeros becomes a hole.
const BLOCK_BYTES: usize = 64 << 10;
/// Maximum number of segments of a file in an archive; the rest of the file is stored as data. An
/// archive lists each segment in up to 40 bytes. Programs written in Go, such as csi-driver-nfs,
/// read at most 1 MiB of this list (`maxSpecialFileSize` in Go's archive/tar).
const SEGMENTS_MAX: usize = 1 << 14;
/// Limits on the size of a sparse file, in bytes, and on the ratio of its size to its allocated
/// space; see [`refuse_endless`].
const SPARSE_BYTES_MAX: u64 = 1 << 40;
const SPARSE_RATIO_MAX: u64 = 1000;

/// The system calls for copying that the server has not refused so far, and a buffer for copying
/// without them.
pub(super) struct Means {
    clones: bool,
    ranges: bool,
    buffer: Vec<u8>,
}

impl Default for Means {
    fn default() -> Self {
        Self {
            clones: true,
            ranges: true,
            buffer: Vec::new(),
        }
    }
}

/// The copy of the content of one file to a second file.
pub(super) struct FileCopy<'a> {
    pub(super) of: &'a Item<'a>,
    pub(super) to: &'a OwnedFd,
}

impl FileCopy<'_> {
    /// Copies as many bytes as the file had when it was opened, since the file may keep growing.
    pub(super) fn copy(&self, means: &mut Means, report: &mut Report<'_>) -> Result<(), Stop> {
        let size = self.of.entry.size;
        if size == 0 {
            return Ok(());
        }
        if means.clones && self.cloned(means)? {
            report.copied.bytes += size;
            return Ok(());
        }
        let mut here = 0;
        while let Some((data, hole)) = segment(self.of.from, here, size, self.of.shown)? {
            let is_all = (data, hole) == (0, size);
            // Servers report holes since NFS 4.2. An older server reports the whole file as one
            // segment.
            let may_have_holes = is_all && has_holes(self.of.stat);
            if may_have_holes {
                refuse_endless(self.of.stat, self.of.shown)?;
            }
            let end = self.range(means, report, (data, hole), may_have_holes)?;
            if end < hole {
                // The file has become shorter during the copy.
                return truncate(self.to, end, self.of.shown);
            }
            here = hole;
        }
        truncate(self.to, size, self.of.shown)
    }

    /// Requests that the server clones the file (FICLONE), so that both files share their blocks.
    /// Returns whether the server has cloned the file.
    fn cloned(&self, means: &mut Means) -> Result<bool, Stop> {
        alive().map_err(at("ioctl FICLONE", self.of.shown))?;
        match retry_on_intr(|| rustix::fs::ioctl_ficlone(self.to, self.of.from)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV) => {
                means.clones = false;
                Ok(false)
            }
            Err(Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::TXTBSY) => Ok(false),
            Err(errno) => Err(Stop::of(at("ioctl FICLONE", self.of.shown)(errno))),
        }
    }

    /// Copies a range of bytes. Returns the end of the range, or the end of the file if the file is
    /// shorter.
    fn range(
        &self,
        means: &mut Means,
        report: &mut Report<'_>,
        (begin, end): (u64, u64),
        may_have_holes: bool,
    ) -> Result<u64, Stop> {
        let (mut here, mut unsynced) = (begin, 0);
        while here < end {
            let mut done = 0;
            if means.ranges && !may_have_holes {
                done = self.by_server(means, here, end - here)?;
            }
            if done == 0 {
                done = self.by_buffer(means, here, end - here, may_have_holes)?;
            }
            if done == 0 {
                return Ok(here);
            }
            here += done;
            unsynced += done;
            report.copied.bytes += done;
            report.beat()?;
            if unsynced >= SYNC_BYTES {
                tree::sync(self.to, self.of.shown)?;
                unsynced = 0;
            }
        }
        Ok(end)
    }

    /// Copies bytes by copy_file_range(2). Returns the number of copied bytes; 0 at the end of the
    /// file, or if the server does not support copy_file_range(2).
    fn by_server(&self, means: &mut Means, here: u64, length: u64) -> Result<u64, Stop> {
        let (mut from, mut to) = (here, here);
        let length = usize::try_from(length.min(RANGE_BYTES)).unwrap_or(BUFFER_BYTES);
        alive().map_err(at("copy_file_range", self.of.shown))?;
        let copied = rustix::fs::copy_file_range(
            self.of.from,
            Some(&mut from),
            self.to,
            Some(&mut to),
            length,
        );
        match copied {
            Ok(done) => Ok(u64::try_from(done).unwrap_or_default()),
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                means.ranges = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(Stop::of(at("copy_file_range", self.of.shown)(errno))),
        }
    }

    /// Copies bytes through the buffer. Returns the number of copied bytes: 0 at the end of the
    /// file.
    fn by_buffer(
        &self,
        means: &mut Means,
        here: u64,
        length: u64,
        may_have_holes: bool,
    ) -> Result<u64, Stop> {
        means.buffer.resize(BUFFER_BYTES, 0);
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(BUFFER_BYTES);
        let buffer = &mut means.buffer[..length];
        let read = read_at(self.of.from, buffer, here, self.of.shown)?;
        write_blocks(
            self.to,
            &buffer[..read],
            here,
            may_have_holes,
            self.of.shown,
        )?;
        Ok(u64::try_from(read).unwrap_or_default())
    }
}

/// Sets the size of a file, which may end with a hole.
pub(in super::super) fn truncate(file: &OwnedFd, size: u64, shown: &str) -> Result<(), Stop> {
    let set = || {
        alive()?;
        rustix::fs::ftruncate(file, size)
    };
    Ok(retry_on_intr(set).map_err(at("ftruncate", shown))?)
}

/// Writes bytes to a file in blocks. If `may_have_holes` is set, leaves a hole for each block that
/// contains only zeros. Returns the number of bytes written.
pub(in super::super) fn write_blocks(
    to: &OwnedFd,
    bytes: &[u8],
    mut position: u64,
    may_have_holes: bool,
    shown: &str,
) -> Result<u64, Failure> {
    let mut written = 0;
    for block in bytes.chunks(BLOCK_BYTES) {
        if !may_have_holes || block.iter().any(|byte| *byte != 0) {
            write(to, block, position, shown)?;
            written += block.len() as u64;
        }
        position += block.len() as u64;
    }
    Ok(written)
}

fn write(to: &OwnedFd, mut rest: &[u8], mut position: u64, shown: &str) -> Result<(), Failure> {
    while !rest.is_empty() {
        let write = || {
            alive()?;
            rustix::io::pwrite(to, rest, position)
        };
        let written = retry_on_intr(write).map_err(at("pwrite", shown))?;
        rest = &rest[written..];
        position += u64::try_from(written).unwrap_or_default();
    }
    Ok(())
}

/// Reads at most as many bytes as the buffer holds. Returns 0 at the end of the file.
pub(in super::super) fn read_at(
    from: &OwnedFd,
    buffer: &mut [u8],
    offset: u64,
    shown: &str,
) -> Result<usize, Stop> {
    let read = retry_on_intr(|| rustix::io::pread(from, &mut *buffer, offset));
    read.map_err(|errno| Stop::of(at("pread", shown)(errno)))
}

/// Returns the segments of a file, or `None` if the file has no holes.
pub(in super::super) fn segments(
    it: &Item<'_>,
    buffer: &mut [u8],
    report: &mut Report<'_>,
) -> Result<Option<Vec<Segment>>, Stop> {
    if !has_holes(it.stat) {
        return Ok(None);
    }
    let size = it.entry.size;
    let mut found = Segments(Vec::new());
    let mut here = 0;
    while let Some((data, hole)) = segment(it.from, here, size, it.shown)? {
        if (data, hole) == (0, size) {
            // Servers report holes since NFS 4.2. An older server reports the whole file as one
            // segment.
            refuse_endless(it.stat, it.shown)?;
            return segments_by_zeros(it, buffer, report).map(Some);
        }
        found.add(data, hole, size);
        here = hole;
        report.beat()?;
    }
    Ok(Some(found.0))
}

fn segments_by_zeros(
    it: &Item<'_>,
    buffer: &mut [u8],
    report: &mut Report<'_>,
) -> Result<Vec<Segment>, Stop> {
    let size = it.entry.size;
    let mut found = Segments(Vec::new());
    let mut here = 0;
    while here < size {
        let rest = usize::try_from(size - here).unwrap_or(usize::MAX);
        let length = rest.min(buffer.len());
        let read = read_at(it.from, &mut buffer[..length], here, it.shown)?;
        if read == 0 {
            break;
        }
        for block in buffer[..read].chunks(BLOCK_BYTES) {
            let end = here + block.len() as u64;
            if block.iter().any(|byte| *byte != 0) {
                found.add(here, end, size);
            }
            here = end;
        }
        report.beat()?;
    }
    Ok(found.0)
}

struct Segments(Vec<Segment>);

impl Segments {
    fn add(&mut self, begin: u64, end: u64, size: u64) {
        let is_full = self.0.len() >= SEGMENTS_MAX;
        match self.0.last_mut() {
            Some(last) if is_full => last.length = size - last.offset,
            Some(last) if last.offset + last.length == begin => last.length = end - last.offset,
            _ => self.0.push(Segment {
                offset: begin,
                length: end - begin,
            }),
        }
    }
}

/// Returns the start and the end of the next data segment of a file, or `None` if only a hole
/// follows.
fn segment(from: &OwnedFd, here: u64, size: u64, shown: &str) -> Result<Option<(u64, u64)>, Stop> {
    let failed = |errno| Stop::of(at("lseek", shown)(errno));
    if here >= size {
        return Ok(None);
    }
    let data = match rustix::fs::seek(from, SeekFrom::Data(here)) {
        Ok(data) => data,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((here, size))),
        Err(errno) => return Err(failed(errno)),
    };
    if data >= size {
        return Ok(None);
    }
    match rustix::fs::seek(from, SeekFrom::Hole(data)) {
        Ok(hole) => Ok(Some((data, hole.min(size)))),
        // The file has become shorter, which the copy detects.
        Err(Errno::NXIO) => Ok(Some((data, size))),
        Err(errno) => Err(failed(errno)),
    }
}

/// Refuses a very large file that consists almost only of holes, if the server does not report
/// holes. A tenant can create a file of any size from holes at no cost, and copying the file would
/// occupy a slot for days. Accepts files of up to 1 TiB, and files of up to 1000 times the space
/// that they take up on the server. Compressed files do not exceed this ratio: ZFS allocates at
/// least one block of 4 KiB for each record, and records are rarely larger than 1 MiB.
fn refuse_endless(stat: &Stat, shown: &str) -> Result<(), Stop> {
    let (size, allocated) = (size(stat), allocated(stat));
    if size <= SPARSE_BYTES_MAX || size / SPARSE_RATIO_MAX <= allocated {
        return Ok(());
    }
    Err(Stop::Failure(Failure::precondition(format!(
        "{shown:?} in the share: has {}, of which the server stores {}: it is sparse or \
         compressed, and the server does not say where its holes are, so reading it would take too \
         long; use nfsvers=4.2, if the server has it, or move the file out of the volume and copy \
         it by other means",
        Rounded(size),
        Rounded(allocated)
    ))))
}

/// Whether a file occupies fewer blocks than its size needs.
fn has_holes(stat: &Stat) -> bool {
    allocated(stat) < size(stat)
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// Returns the space that the file takes up on the server, in bytes.
fn allocated(stat: &Stat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
    blocks.saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    fn refused(size: u64, allocated: u64) -> Option<Failure> {
        let file = tempfile::tempfile().unwrap();
        let mut stat = rustix::fs::fstat(file).unwrap();
        stat.st_size = size.try_into().unwrap();
        stat.st_blocks = (allocated / 512).try_into().unwrap();
        let refused = refuse_endless(&stat, "a/file")
            .map_err(|stop| stop.failure(|why| Failure::precondition(why)));
        refused.err()
    }

    /// The check uses only the size of the file and the space that it takes up.
    #[test]
    fn a_sparse_file_is_refused_by_how_little_of_it_is_stored() {
        const TIB: u64 = 1 << 40;
        for (size, allocated) in [
            // A file with the best possible compression.
            (64 * TIB, 64 * TIB / 256),
            (16 * TIB, 16 * TIB / 999),
            // The server reports 0 allocated blocks for the file.
            (TIB, 0),
            (4096, 0),
        ] {
            assert_eq!(refused(size, allocated), None);
        }
        for (size, allocated) in [(TIB + 1, 0), (16 * TIB, 16 * TIB / 1002), (1 << 62, TIB)] {
            let refused = refused(size, allocated).unwrap();
            assert_eq!(refused.kind, Kind::Precondition);
            let words = "\"a/file\" in the share: has ";
            assert!(refused.message.starts_with(words), "{refused}");
            assert!(
                refused.message.contains("sparse or compressed"),
                "{refused}"
            );
            assert!(!refused.message.contains("truncate"), "{refused}");
        }
    }
}
