//! The sink for an archive: writes the files of a copy to an archive. The archive contains each
//! file completely, with the content that was read, or not at all.

use super::super::copy::attributes;
use super::super::copy::content::{BUFFER_BYTES, read_at, segments};
use super::super::copy::report::Report;
use super::super::copy::{Item, Sink, Stop};
use super::super::error::{Result as Done, at};
use super::super::tar::{self, Entry, Type};
use super::output::Output;
use rustix::io::Errno;

/// Maximum size of a file that is read as a whole before its header is written, in bytes.
const SMALL_BYTES: u64 = 256 << 10;

pub(super) struct Writer<'a> {
    output: Output<'a>,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(output: Output<'a>) -> Self {
        Self {
            output,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    /// Ends the archive, and syncs it to the server's disk.
    pub(super) fn end(mut self) -> Done<()> {
        self.output.write(&tar::END)?;
        self.output.end().map(drop)
    }

    fn small(&mut self, mut it: Item<'_>, report: &mut Report<'_>) -> Result<(), Stop> {
        let size = usize::try_from(it.entry.size).unwrap_or_default();
        let mut content = vec![0; size];
        let mut length = 0;
        while length < size {
            match read_at(it.from, &mut content[length..], length as u64, it.shown)? {
                0 => break,
                read => length += read,
            }
        }
        // The file may have become shorter since its size was read.
        it.entry.size = length as u64;
        self.output.write(&tar::head(&it.entry))?;
        self.output.write(&content[..length])?;
        self.pad(it.entry.size)?;
        report.copied.bytes += it.entry.size;
        Ok(())
    }

    /// Writes a large file. Returns [`Stop::Again`] if the file has become shorter since its size
    /// was written. The last attempt adds zeros up to the written size instead.
    fn large(&mut self, it: &Item<'_>, is_last: bool, report: &mut Report<'_>) -> Result<(), Stop> {
        let again = || Stop::Again(at("pread", it.shown)(Errno::NXIO));
        self.output.write(&tar::head(&it.entry))?;
        for segment in it.entry.pieces().iter() {
            let (mut here, end) = (segment.offset, segment.offset + segment.length);
            while here < end {
                let length = usize::try_from(end - here).unwrap_or(BUFFER_BYTES);
                let buffer = &mut self.buffer[..length.min(BUFFER_BYTES)];
                let mut read = read_at(it.from, buffer, here, it.shown)?;
                if read == 0 && !is_last {
                    return Err(again());
                }
                if read == 0 {
                    buffer.fill(0);
                    read = buffer.len();
                }
                self.output.write(&self.buffer[..read])?;
                here += read as u64;
                report.copied.bytes += read as u64;
                report.beat()?;
            }
        }
        let size = rustix::fs::fstat(it.from).map(|now| now.st_size);
        // If the file became shorter, its missing end may have been treated as a hole.
        if !is_last && size.is_ok_and(|size| size.unsigned_abs() < it.entry.size) {
            return Err(again());
        }
        self.pad(it.entry.stored())
    }

    fn pad(&mut self, stored: u64) -> Result<(), Stop> {
        let length = tar::padding(stored);
        Ok(self.output.write(&[0; tar::BLOCK][..length])?)
    }
}

/// Adds the extended attributes of a file or a directory to its description.
fn extend(it: &mut Item<'_>) -> Result<(), Stop> {
    let found = attributes::read(it.from, it.shown)?.into_iter();
    it.entry.attributes = found
        .map(|(name, value)| (name.into_bytes(), value))
        .collect();
    Ok(())
}

impl Sink for Writer<'_> {
    fn directory(&mut self, mut it: Item<'_>) -> Result<(), Stop> {
        extend(&mut it)?;
        // The attributes of the directory are written now, so that they need no memory while the
        // files in the directory are archived.
        Ok(self.output.write(&tar::head(&it.entry))?)
    }

    fn file(
        &mut self,
        mut it: Item<'_>,
        is_last: bool,
        report: &mut Report<'_>,
    ) -> Result<(), Stop> {
        extend(&mut it)?;
        if it.entry.size <= SMALL_BYTES {
            return self.small(it, report);
        }
        it.entry.segments = segments(&it, &mut self.buffer, report)?;
        let begin = self.output.begin()?;
        let written = self.large(&it, is_last, report);
        if let Err(Stop::Again(_)) = &written {
            self.output.back(begin)?;
        }
        written
    }

    fn special(&mut self, entry: &Entry, _shown: &str) -> Result<(), Stop> {
        // Sockets are omitted: the processes that use them create them again.
        match entry.kind {
            Type::Socket => Ok(()),
            _ => Ok(self.output.write(&tar::head(entry))?),
        }
    }

    fn begin(&mut self) -> Done<u64> {
        self.output.begin()
    }

    fn back(&mut self, begin: u64, _path: &[u8], _shown: &str) -> Result<(), Stop> {
        Ok(self.output.back(begin)?)
    }
}
