//! Files by inode: checks whether two names refer to the same file and how many names it has, and
//! creates a second name that keeps a file whose first name is removed.

#[cfg(test)]
use super::journal::{self, Call};
use super::{Backing, Files};
use crate::backend::local::fault::os;
use belay_contract::drivers::local::names_refusal;
use belay_server::call::Failure;
use rustix::fs::{AtFlags, FlockOperation, Stat};
use rustix::io::Errno;
use std::path::PathBuf;

/// Maximum number of earlier files of one volume that are kept for an operator.
const ASIDE_MAX: u32 = 100;

/// The identity of a file while it is open; the numbers change at a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::local) struct Inode {
    dev: u64,
    ino: u64,
}

impl From<Stat> for Inode {
    fn from(stat: Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
        }
    }
}

/// Returns the number of names of a file. The type of the field depends on the architecture.
pub(in crate::backend::local) fn names_of(stat: &Stat) -> u64 {
    fn widened(names: impl Into<u64>) -> u64 {
        names.into()
    }
    widened(stat.st_nlink)
}

impl Files {
    /// Links the file with this ID from the other directory into this one, under the same name.
    /// Returns false if the filesystem does not support that.
    pub(in crate::backend::local) fn link(&self, from: &Self, id: &str) -> Result<bool, Failure> {
        match rustix::fs::linkat(&from.dir, id, &self.dir, id, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // Per link(2), these mean no hard links at all, none to another mount, or too many.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::XDEV | Errno::MLINK) => Ok(false),
            Err(errno) => Err(os("link", &self.path_of(id), errno)),
        }
    }

    /// Creates another name for the file with this ID in the same directory; returns its path.
    pub(in crate::backend::local) fn set_aside(&self, id: &str) -> Result<PathBuf, Failure> {
        for number in 1..=ASIDE_MAX {
            let name = format!("{id}.{number}");
            match rustix::fs::linkat(&self.dir, id, &self.dir, &*name, AtFlags::empty()) {
                Ok(()) => {
                    #[cfg(test)]
                    journal::note(Call::Change(self.path.clone()));
                    self.sync()?;
                    return Ok(self.path_of(&name));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(os("link", &self.path_of(&name), errno)),
            }
        }
        Err(Failure::precondition(format!(
            "{}.*: too many earlier files of one volume; move them to where they belong, or delete \
             them",
            self.path_of(id).display()
        )))
    }

    /// Removes the name, if it exists; a power cut may restore it.
    pub(in crate::backend::local) fn unlink(&self, id: &str) -> Result<(), Failure> {
        match rustix::fs::unlinkat(&self.dir, id, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(os("unlink", &self.path_of(id), errno)),
        }
    }

    /// Returns the inode of the name, without opening the file.
    pub(in crate::backend::local) fn inode(&self, id: &str) -> Result<Option<Inode>, Failure> {
        match rustix::fs::statat(&self.dir, id, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(os("stat", &self.path_of(id), errno)),
        }
    }

    /// Whether removing the name would delete the content of a file. Does not open the file.
    pub(in crate::backend::local) fn is_last_name(&self, id: &str) -> Result<bool, Failure> {
        match rustix::fs::statat(&self.dir, id, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(stat.st_nlink == 1),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(os("stat", &self.path_of(id), errno)),
        }
    }
}

impl Backing {
    /// Returns the inode of the file.
    pub(in crate::backend::local) fn inode(&self) -> Result<Inode, Failure> {
        self.stat().map(Inode::from)
    }

    /// Refuses a file with more than `allowed` names, since it may also be the file of another
    /// volume or snapshot. Reads the number again only if there were more when the file was opened.
    ///
    /// # Errors
    /// Returns `Precondition`, with the remedy.
    pub(in crate::backend::local) fn refuse_linked(&self, allowed: u64) -> Result<(), Failure> {
        if self.names <= allowed {
            return Ok(());
        }
        match names_refusal(&self.path, names_of(&self.stat()?), allowed) {
            Some(why) => Err(Failure::precondition(why)),
            None => Ok(()),
        }
    }

    /// Whether another process holds the lock of the file. Takes the lock shared for a moment, so
    /// concurrent checks do not notice each other.
    pub(in crate::backend::local) fn is_locked(&self) -> Result<bool, Failure> {
        let flock = |operation| rustix::fs::flock(&self.file, operation);
        match flock(FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            locked => locked
                .and_then(|()| flock(FlockOperation::Unlock))
                .map(|()| false)
                .map_err(|errno| os("flock", &self.path, errno)),
        }
    }
}
