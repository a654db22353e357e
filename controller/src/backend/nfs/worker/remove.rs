//! Removes directories with their files, in `.belay/trash` of the share, where they were moved.
//!
//! A tenant may still have one mounted, and rename and link in it meanwhile. So each directory is
//! opened without following a link, by its name in a directory that is open, and a name is removed
//! only from an open directory. What is no directory is unlinked, so a link is removed and never
//! followed. A directory below a certain depth is moved up, so neither descriptors nor the length
//! of a path limit the depth.

use super::super::path::{Dir, OWN};
use super::claims::{file_name, nonce};
use super::error::{Error, Result as Done, at};
use super::list::{self, Entry};
use super::tree::{self, Found, INSIDE, Tree};
use belay_server::call::Failure;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::Instant;

const TRASH: &str = ".belay/trash";
/// How deep directories are held open.
const DEPTH_MAX: usize = 32;
/// How often a directory is emptied that another process fills meanwhile.
const PASSES_MAX: usize = 16;

/// The trash of a share.
pub(super) struct Trash(OwnedFd);

/// Why a directory remains.
enum Left {
    /// There was no time.
    Time,
    Error(Error),
    Failure(Failure),
}

impl From<Error> for Left {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Trash {
    /// That of the share, which is made if it is missing.
    pub(super) fn open(tree: &Tree) -> Done<Self> {
        let own = tree::own(tree.root(), OWN, OWN)?;
        tree::own(&own, "trash", TRASH).map(Self)
    }

    /// That of the share; none if nothing was ever deleted.
    pub(super) fn find(tree: &Tree) -> Done<Option<Self>> {
        match tree::open(tree.root(), TRASH, TRASH) {
            Ok(trash) => Ok(Some(Self(trash))),
            Err(error) if error.errno == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves a directory here, where [`Self::empty`] finds it.
    pub(super) fn take(&self, tree: &Tree, dir: &Dir) -> Result<(), Failure> {
        self.take_other(tree, dir, None)
    }

    /// Moves a directory here, unless it is `kept`: another call may just have given that the name
    /// of `dir`, and it gets the name again.
    pub(super) fn take_other(
        &self,
        tree: &Tree,
        dir: &Dir,
        kept: Option<Found>,
    ) -> Result<(), Failure> {
        let (above, shown) = (tree.open_above(dir)?, dir.to_string());
        let name = format!("{}.{}", file_name(dir), nonce()?);
        match tree::rename((&above, dir.name()), (&self.0, &name), &shown) {
            // It was done, and the answer was lost; or another call has done it.
            Err(error) if error.errno == Errno::NOENT => return Ok(()),
            result => result?,
        }
        if kept.is_some() && tree::find(&self.0, &name, &shown)? == kept {
            tree::rename((&self.0, &name), (&above, dir.name()), &shown)?;
        }
        Ok(())
    }

    /// Removes all that was moved here of that directory.
    ///
    /// # Errors
    /// `Busy` if files remain at `end`; those of the server.
    pub(super) fn empty(&self, dir: &Dir, end: Instant) -> Result<(), Failure> {
        let prefix = format!("{}.", file_name(dir));
        loop {
            let own = list::entries_of(&self.0, &prefix, TRASH)?;
            if own.is_empty() {
                return Ok(());
            }
            let emptying = Emptying {
                trash: &self.0,
                prefix: &prefix,
                shown: dir.to_string(),
                end,
            };
            for entry in &own {
                let removed = emptying.remove(&self.0, entry, 0);
                removed.map_err(|left| emptying.failure(left))?;
            }
        }
    }
}

struct Emptying<'a> {
    trash: &'a OwnedFd,
    prefix: &'a str,
    shown: String,
    end: Instant,
}

impl Emptying<'_> {
    /// Removes a name from an open directory.
    fn remove(&self, above: &OwnedFd, entry: &Entry, depth: usize) -> Result<(), Left> {
        if Instant::now() >= self.end {
            return Err(Left::Time);
        }
        if !entry.may_be_directory {
            match self.unlink(above, &entry.name, AtFlags::empty()) {
                Err(error) if is_directory(error.errno) => {}
                result => return Ok(result?),
            }
        }
        let directory = match self.open(above, &entry.name) {
            Ok(Some(directory)) => directory,
            // Not a directory, or no longer.
            Ok(None) => return Ok(self.unlink(above, &entry.name, AtFlags::empty())?),
            Err(error) => return Err(error.into()),
        };
        if depth == DEPTH_MAX {
            return self.move_up(above, &entry.name);
        }
        let mut passes = 0;
        loop {
            loop {
                let found = list::entries(&directory, &self.shown)?;
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
                // It was moved elsewhere in the volume, and something else has its name now.
                Err(error) if error.errno == Errno::NOTDIR => {
                    return Ok(self.unlink(above, &entry.name, AtFlags::empty())?);
                }
                result => return Ok(result?),
            }
        }
    }

    /// A directory, whatever it has in it, is removed later.
    fn move_up(&self, above: &OwnedFd, name: &CStr) -> Result<(), Left> {
        let new = format!("{}{}", self.prefix, nonce().map_err(Left::Failure)?);
        let rename = || {
            tree::alive()?;
            rustix::fs::renameat(above, name, self.trash, new.as_str())
        };
        match retry_on_intr(rename) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(at("renameat", &self.shown)(errno).into()),
        }
    }

    fn open(&self, above: &OwnedFd, name: &CStr) -> Done<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat2(above, name, flags, Mode::empty(), INSIDE);
        match tree::retry(open) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(None),
            Err(errno) => Err(at("openat2", &self.shown)(errno)),
        }
    }

    fn unlink(&self, above: &OwnedFd, name: &CStr, flags: AtFlags) -> Done<()> {
        let unlink = || {
            tree::alive()?;
            rustix::fs::unlinkat(above, name, flags)
        };
        match retry_on_intr(unlink) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(at("unlinkat", &self.shown)(errno)),
        }
    }

    fn failure(&self, left: Left) -> Failure {
        match left {
            Left::Error(error) => error.into(),
            Left::Failure(failure) => failure,
            Left::Time => Failure::busy(format!(
                "directory {}: its files are still being removed; repeat the call",
                self.shown
            )),
        }
    }
}

/// EPERM: as POSIX has it, and some servers do.
fn is_directory(errno: Errno) -> bool {
    matches!(errno, Errno::ISDIR | Errno::PERM)
}
