//! Writes the compressed file of an archive: a sequence of gzip members (RFC 1952), which readers
//! decompress as one stream. The data since the beginning of a member can be removed again, so that
//! the archive does not contain a file or a directory that is removed while it is being read.

use super::super::copy::content::SYNC_BYTES;
use super::super::error::{Error, Result, at};
use super::super::tree::{self, alive};
use super::mark::Mark;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use rustix::io::{Errno, retry_on_intr};
use std::io::{self, Write};
use std::os::fd::OwnedFd;

pub(super) struct Output<'a> {
    state: State,
    /// The mark in the header of the first member.
    mark: &'a Mark,
    shown: &'a str,
    synced: u64,
}

enum State {
    Between(Sink),
    Within(Box<GzEncoder<Sink>>),
    /// A system call has failed, so nothing more can be written.
    Failed,
}

struct Sink {
    file: OwnedFd,
    position: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        alive()?;
        let written = retry_on_intr(|| rustix::io::pwrite(&self.file, bytes, self.position))?;
        self.position += u64::try_from(written).unwrap_or_default();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> Output<'a> {
    pub(super) fn new(file: OwnedFd, mark: &'a Mark, shown: &'a str) -> Self {
        Self {
            state: State::Between(Sink { file, position: 0 }),
            mark,
            shown,
            synced: 0,
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut encoder = match std::mem::replace(&mut self.state, State::Failed) {
            State::Within(encoder) => encoder,
            State::Between(sink) => Box::new(self.member(sink)),
            State::Failed => return Err(self.lost()),
        };
        let written = encoder.write_all(bytes);
        written.map_err(|error| self.failed(&error))?;
        if encoder.get_ref().position.saturating_sub(self.synced) >= SYNC_BYTES {
            tree::sync(&encoder.get_ref().file, self.shown)?;
            self.synced = encoder.get_ref().position;
        }
        self.state = State::Within(encoder);
        Ok(())
    }

    fn member(&self, sink: Sink) -> GzEncoder<Sink> {
        let builder = match sink.position {
            0 => self.mark.builder(),
            _ => GzBuilder::new(),
        };
        // Use the fastest compression, so that the processor does not limit the speed of reading
        // the volume.
        builder.write(sink, Compression::fast())
    }

    /// Begins a member. Returns the position of the new member in the file, in bytes, for
    /// [`Self::back`].
    pub(super) fn begin(&mut self) -> Result<u64> {
        let sink = self.ended()?;
        let begin = sink.position;
        self.state = State::Between(sink);
        Ok(begin)
    }

    /// Removes the data that was written since the position `begin`.
    pub(super) fn back(&mut self, begin: u64) -> Result<()> {
        let mut sink = self.ended()?;
        let cut = || {
            alive()?;
            rustix::fs::ftruncate(&sink.file, begin)
        };
        retry_on_intr(cut).map_err(at("ftruncate", self.shown))?;
        sink.position = begin;
        self.synced = self.synced.min(begin);
        self.state = State::Between(sink);
        Ok(())
    }

    /// Completes the file, and syncs it to the server's disk.
    pub(super) fn end(mut self) -> Result<OwnedFd> {
        let Sink { file, .. } = self.ended()?;
        tree::sync(&file, self.shown)?;
        Ok(file)
    }

    fn ended(&mut self) -> Result<Sink> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Between(sink) => Ok(sink),
            State::Within(encoder) => encoder.finish().map_err(|error| self.failed(&error)),
            State::Failed => Err(self.lost()),
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        at("pwrite", self.shown)(errno)
    }

    fn lost(&self) -> Error {
        at("pwrite", self.shown)(Errno::IO)
    }
}
