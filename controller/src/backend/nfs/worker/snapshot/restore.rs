//! The source for an archive: reads the files of an archive and passes them to the target of a
//! copy. The archive may be hostile: this module and the target check its entries.

use super::super::copy::Stop;
use super::super::copy::attributes::{self, Extended};
use super::super::copy::content::{BUFFER_BYTES, SYNC_BYTES, truncate, write_blocks};
use super::super::copy::report::Report;
use super::super::copy::target::Target;
use super::super::error::at;
use super::super::tar::{Entry, Reader, Segment, Type};
use super::super::tree;
use super::found::{Archive, Snapshot};
use belay_server::call::Failure;
use belay_server::size::Rounded;
use rustix::io::retry_on_intr;
use std::os::fd::OwnedFd;

/// Minimum size of a file for which the server's free space is checked first, in bytes.
const ROOM_BYTES: u64 = 16 << 20;

/// Writes all files of an archive to `target`. In `links`, a hard link to each file with several
/// names is created.
///
/// # Errors
/// Returns `Precondition` if the archive is damaged or hostile, or has files that cannot be
/// created; `Quota` if a file is larger than the server's free space; the errors of the server.
pub(super) fn restore(
    found: &Snapshot,
    (target, links): (&OwnedFd, &OwnedFd),
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let root = tree::open(target, c".", ".")?;
    let mut target = Target::new(root, links, found.mark.is_some());
    let mut content = Content {
        found,
        reader: Reader::new(Archive::open(found)?),
        report,
        links,
        buffer: vec![0; BUFFER_BYTES],
        unsynced: 0,
    };
    while let Some(entry) = content
        .reader
        .next()
        .map_err(|wrong| found.failure(wrong))?
    {
        content.report.beat()?;
        let shown = String::from_utf8_lossy(&entry.path).into_owned();
        let made = make(&entry, &shown, &mut target, &mut content);
        let refused = |why: &str| found.refused(&format!("{shown:?}: {why}"));
        made.map_err(|stop| stop.failure(refused))?;
        content.report.copied.files += 1;
    }
    // The end of the file contains the checksum of the last gzip member.
    let ended = content.reader.end();
    ended.map_err(|wrong| found.failure(wrong))?;
    let ended = target.end();
    ended.map_err(|stop| stop.failure(|why| found.refused(why)))
}

fn make(
    entry: &Entry,
    shown: &str,
    target: &mut Target<'_>,
    content: &mut Content<'_, '_>,
) -> Result<(), Stop> {
    let extended = attributes::archived(&entry.attributes).map_err(Stop::Refused)?;
    let extended = Extended::Listed(&extended);
    match entry.kind {
        Type::Directory => target.make_directory(entry, extended, shown),
        Type::Link => target.make_link(entry, shown),
        Type::File => {
            let fill = |file: &OwnedFd| content.write(file, entry, shown);
            match target.make_file(entry, extended, shown, fill)? {
                true => Ok(()),
                false => content.pass(),
            }
        }
        _ => target.make_special(entry, shown),
    }
}

/// The content of the files of an archive.
struct Content<'a, 'r> {
    found: &'a Snapshot,
    reader: Reader<Archive>,
    report: &'a mut Report<'r>,
    links: &'a OwnedFd,
    buffer: Vec<u8>,
    unsynced: u64,
}

impl Content<'_, '_> {
    fn write(&mut self, file: &OwnedFd, entry: &Entry, shown: &str) -> Result<(), Stop> {
        // In an archive of Belay, holes are not stored; in archives of other programs, holes may be
        // stored as zeros.
        let may_have_holes = entry.segments.is_none() && self.found.mark.is_none();
        self.make_sure_of_room(entry, may_have_holes, shown)?;
        for Segment { offset, length } in entry.pieces().iter().copied() {
            let (mut here, end) = (offset, offset + length);
            while here < end {
                let rest = usize::try_from(end - here).unwrap_or(BUFFER_BYTES);
                let length = self.read(rest.min(BUFFER_BYTES))?;
                let bytes = &self.buffer[..length];
                self.unsynced += write_blocks(file, bytes, here, may_have_holes, shown)?;
                here += length as u64;
                self.report.copied.bytes += length as u64;
                self.report.beat()?;
                if self.unsynced >= SYNC_BYTES {
                    tree::sync(file, shown)?;
                    self.unsynced = 0;
                }
            }
        }
        truncate(file, entry.size, shown)
    }

    /// Reads `length` bytes into the buffer.
    fn read(&mut self, length: usize) -> Result<usize, Stop> {
        let mut filled = 0;
        while filled < length {
            let read = self.reader.read(&mut self.buffer[filled..length]);
            match read.map_err(|wrong| self.found.failure(wrong))? {
                0 => return Err(Stop::refused("is shorter than it says")),
                read => filled += read,
            }
        }
        Ok(filled)
    }

    /// Skips the content of a file that was created as a hard link to an earlier file.
    fn pass(&mut self) -> Result<(), Stop> {
        let failed = |wrong| self.found.failure(wrong);
        while self.reader.read(&mut self.buffer).map_err(failed)? > 0 {
            self.report.beat()?;
        }
        Ok(())
    }

    /// Refuses a file whose size in the archive exceeds the free space, before its content fills
    /// the server.
    fn make_sure_of_room(
        &self,
        entry: &Entry,
        may_have_holes: bool,
        shown: &str,
    ) -> Result<(), Stop> {
        let bytes = entry.stored();
        // Blocks of zeros are not stored, so a file that may have holes can take up less space than
        // its size.
        if bytes < ROOM_BYTES || may_have_holes {
            return Ok(());
        }
        let room = retry_on_intr(|| rustix::fs::fstatvfs(self.links));
        let room = room.map_err(at("fstatvfs", shown))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if bytes <= free {
            return Ok(());
        }
        Err(Stop::Failure(Failure::quota(format!(
            "{shown:?} of snapshot {}: has {}, and the server's filesystem has {} left",
            self.found.id,
            Rounded(bytes),
            Rounded(free)
        ))))
    }
}
