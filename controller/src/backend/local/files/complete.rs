//! The mark of a file that was whole once: what a copy made is then never made again, not even if
//! its record is older than the file. A copy of the file, by reflink or not, does not have it.

use super::Backing;
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Attribute of a file (xattr(7)) of a volume or snapshot that was made from a source.
const COMPLETE: &str = "user.belay.complete";
/// Its values: whether the source was not new.
const POPULATED: &[u8] = b"populated";
const NEW: &[u8] = b"new";

impl Backing {
    /// Marks the file, whose data is on disk, as whole; the mark is on disk when this returns. A
    /// filesystem without such attributes has no marks.
    pub(in crate::backend::local) fn mark_complete(&self, populated: bool) -> Result<(), Failure> {
        let value = if populated { POPULATED } else { NEW };
        match rustix::fs::fsetxattr(&self.file, COMPLETE, value, XattrFlags::empty()) {
            Ok(()) => self.sync(),
            Err(Errno::NOTSUP) => Ok(()),
            Err(errno) => Err(os("fsetxattr", &self.path, errno)),
        }
    }

    /// Whether the file was made from data, if it was marked as whole.
    pub(in crate::backend::local) fn completed(&self) -> Result<Option<bool>, Failure> {
        let mut value = [0; POPULATED.len()];
        match rustix::fs::fgetxattr(&self.file, COMPLETE, &mut value) {
            Ok(length) => Ok(Some(value.get(..length) != Some(NEW))),
            // Longer than both values, so it is of another release; the data counts.
            Err(Errno::RANGE) => Ok(Some(true)),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
            Err(errno) => Err(os("fgetxattr", &self.path, errno)),
        }
    }
}
