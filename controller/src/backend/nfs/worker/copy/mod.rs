//! The copier: a source passes each file to a sink, which creates the file in the copy. The sources
//! are a directory ([`walk::directory`]) and an archive (`snapshot::restore`); the sinks are a
//! directory ([`target::Target`]) and an archive (`snapshot::writer`). A clone copies a directory
//! to a directory, a snapshot copies a directory to an archive, and a restore copies an archive to
//! a directory.

pub(super) mod attributes;
pub(super) mod content;
mod levels;
pub(super) mod report;
pub(super) mod target;
pub(super) mod walk;

use super::error::{Error, Result as Done};
use super::tar::Entry;
use belay_server::call::Failure;
use report::Report;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Maximum depth of copied directories. The depth is limited since all parents of a file are open
/// in the source and the target.
pub(super) const DEPTH_MAX: usize = 256;

/// The reason why a file is not copied.
pub(super) enum Stop {
    /// The file was removed or replaced; a different file may have its name by now.
    Again(Error),
    /// The sink refuses the file.
    Refused(String),
    Failure(Failure),
}

impl Stop {
    /// Converts a failed system call on the source. The errors of a removed or replaced file become
    /// [`Self::Again`].
    pub(super) fn of(error: Error) -> Self {
        match error.errno {
            Errno::NOENT | Errno::STALE | Errno::LOOP | Errno::NOTDIR | Errno::NXIO => {
                Self::Again(error)
            }
            _ => Self::Failure(error.into()),
        }
    }

    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// Converts the reason to a failure of the call. If the sink refuses the file, `describe`
    /// returns the failure.
    pub(super) fn failure(self, describe: impl FnOnce(&str) -> Failure) -> Failure {
        match self {
            Self::Again(error) => error.into(),
            Self::Refused(why) => describe(&why),
            Self::Failure(failure) => failure,
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failure(error.into())
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// A file or a directory that is copied from a volume.
pub(super) struct Item<'a> {
    /// The description of the file, without extended attributes.
    pub(super) entry: Entry,
    pub(super) from: &'a OwnedFd,
    pub(super) stat: &'a Stat,
    /// The path of the file in messages.
    pub(super) shown: &'a str,
}

/// The sink: the target of a copy, which creates the files. If creating a file fails with
/// [`Stop::Again`], nothing of the file is left behind.
pub(super) trait Sink {
    /// Creates a directory. After this method, the source calls the methods for the files in the
    /// directory.
    fn directory(&mut self, it: Item<'_>) -> Result<(), Stop>;

    /// Creates a file with its content. On the last attempt, a file that became shorter is
    /// accepted.
    fn file(&mut self, it: Item<'_>, is_last: bool, report: &mut Report<'_>) -> Result<(), Stop>;

    /// Creates a symbolic link, a FIFO, a socket or a device.
    fn special(&mut self, entry: &Entry, shown: &str) -> Result<(), Stop>;

    /// Returns the current position of the target, for [`Sink::back`].
    fn begin(&mut self) -> Done<u64>;

    /// Removes a directory with everything that was created in it since the position `begin`.
    fn back(&mut self, begin: u64, path: &[u8], shown: &str) -> Result<(), Stop>;
}
