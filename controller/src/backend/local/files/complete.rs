//! The mark of a complete file: it is never copied again, even if its record is older than the
//! file. A copy of the file, by reflink or not, does not have the mark.

use super::Backing;
#[cfg(test)]
use super::journal::{self, Call};
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Attribute (xattr(7)) of the file of a volume or snapshot that was created from a source.
const COMPLETE: &str = "user.belay.complete";
/// Its values: whether the source was in use, or new.
const POPULATED: &[u8] = b"populated";
const NEW: &[u8] = b"new";

impl Backing {
    /// Marks the file, whose data is on disk, as complete; the mark is on disk when this returns.
    /// Without effect on a filesystem without extended attributes.
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

    /// Whether the file was created from data, if it is marked as complete.
    pub(in crate::backend::local) fn completed(&self) -> Result<Option<bool>, Failure> {
        let mut value = [0; POPULATED.len()];
        match rustix::fs::fgetxattr(&self.file, COMPLETE, &mut value) {
            Ok(length) => Ok(Some(value.get(..length) != Some(NEW))),
            // Longer than both values: assume data.
            Err(Errno::RANGE) => Ok(Some(true)),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(errno) => Err(os("fgetxattr", &self.path, errno)),
        }
    }
}
