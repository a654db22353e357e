//! Extended attributes (xattr(7)) of a volume's file, which [`belay_contract::drivers::local`]
//! defines: whether the file was ever used, its recorded size, and the controller's claim. A file
//! with a recorded size is complete, and is never filled again, even if an older backup of the
//! ledger lists it as incomplete. A file that shares the blocks of another file does not inherit
//! the attributes.

#[cfg(test)]
use super::journal::{self, Call};
use super::{Backing, Files};
use crate::backend::local::fault::os;
use belay_contract::drivers::local::{
    BYTES, BYTES_DIGITS_MAX, CLAIM, CLAIM_BYTES_MAX, Claim, IS_NEW, NEW, parse_bytes,
};
use belay_server::call::Failure;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// The length of a UUID in text form.
const UUID_DIGITS: usize = 36;

/// Whether a file was used, according to its attribute [`NEW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::local) enum Use {
    /// The file was never used.
    New,
    /// The node is formatting the file.
    Formatting,
    /// The file was used, or has no attribute which shows that it was never used.
    Used,
}

impl Backing {
    /// Marks the file as never used. A power failure may undo this until [`Self::sync`] returns.
    ///
    /// # Errors
    /// Returns `Unreachable` on a filesystem without extended attributes. Without the attribute,
    /// the node agent would not format the volume.
    pub(in crate::backend::local) fn mark_new(&self) -> Result<(), Failure> {
        self.set(NEW, IS_NEW)
    }

    /// Returns whether the file was used.
    pub(in crate::backend::local) fn use_so_far(&self) -> Result<Use, Failure> {
        let mut value = [0; 64];
        Ok(match self.read(NEW, &mut value)? {
            None => Use::Used,
            Some(IS_NEW) => Use::New,
            Some(value) if value.len() == UUID_DIGITS => Use::Formatting,
            Some(_) => Use::Used,
        })
    }

    /// Enlarges the file to at least `bytes`, and records the size. Does not shrink a larger file.
    ///
    /// # Errors
    /// Returns `Range` if the filesystem does not support a file of this size, and otherwise
    /// `Quota` or `Unreachable`.
    pub(in crate::backend::local) fn grow(&self, bytes: u64) -> Result<(), Failure> {
        self.enlarge(bytes)?;
        if self.recorded_bytes()?.unwrap_or(0) < bytes {
            // Record the size only after the enlarged file is on disk. If a crash happens before
            // the size is recorded, the next call completes the expansion. If the size were
            // recorded first, the file would look truncated after the crash.
            self.sync()?;
            self.record_bytes(bytes)?;
        }
        self.sync()
    }

    /// Enlarges the file to at least `bytes`, without recording the size. A power failure may undo
    /// this until [`Self::sync`] returns.
    ///
    /// # Errors
    /// Returns the errors of [`Self::grow`].
    pub(in crate::backend::local) fn enlarge(&self, bytes: u64) -> Result<(), Failure> {
        if self.bytes()? >= bytes {
            return Ok(());
        }
        let grown = rustix::fs::ftruncate(&self.file, bytes);
        grown.map_err(|errno| os("ftruncate", &self.path, errno))?;
        #[cfg(test)]
        journal::note(Call::Change(self.path.clone()));
        Ok(())
    }

    /// Records the size of the file, which marks it as complete. The data of the file must already
    /// be on disk. A power failure may undo the record until [`Self::sync`] returns.
    pub(in crate::backend::local) fn record_bytes(&self, bytes: u64) -> Result<(), Failure> {
        self.set(BYTES, bytes.to_string().as_bytes())
    }

    /// Returns the recorded size of the file; `None` if the file is incomplete, or was copied by a
    /// program that omits attributes.
    pub(in crate::backend::local) fn recorded_bytes(&self) -> Result<Option<u64>, Failure> {
        let mut value = [0; BYTES_DIGITS_MAX];
        Ok(self.read(BYTES, &mut value)?.map(parse_bytes))
    }

    /// Sets the claim. Each call triggers an inotify event in the node agent, even if the file
    /// already has this claim. A power failure may undo the claim until [`Self::sync`] returns.
    pub(in crate::backend::local) fn claim(&self, claim: &Claim) -> Result<(), Failure> {
        self.set(CLAIM, claim.value().as_bytes())
    }

    /// Sets the claim, unless the file already has a claim.
    pub(in crate::backend::local) fn claim_first(&self, claim: &Claim) -> Result<(), Failure> {
        let (name, value) = (CLAIM, claim.value());
        #[cfg(test)]
        journal::note(Call::Mark(self.path.clone()));
        match rustix::fs::fsetxattr(&self.file, name, value.as_bytes(), XattrFlags::CREATE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(os("fsetxattr", &self.path, errno)),
        }
    }

    /// Returns the claim; `None` if the file has none.
    pub(in crate::backend::local) fn claimed(&self) -> Result<Option<Claim>, Failure> {
        let mut value = [0; CLAIM_BYTES_MAX];
        Ok(self.read(CLAIM, &mut value)?.and_then(Claim::parse))
    }

    /// Removes the claim of the file, if it is equal to `claim`.
    pub(in crate::backend::local) fn end_claim(&self, claim: &Claim) -> Result<(), Failure> {
        if self.claimed()?.as_ref() != Some(claim) {
            return Ok(());
        }
        rustix::fs::fremovexattr(&self.file, CLAIM)
            .map_err(|errno| os("fremovexattr", &self.path, errno))
    }

    fn set(&self, name: &str, value: &[u8]) -> Result<(), Failure> {
        #[cfg(test)]
        journal::note(match name {
            BYTES => Call::Mark(self.path.clone()),
            _ => Call::Change(self.path.clone()),
        });
        rustix::fs::fsetxattr(&self.file, name, value, XattrFlags::empty())
            .map_err(|errno| os("fsetxattr", &self.path, errno))
    }

    /// Returns the value of an attribute; `None` if the file does not have it. If the attribute is
    /// longer than `value`, and so longer than any known value, returns an empty value.
    fn read<'a>(&self, name: &str, value: &'a mut [u8]) -> Result<Option<&'a [u8]>, Failure> {
        let read = rustix::fs::fgetxattr(&self.file, name, &mut *value);
        shown(read, value).map_err(|errno| os("fgetxattr", &self.path, errno))
    }
}

impl Files {
    /// Returns the recorded size of the file with this ID, without opening the file; 0 if no size
    /// is recorded.
    pub(in crate::backend::local) fn recorded_bytes(&self, id: &str) -> Result<u64, Failure> {
        let path = self.path_of(id);
        let mut value = [0; BYTES_DIGITS_MAX];
        let read = rustix::fs::lgetxattr(&path, BYTES, &mut value);
        let shown = shown(read, &value).map_err(|errno| os("lgetxattr", &path, errno))?;
        Ok(shown.map_or(0, parse_bytes))
    }
}

fn shown(read: Result<usize, Errno>, value: &[u8]) -> Result<Option<&[u8]>, Errno> {
    match read {
        Ok(length) => Ok(Some(value.get(..length).unwrap_or_default())),
        Err(Errno::RANGE) => Ok(Some(&[])),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
