//! Copies the content of a file, by the server itself where it can.

use super::super::error::at;
use super::super::tree::{self, alive};
use super::Report;
use super::walk::Stop;
use belay_server::call::Failure;
use belay_server::size::Rounded;
use rustix::fs::{SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::OwnedFd;

/// How much is copied by one call: less than a slow server needs the time of a soft mount for.
const RANGE_BYTES: u64 = 16 << 20;
/// After so many bytes, they are written to the server's disk, so that no fsync takes long.
pub(in super::super) const SYNC_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 20;
/// What is a hole if it has zeros only.
pub(in super::super) const BLOCK_BYTES: usize = 64 << 10;
/// See [`refuse_endless`].
const SPARSE_BYTES_MAX: u64 = 1 << 40;
const SPARSE_RATIO_MAX: u64 = 1000;

/// What the server is known not to do.
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

/// A file that is being copied.
pub(super) struct File<'a> {
    pub(super) from: &'a OwnedFd,
    pub(super) to: &'a OwnedFd,
    pub(super) stat: &'a Stat,
    pub(super) shown: &'a str,
}

impl File<'_> {
    /// Copies as much as it had when it was opened: it may be growing all the time.
    pub(super) fn copy(&self, means: &mut Means, report: &mut Report<'_>) -> Result<(), Stop> {
        let size = size(self.stat);
        if size == 0 {
            return Ok(());
        }
        if means.clones && self.cloned(means)? {
            report.copied.bytes += size;
            return Ok(());
        }
        let mut here = 0;
        while let Some((data, hole)) = segment(self.from, here, size, self.shown)? {
            let is_all = (data, hole) == (0, size);
            // Before NFS 4.2, a server does not say where holes are.
            let may_have_holes = is_all && has_holes(self.stat);
            if may_have_holes {
                refuse_endless(self.stat, self.shown)?;
            }
            let end = self.range(means, report, (data, hole), may_have_holes)?;
            if end < hole {
                // It is shorter by now.
                return self.truncate(end);
            }
            here = hole;
        }
        self.truncate(size)
    }

    /// Whether the server has made the copy share the blocks of the file.
    fn cloned(&self, means: &mut Means) -> Result<bool, Stop> {
        alive().map_err(at("ioctl FICLONE", self.shown))?;
        match retry_on_intr(|| rustix::fs::ioctl_ficlone(self.to, self.from)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV) => {
                means.clones = false;
                Ok(false)
            }
            Err(Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::TXTBSY) => Ok(false),
            Err(errno) => Err(Stop::of(at("ioctl FICLONE", self.shown)(errno))),
        }
    }

    /// Copies from one byte to another; returns where the file ends, if that is before.
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
                tree::sync(self.to, self.shown)?;
                unsynced = 0;
            }
        }
        Ok(end)
    }

    /// 0: not by copy_file_range(2).
    fn by_server(&self, means: &mut Means, here: u64, length: u64) -> Result<u64, Stop> {
        let (mut from, mut to) = (here, here);
        let length = usize::try_from(length.min(RANGE_BYTES)).unwrap_or(BUFFER_BYTES);
        alive().map_err(at("copy_file_range", self.shown))?;
        let copied =
            rustix::fs::copy_file_range(self.from, Some(&mut from), self.to, Some(&mut to), length);
        match copied {
            Ok(done) => Ok(u64::try_from(done).unwrap_or_default()),
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                means.ranges = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(Stop::of(at("copy_file_range", self.shown)(errno))),
        }
    }

    /// 0: the file ends here.
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
        let read = retry_on_intr(|| rustix::io::pread(self.from, &mut *buffer, here));
        let read = read.map_err(|errno| Stop::of(at("pread", self.shown)(errno)))?;
        let mut position = here;
        for block in buffer[..read].chunks(BLOCK_BYTES) {
            if !may_have_holes || block.iter().any(|byte| *byte != 0) {
                self.write(block, position)?;
            }
            position += u64::try_from(block.len()).unwrap_or_default();
        }
        Ok(position - here)
    }

    fn write(&self, mut rest: &[u8], mut position: u64) -> Result<(), Stop> {
        while !rest.is_empty() {
            alive().map_err(at("pwrite", self.shown))?;
            let written = retry_on_intr(|| rustix::io::pwrite(self.to, rest, position));
            let written = written.map_err(at("pwrite", self.shown))?;
            rest = &rest[written..];
            position += u64::try_from(written).unwrap_or_default();
        }
        Ok(())
    }

    /// Gives the copy its size: it may end with a hole.
    fn truncate(&self, size: u64) -> Result<(), Stop> {
        let set = || {
            alive()?;
            rustix::fs::ftruncate(self.to, size)
        };
        Ok(retry_on_intr(set).map_err(at("ftruncate", self.shown))?)
    }
}

/// The next data of a file, from one byte to another; none if there is no more.
pub(in super::super) fn segment(
    from: &OwnedFd,
    here: u64,
    size: u64,
    shown: &str,
) -> Result<Option<(u64, u64)>, Stop> {
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
        // It is shorter by now; the copy finds out.
        Err(Errno::NXIO) => Ok(Some((data, size))),
        Err(errno) => Err(failed(errno)),
    }
}

/// Refuses a file of which reading takes very long and finds hardly anything, where the server does
/// not say where the holes are: a tenant makes one of any length for nothing, and its copy would
/// keep a slot for days. So of the holes of a file, at most 1 TiB is read, or 1000 times what it
/// takes up on the server. Compressed data takes up more than that: ZFS has one block of 4 KiB or
/// more for a record, which is rarely larger than 1 MiB.
pub(in super::super) fn refuse_endless(stat: &Stat, shown: &str) -> Result<(), Stop> {
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

/// Whether a file has fewer blocks than its size needs.
pub(in super::super) fn has_holes(stat: &Stat) -> bool {
    allocated(stat) < size(stat)
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// What it takes up.
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
        let refused = refuse_endless(&stat, "a/file").map_err(Stop::failure);
        refused.err()
    }

    /// Of no server is more known than the size of the file and what it takes up.
    #[test]
    fn a_sparse_file_is_refused_by_how_little_of_it_is_stored() {
        const TIB: u64 = 1 << 40;
        for (size, allocated) in [
            // Compressed as well as it can be, on a small dataset.
            (64 * TIB, 64 * TIB / 256),
            (16 * TIB, 16 * TIB / 999),
            // A server that reports no blocks.
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
