//! Removes directories with their files from the trash directory of a volume.
//!
//! A tenant may still have the volume mounted, and may rename and link files in the volume during
//! the removal. Therefore each directory is opened relative to an open directory, without following
//! symbolic links, and a name is removed only from an open directory. A file that is not a
//! directory is unlinked, so a symbolic link is removed and never followed. A directory below a
//! certain depth is moved to the top of the trash, so neither the number of descriptors nor the
//! length of a path limits the depth.

use super::error::{Error, Result as Done, at};
use super::layout::nonce;
use super::list::{self, Entry};
use super::own::is_missing;
use super::tree;
use belay_server::call::Failure;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Maximum depth of directories that are held open.
const DEPTH_MAX: usize = 32;
/// Limits on the number of a directory's names that are kept in memory while its files are removed.
/// The number decreases with the depth. A tenant chooses the names, and all worker processes share
/// the memory of the controller.
const NAMES_MAX: usize = 1024;
const NAMES_MIN: usize = 64;
/// Maximum number of times that a directory is emptied while another process is creating files in
/// it.
const PASSES_MAX: usize = 16;

/// The reason why a directory was not removed.
enum Remainder {
    /// The deadline was reached.
    Time,
    Error(Error),
    Failure(Failure),
}

impl From<Error> for Remainder {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The removal of the files in a trash.
pub(super) struct Emptying<'a> {
    pub(super) trash: &'a OwnedFd,
    pub(super) shown: &'a str,
    pub(super) end: Instant,
}

impl Emptying<'_> {
    /// Removes a file, or a directory with its files, from the trash.
    ///
    /// # Errors
    /// Returns `Busy` if files remain at `self.end`; the errors of the server.
    pub(super) fn run(&self, entry: &Entry) -> Result<(), Failure> {
        let removed = self.remove(self.trash, entry, 0);
        removed.map_err(|left| self.failure(left))
    }

    /// Removes a file, or a directory with its files, from an open directory.
    fn remove(&self, above: &OwnedFd, entry: &Entry, depth: usize) -> Result<(), Remainder> {
        if Instant::now() >= self.end {
            return Err(Remainder::Time);
        }
        if !entry.may_be_directory() {
            match self.unlink(above, &entry.name, AtFlags::empty()) {
                Err(error) if is_directory(error.errno) => {}
                result => return Ok(result?),
            }
        }
        let directory = match self.open(above, &entry.name) {
            Ok(Some(directory)) => directory,
            // The name does not (or no longer) refer to a directory.
            Ok(None) => return Ok(self.unlink(above, &entry.name, AtFlags::empty())?),
            Err(error) => return Err(error.into()),
        };
        if depth == DEPTH_MAX {
            return self.move_up(above, &entry.name);
        }
        let mut passes = 0;
        loop {
            loop {
                let found = list::some(&directory, held(depth), self.shown)?;
                #[cfg(test)]
                let _held = super::tests::hostile::Held::names(found.len());
                if found.is_empty() {
                    break;
                }
                for entry in &found {
                    self.remove(&directory, entry, depth + 1)?;
                }
            }
            passes += 1;
            match self.unlink(above, &entry.name, AtFlags::REMOVEDIR) {
                Err(error)
                    if [Errno::NOTEMPTY, Errno::EXIST].contains(&error.errno)
                        && passes < PASSES_MAX => {}
                // The directory was moved within the volume, and a file has the name of the
                // directory now.
                Err(error) if error.errno == Errno::NOTDIR => {
                    return Ok(self.unlink(above, &entry.name, AtFlags::empty())?);
                }
                result => return Ok(result?),
            }
        }
    }

    /// Moves a directory with its files to the top of the trash, so that it is removed later.
    fn move_up(&self, above: &OwnedFd, name: &CStr) -> Result<(), Remainder> {
        let new = nonce().map_err(Remainder::Failure)?;
        match tree::rename((above, name), (self.trash, &*new), self.shown) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    fn open(&self, above: &OwnedFd, name: &CStr) -> Done<Option<OwnedFd>> {
        match tree::open(above, name, self.shown) {
            Err(error) if is_missing(error.errno) => Ok(None),
            result => result.map(Some),
        }
    }

    fn unlink(&self, above: &OwnedFd, name: &CStr, flags: AtFlags) -> Done<()> {
        let removed = tree::removed(above, name, flags);
        removed.map(drop).map_err(at("unlinkat", self.shown))
    }

    fn failure(&self, left: Remainder) -> Failure {
        match left {
            Remainder::Error(error) => error.into(),
            Remainder::Failure(failure) => failure,
            Remainder::Time => Failure::busy(format!(
                "directory {}: its files are still being removed; repeat the call",
                self.shown
            )),
        }
    }
}

fn held(depth: usize) -> usize {
    (NAMES_MAX >> depth).max(NAMES_MIN)
}

/// Whether unlinkat(2) failed because the file is a directory. Linux returns EISDIR; POSIX and some
/// servers use EPERM.
fn is_directory(errno: Errno) -> bool {
    matches!(errno, Errno::ISDIR | Errno::PERM)
}
