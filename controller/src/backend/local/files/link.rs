//! The names (hard links) and the lock of a backing file.

use super::{Backing, patiently};
use crate::backend::local::fault::os;
use belay_contract::drivers::local::names_refusal;
use belay_server::call::Failure;
use rustix::fs::{FlockOperation, Stat};
use rustix::io::Errno;

/// The identity of a file, valid while the file is open. The device number of the filesystem may
/// change at a reboot.
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

/// Returns the number of names (hard links) of a file. The type of `st_nlink` depends on the
/// architecture.
pub(in crate::backend::local) fn names_of(stat: &Stat) -> u64 {
    fn widened(names: impl Into<u64>) -> u64 {
        names.into()
    }
    widened(stat.st_nlink)
}

impl Backing {
    /// Refuses a file with several names (hard links), since it may also be the file of another
    /// volume or snapshot. Reads the number of names again only if the file had several names when
    /// it was opened.
    ///
    /// # Errors
    /// Returns `Precondition`, with the remedy, if the file has several names.
    pub(in crate::backend::local) fn refuse_linked(&self) -> Result<(), Failure> {
        if self.names <= 1 {
            return Ok(());
        }
        match names_refusal(&self.path, names_of(&self.stat()?)) {
            Some(why) => Err(Failure::precondition(why)),
            None => Ok(()),
        }
    }

    /// Locks the file until `self` is dropped. Returns false if another process holds the lock. The
    /// node agent locks a file before it binds the file to a loop device, and the loop device then
    /// holds the lock.
    pub(in crate::backend::local) fn try_lock(&self) -> Result<bool, Failure> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(os("flock", &self.path, errno)),
        }
    }

    /// Locks the file like [`Self::try_lock`], but waits for up to a second if the lock is held. A
    /// NodeStageVolume call that fails, and [`Self::is_locked`], hold the lock for a moment.
    pub(in crate::backend::local) fn lock_soon(&self) -> Result<bool, Failure> {
        let mut locked = Ok(false);
        patiently(|| {
            locked = self.try_lock();
            matches!(locked, Ok(false))
        });
        locked
    }

    /// Whether a process holds the lock of the file. The check takes a shared lock for a moment, so
    /// that concurrent checks do not conflict.
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
