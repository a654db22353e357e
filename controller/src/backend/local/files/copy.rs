//! Fills a backing file from another file. If the filesystem supports reflinks, the files share
//! their blocks. If the filesystem has no reflinks, the data is copied, but not the holes.

use super::Backing;
#[cfg(test)]
use super::journal::{self, Call};
use crate::backend::local::fault::{self, os, truncated};
use belay_server::call::Failure;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;

/// Number of bytes that are copied between two checks for cancellation.
const PIECE_BYTES: u64 = 64 << 20;

/// The name of the counter of copied bytes.
pub(in crate::backend::local) const COPIED_BYTES: &str = "belay_controller_copied_bytes_total";

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::local) enum Copied {
    /// The copy is complete.
    Whole,
    /// The copy was cancelled.
    Stopped,
}

impl Backing {
    /// Replaces the content with the content of the other file at one instant, by sharing its
    /// blocks. The operation is atomic with regard to concurrent writes (ioctl_ficlone(2)). Returns
    /// false without changing the file if the filesystem cannot share blocks.
    ///
    /// # Errors
    /// Returns `Precondition` if the other file was smaller than `least_bytes`, and otherwise
    /// `Quota` or `Unreachable`.
    pub(in crate::backend::local) fn share(
        &self,
        from: &Self,
        least_bytes: u64,
    ) -> Result<bool, Failure> {
        self.overwrite_like(from);
        #[cfg(test)]
        journal::note(Call::Change(self.path.clone()));
        match rustix::fs::ioctl_ficlone(&self.file, &from.file) {
            Ok(()) => match self.bytes()? {
                bytes if bytes < least_bytes => Err(Failure::precondition(truncated(
                    from.path.display(),
                    bytes,
                    least_bytes,
                ))),
                _ => Ok(true),
            },
            // Per ioctl_ficlone(2), these errors mean that the filesystem does not support
            // reflinks, or that the two files cannot share blocks.
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => Ok(false),
            Err(errno) => Err(os("ioctl FICLONE", &self.path, errno)),
        }
    }

    /// Replaces the content with the first `bytes` bytes of the other file, which no process may
    /// change during the copy. Holes remain holes. Calls `go_on` before each piece, and stops if
    /// `go_on` returns false.
    ///
    /// # Errors
    /// Returns `Precondition` if the other file is smaller, `Busy` if the other file was changed
    /// during the copy, and otherwise `Quota` or `Unreachable`.
    pub(in crate::backend::local) fn copy(
        &self,
        from: &Self,
        bytes: u64,
        go_on: impl Fn() -> bool,
    ) -> Result<Copied, Failure> {
        from.refuse_truncated(bytes)?;
        let before = from.version()?;
        #[cfg(test)]
        journal::note(Call::Change(self.path.clone()));
        for length in [0, bytes] {
            rustix::fs::ftruncate(&self.file, length)
                .map_err(|errno| os("ftruncate", &self.path, errno))?;
        }
        let mut at = 0;
        while let Some(data) = from.data_after(at, bytes)? {
            (at, _) = data;
            let (_, end) = data;
            while at < end {
                if !go_on() {
                    return Ok(Copied::Stopped);
                }
                let copied = self.copy_piece(from, at, (end - at).min(PIECE_BYTES))?;
                if copied == 0 {
                    break;
                }
                metrics::counter!(COPIED_BYTES).increment(copied);
                at += copied;
            }
            at = end;
        }
        // If the file was truncated during the copy, the end of the copy is a hole.
        from.refuse_truncated(bytes)?;
        if from.version()? != before {
            return Err(Failure::busy(format!(
                "{}: changed while it was copied, so the copy is inconsistent and discarded; stop \
                 other programs from changing the file",
                from.path.display()
            )));
        }
        self.sync()?;
        Ok(Copied::Whole)
    }

    /// Whether the file contains these bytes at this offset.
    pub(in crate::backend::local) fn has_at(&self, at: u64, bytes: &[u8]) -> Result<bool, Failure> {
        let mut found = vec![0; bytes.len()];
        match self.file.read_exact_at(&mut found, at) {
            Ok(()) => Ok(found == bytes),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(fault::at("read", &self.path, &error)),
        }
    }

    /// Returns a value that changes with each change of the content: the size, and the ctime with
    /// its nanoseconds. The mtime is unsuitable, since a program can set it to an earlier time
    /// (utimensat(2)). A change of an extended attribute changes the ctime, too, so it makes the
    /// copy fail unnecessarily.
    fn version(&self) -> Result<(i64, i64, i64), Failure> {
        let stat = self.stat()?;
        let nanoseconds = i64::try_from(stat.st_ctime_nsec).unwrap_or_default();
        Ok((stat.st_size, stat.st_ctime, nanoseconds))
    }

