//! Files by their inodes: whether two names lead to the same one, and a second name that keeps a
//! file whose first one is taken away.

use super::{Backing, Files};
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::{AtFlags, FlockOperation, Stat};
use rustix::io::Errno;
use std::path::PathBuf;

/// Earlier files of one volume that are kept for an operator.
const ASIDE_MAX: u32 = 100;

/// Tells a file from all others while either of them is open; numbers change at a reboot.
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

impl Files {
    /// Gives the file of that id in the other directory the same name in this one; tells whether
    /// the filesystem has such names.
    pub(in crate::backend::local) fn link(&self, from: &Self, id: &str) -> Result<bool, Failure> {
        match rustix::fs::linkat(&from.dir, id, &self.dir, id, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // link(2): no hard links at all, none to another mount, no more of them.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::XDEV | Errno::MLINK) => Ok(false),
            Err(errno) => Err(os("link", &self.path_of(id), errno)),
        }
    }

    /// Gives the file of that id another name beside it, and tells which.
    pub(in crate::backend::local) fn set_aside(&self, id: &str) -> Result<PathBuf, Failure> {
        for number in 1..=ASIDE_MAX {
            let name = format!("{id}.{number}");
            match rustix::fs::linkat(&self.dir, id, &self.dir, &*name, AtFlags::empty()) {
                Ok(()) => {
                    self.sync()?;
                    return Ok(self.path_of(&name));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(os("link", &self.path_of(&name), errno)),
            }
        }
        Err(Failure::precondition(format!(
            "{}.*: too many earlier files of one volume; move them to where they belong, or remove \
             them",
            self.path_of(id).display()
        )))
    }

    /// Removes that name, if it is there; a power cut may bring it back.
    pub(in crate::backend::local) fn unlink(&self, id: &str) -> Result<(), Failure> {
        match rustix::fs::unlinkat(&self.dir, id, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(os("unlink", &self.path_of(id), errno)),
        }
    }

    /// What that name leads to; opens nothing.
    pub(in crate::backend::local) fn inode(&self, id: &str) -> Result<Option<Inode>, Failure> {
        match rustix::fs::statat(&self.dir, id, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(os("stat", &self.path_of(id), errno)),
        }
    }
}

impl Backing {
    /// Which file it is.
    pub(in crate::backend::local) fn inode(&self) -> Result<Inode, Failure> {
        self.stat().map(Inode::from)
    }

    /// Whether its content would be gone with its name.
    pub(in crate::backend::local) fn has_one_name(&self) -> Result<bool, Failure> {
        Ok(self.stat()?.st_nlink == 1)
    }

    /// Whether another has its lock.
    pub(in crate::backend::local) fn is_locked(&self) -> Result<bool, Failure> {
        if !self.try_lock()? {
            return Ok(true);
        }
        rustix::fs::flock(&self.file, FlockOperation::Unlock)
            .map_err(|errno| os("flock", &self.path, errno))?;
        Ok(false)
    }
}
