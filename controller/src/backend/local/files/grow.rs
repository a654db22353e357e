//! Enlarging a file, and recording that in the file: from then on all of it may be in use, and if
//! it is smaller, it was truncated.

#[cfg(test)]
use super::journal::{self, Call};
use super::{Backing, Files};
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Attribute (xattr(7)) of a file: the size that it was last enlarged to, in bytes.
const GROWN: &str = "user.belay.grown";
/// Number of digits of 2^64.
const DIGITS_MAX: usize = 20;

impl Backing {
    /// Enlarges it to at least that size; never shrinks it.
    ///
    /// # Errors
    /// `Range` if the filesystem does not support a file of that size, else `Quota` or
    /// `Unreachable`.
    pub(in crate::backend::local) fn grow(&self, bytes: u64) -> Result<(), Failure> {
        let before = self.bytes()?;
        if before < bytes {
            let grown = rustix::fs::ftruncate(&self.file, bytes);
            grown.map_err(|errno| os("ftruncate", &self.path, errno))?;
            #[cfg(test)]
            journal::note(Call::Change(self.path.clone()));
        }
        // After the size, on disk too: a crash in between leaves an expansion that the next call
        // completes. The other way round, the file would look truncated. A new file needs no note.
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
            // A filesystem without extended attributes records nothing.
            Ok(()) | Err(Errno::NOTSUP) => Ok(()),
            Err(errno) => Err(os("fsetxattr", &self.path, errno)),
        }
    }

    /// The size that it was last enlarged to; 0 if it never was.
    pub(in crate::backend::local) fn grown_to(&self) -> Result<u64, Failure> {
        let mut value = [0; DIGITS_MAX];
        let read = rustix::fs::fgetxattr(&self.file, GROWN, &mut value);
        grown(read, &value).map_err(|errno| os("fgetxattr", &self.path, errno))
    }
}

impl Files {
    /// The same for the file of that ID, without opening it.
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