    fn copy_piece(&self, from: &Self, at: u64, bytes: u64) -> Result<u64, Failure> {
        let (mut read_at, mut write_at) = (at, at);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        rustix::fs::copy_file_range(
            &from.file,
            Some(&mut read_at),
            &self.file,
            Some(&mut write_at),
            bytes,
        )
        .map(|copied| copied as u64)
        .map_err(|errno| os("copy_file_range", &self.path, errno))
    }

    /// Returns the start and the end of the next data at or after `at` and before `limit`; `None`
    /// if there is no data.
    fn data_after(&self, at: u64, limit: u64) -> Result<Option<(u64, u64)>, Failure> {
        if at >= limit {
            return Ok(None);
        }
        let failed = |errno| os("lseek", &self.path, errno);
        let begin = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(begin) if begin < limit => begin,
            // Per lseek(2), ENXIO means that there is no data at or after the offset.
            Ok(_) | Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(begin)).map_err(failed)?;
        Ok(Some((begin, end.min(limit))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::local::files::Files;
    use belay_server::call::Kind;
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_copy_has_the_data_and_the_holes_and_nothing_of_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().join("files")).unwrap();
        let (from, to) = (files.begin("from").unwrap(), files.begin("to").unwrap());
        from.grow(64 * MIB).unwrap();
        for at in [0, 5 * MIB + 3, 64 * MIB - 4] {
            from.file.write_all_at(b"data", at).unwrap();
        }
        to.file
            .write_all_at(b"left of a copy cut short", 9 * MIB)
            .unwrap();
        assert_eq!(to.copy(&from, 64 * MIB, || true), Ok(Copied::Whole));
        let metadata = fs::metadata(to.path()).unwrap();
        assert_eq!(metadata.len(), 64 * MIB);
        assert!(metadata.blocks() * 512 < 4 * MIB, "{metadata:?}");
        assert!(fs::read(to.path()).unwrap() == fs::read(from.path()).unwrap());
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_gives_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().join("files")).unwrap();
        let (from, to) = (files.begin("from").unwrap(), files.begin("to").unwrap());
        from.grow(MIB).unwrap();
        from.file.write_all_at(b"data", MIB / 2).unwrap();
        let empty_for_a_moment = || {
            from.file.set_len(0).unwrap();
            from.file.set_len(MIB).unwrap();
            true
        };
        let failure = to.copy(&from, MIB, empty_for_a_moment).unwrap_err();
        assert_eq!(failure.kind, Kind::Busy, "{failure}");
        assert!(failure.message.contains("changed while"), "{failure}");
        assert_eq!(to.copy(&from, MIB, || true), Ok(Copied::Whole));
    }

    #[test]
    fn a_change_is_seen_although_its_time_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().join("files")).unwrap();
        let (from, to) = (files.begin("from").unwrap(), files.begin("to").unwrap());
        from.grow(MIB).unwrap();
        from.file.write_all_at(b"data", MIB / 2).unwrap();
        let change_in_secret = || {
            let modified = from.file.metadata().unwrap().modified().unwrap();
            from.file.write_all_at(b"lost", MIB / 2).unwrap();
            from.file.set_modified(modified).unwrap();
            true
        };
        let failure = to.copy(&from, MIB, change_in_secret).unwrap_err();
        assert_eq!(failure.kind, Kind::Busy, "{failure}");
    }

    #[test]
    fn data_past_the_limit_is_none_and_each_piece_of_data_is_asked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().join("files")).unwrap();
        let (from, to) = (files.begin("from").unwrap(), files.begin("to").unwrap());
        from.grow(4 * MIB).unwrap();
        for at in [0, 2 * MIB] {
            from.file.write_all_at(b"data", at).unwrap();
        }
        let (begin, end) = from.data_after(MIB, 4 * MIB).unwrap().unwrap();
        assert!((MIB..=2 * MIB).contains(&begin) && end > 2 * MIB);
        assert_eq!(from.data_after(end, 4 * MIB), Ok(None));
        for limit in [MIB, 2 * MIB] {
            assert_eq!(from.data_after(MIB, limit), Ok(None), "{limit}");
        }
        let asked = Cell::new(0);
        let go_on = || asked.replace(asked.get() + 1) < 2;
        assert_eq!(to.copy(&from, 4 * MIB, go_on), Ok(Copied::Whole));
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn a_copy_ends_when_it_is_asked_to() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().join("files")).unwrap();
        let (from, to) = (files.begin("from").unwrap(), files.begin("to").unwrap());
        from.grow(MIB).unwrap();
        for at in [0, MIB / 2] {
            from.file.write_all_at(b"data", at).unwrap();
        }
        let asked = Cell::new(0);
        let once = || asked.replace(asked.get() + 1) == 0;
        assert_eq!(to.copy(&from, MIB, once), Ok(Copied::Stopped));
        assert_eq!(asked.get(), 2);
    }
}
