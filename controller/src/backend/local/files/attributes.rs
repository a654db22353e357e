//! Properties that a file records about itself in extended attributes (xattr(7)): the size to which
//! it was enlarged, and whether it is complete. Once a size is recorded, all of the file may be in
//! use, and a smaller file was truncated. A complete file is never copied again, even if its record
//! is older than the file. A copy of the file, with or without shared blocks, does not have the
//! mark.

#[cfg(test)]
use super::journal::{self, Call};
use super::{Backing, Files};
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// The extended attribute with the size to which the file was last enlarged, in bytes.
const GROWN: &str = "user.belay.grown";
/// The number of digits of 2^64.
const DIGITS_MAX: usize = 20;

impl Backing {
    /// Enlarges the file to at least `bytes`; never shrinks it.
    ///
    /// # Errors
    /// Returns `Range` if the filesystem does not support a file of this size, and otherwise
    /// `Quota` or `Unreachable`.
    pub(in crate::backend::local) fn grow(&self, bytes: u64) -> Result<(), Failure> {
        let before = self.bytes()?;
        if before < bytes {
            let grown = rustix::fs::ftruncate(&self.file, bytes);
            grown.map_err(|errno| os("ftruncate", &self.path, errno))?;
            #[cfg(test)]
            journal::note(Call::Change(self.path.clone()));
        }
        // Record the size after the change is on disk: a crash in between leaves an expansion that
        // the next call completes. In the opposite order, the file would look truncated. A new file
        // needs no record.
        if before > 0 && self.grown_to()? < bytes {
            self.sync()?;
            self.note_grown(bytes)?;
        }
        self.sync()
    }

    fn note_grown(&self, bytes: u64) -> Result<(), Failure> {
        let value = bytes.to_string();
        #[cfg(test)]
        journal::note(Call::Mark(self.path.clone()));
        match rustix::fs::fsetxattr(&self.file, GROWN, value.as_bytes(), XattrFlags::empty()) {
            // On a filesystem without extended attributes, nothing is recorded.
            Ok(()) | Err(Errno::NOTSUP) => Ok(()),
            Err(errno) => Err(os("fsetxattr", &self.path, errno)),
        }
    }

    /// Returns the size to which the file was last enlarged, in bytes; 0 if it never was.
    pub(in crate::backend::local) fn grown_to(&self) -> Result<u64, Failure> {
        let mut value = [0; DIGITS_MAX];
        let read = rustix::fs::fgetxattr(&self.file, GROWN, &mut value);
        grown(read, &value).map_err(|errno| os("fgetxattr", &self.path, errno))
    }
}

impl Files {
    /// Returns the size to which the file with this ID was last enlarged, without opening it.
    pub(in crate::backend::local) fn grown_to(&self, id: &str) -> Result<u64, Failure> {
        let path = self.path_of(id);
        let mut value = [0; DIGITS_MAX];
        let read = rustix::fs::lgetxattr(&path, GROWN, &mut value);
        grown(read, &value).map_err(|errno| os("lgetxattr", &path, errno))
    }
}

fn grown(read: Result<usize, Errno>, value: &[u8]) -> Result<u64, Errno> {
    match read {
        Ok(length) => {
            let digits = value
                .get(..length)
                .and_then(|value| str::from_utf8(value).ok());
            Ok(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0))
        }
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT | Errno::RANGE) => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// The extended attribute that marks the complete file of a volume or snapshot that was created
/// from a source.
const COMPLETE: &str = "user.belay.complete";
/// Values of the attribute: whether the source was in use, or new.
const POPULATED: &[u8] = b"populated";
const NEW: &[u8] = b"new";

impl Backing {
    /// Marks the file, whose data is on disk, as complete. The mark is on disk when this returns.
    /// Has no effect on a filesystem without extended attributes.
    pub(in crate::backend::local) fn mark_complete(&self, populated: bool) -> Result<(), Failure> {
        let value = if populated { POPULATED } else { NEW };
        match rustix::fs::fsetxattr(&self.file, COMPLETE, value, XattrFlags::empty()) {
            Ok(()) => {
                #[cfg(test)]
                journal::note(Call::Mark(self.path.clone()));
                self.sync()
            }
            Err(Errno::NOTSUP) => Ok(()),
            Err(errno) => Err(os("fsetxattr", &self.path, errno)),
        }
    }

    /// Returns whether the file was created from data; `None` if the file is not marked as
    /// complete.
    pub(in crate::backend::local) fn completed(&self) -> Result<Option<bool>, Failure> {
        let mut value = [0; POPULATED.len()];
        match rustix::fs::fgetxattr(&self.file, COMPLETE, &mut value) {
            Ok(length) => Ok(Some(value.get(..length) != Some(NEW))),
            // The value is longer than both known ones, so assume data.
            Err(Errno::RANGE) => Ok(Some(true)),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(errno) => Err(os("fgetxattr", &self.path, errno)),
        }
    }
}
