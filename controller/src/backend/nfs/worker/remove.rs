//! Removes directories with their files, in `.belay/trash` of the share, where they were moved.
//!
//! Each claim has a separate directory there, which is removed before the claim: a request to move
//! a volume there that the server executes late finds no directory, and so moves no later volume.
//!
//! A tenant may still have a volume mounted, and rename and link in it meanwhile. So each
//! directory is opened without following a link, by its name in a directory that is open, and a
//! name is removed only from an open directory. What is no directory is unlinked, so a link is
//! removed and never followed. A directory below a certain depth is moved up, so neither
//! descriptors nor the length of a path limit the depth.

use super::super::path::Dir;
use super::claim::{Claim, file_name, nonce};
use super::claims::Claims;
use super::copy::COMPLETE;
use super::error::{Error, Result as Done, at};
use super::list::{self, Entry};
use super::own::is_missing;
use super::tree::{self, Found, Tree};
use belay_server::call::{Failure, Kind};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::Instant;

pub(super) const TRASH: &str = "trash";
/// A directory that is not removed, but archived.
pub(super) const KEPT: &str = "volume";
/// The prefix of older archives that a new one replaces, until it has replaced them.
const OLDER: &str = "older.";
/// How deep directories are held open.
const DEPTH_MAX: usize = 32;
/// How many names of a directory are held while what is in it is removed, by its depth: all
/// processes of a server share the memory of the controller, and a tenant chooses the names.
const NAMES_MAX: usize = 1024;
const NAMES_MIN: usize = 64;
/// How often a directory is emptied that another process fills meanwhile.
const PASSES_MAX: usize = 16;

/// What was moved away for one claim.
pub(super) struct Trash {
    /// That of all claims.
    all: OwnedFd,
    pub(super) own: OwnedFd,
    name: String,
    /// The directory of the volume.
    pub(super) shown: String,
}

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
    /// That of the claim, which is made if it is missing.
    pub(super) fn open(claims: &Claims, dir: &Dir, claim: &Claim) -> Result<Self, Failure> {
        let all = claims.own.make_directory(TRASH)?;
        let name = format!("{}.{}", file_name(dir), claim.nonce);
        let own = tree::own(&all, &name, TRASH)?;
        Ok(Self {
            all,
            own,
            name,
            shown: dir.to_string(),
        })
    }

    /// The same, of a claim that is as this call has seen it. Only as long as it is so, its trash
    /// is that of the directory, so this looks at the claim last.
    ///
    /// # Errors
    /// `Busy` if it is not; those of the server.
    pub(super) fn of_current(claims: &Claims, dir: &Dir, claim: &Claim) -> Result<Self, Failure> {
        let trash = Self::open(claims, dir, claim)?;
        match claims.check(dir, claim) {
            Ok(()) => Ok(trash),
            Err(failure) => {
                if failure.kind == Kind::Busy {
                    // It was made again after its claim was removed or changed.
                    trash.remove().unwrap_or_default();
                }
                Err(failure)
            }
        }
    }

    /// That of the claim; none if nothing was moved there.
    pub(super) fn find(claims: &Claims, dir: &Dir, claim: &Claim) -> Result<Option<Self>, Failure> {
        let Some(all) = claims.own.find_directory(TRASH)? else {
            return Ok(None);
        };
        let name = format!("{}.{}", file_name(dir), claim.nonce);
        let own = tree::open_existing(&all, &name, TRASH)?;
        Ok(own.map(|own| Self {
            all,
            own,
            name,
            shown: dir.to_string(),
        }))
    }

    /// Where it is in the share.
    pub(super) fn path(&self) -> String {
        format!(".belay/{TRASH}/{}", self.name)
    }

    /// What is here and not to be removed.
    pub(super) fn kept(&self) -> Done<Option<Found>> {
        tree::find(&self.own, KEPT, &self.shown)
    }

    /// Moves a directory here, to be removed.
    pub(super) fn take(&self, tree: &Tree, dir: &Dir) -> Result<(), Failure> {
        self.move_here(tree, dir, &nonce()?)
    }

    /// Moves a directory here, to be archived.
    pub(super) fn keep(&self, tree: &Tree, dir: &Dir) -> Result<(), Failure> {
        self.move_here(tree, dir, KEPT)
    }

    fn move_here(&self, tree: &Tree, dir: &Dir, name: &str) -> Result<(), Failure> {
        let (above, shown) = (tree.open_above(dir)?, dir.to_string());
        match tree::rename((&above, dir.name()), (&self.own, name), &shown) {
            // It was done, and the answer was lost; or another call has done it.
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    /// Moves what is kept here to the trash of the volume whose archive replaces it.
    pub(super) fn hand_over(&self, to: &Self) -> Result<(), Failure> {
        let name = format!("{OLDER}{}", nonce()?);
        match tree::rename((&self.own, KEPT), (&to.own, &name), &self.shown) {
            // Nothing was moved here; or another call has done it.
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    /// The archives here that a new one replaces.
    pub(super) fn older(&self) -> Done<Vec<String>> {
        let mut names = list::names(&self.own, &self.shown)?;
        names.retain(|name| name.starts_with(OLDER));
        Ok(names)
    }

    /// They can be removed.
    pub(super) fn release(&self, older: &[String]) -> Result<(), Failure> {
        older.iter().try_for_each(|name| self.rename_away(name))
    }

    /// What has that name can be removed.
    pub(super) fn rename_away(&self, name: &str) -> Result<(), Failure> {
        match tree::rename((&self.own, name), (&self.own, &*nonce()?), &self.shown) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    /// Gives what is kept here its name; `NOENT` if another call has done that.
    pub(super) fn place(&self, above: &OwnedFd, dir: &Dir) -> Done<()> {
        tree::rename((&self.own, KEPT), (above, dir.name()), &dir.to_string())
    }

    /// Removes all that was moved here to be removed.
    ///
    /// # Errors
    /// `Busy` if files remain at `end`; those of the server.
    pub(super) fn empty(&self, end: Instant) -> Result<(), Failure> {
        self.empty_except(end, |_| false)
    }

    /// The same, except for names that are kept.
    pub(super) fn empty_except(
        &self,
        end: Instant,
        is_kept: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Failure> {
        let emptying = Emptying {
            trash: &self.own,
            shown: &self.shown,
            end,
        };
        loop {
            let mut own = self.entries()?;
            own.retain(|entry| !is_kept(entry.name.to_bytes()));
            if own.is_empty() {
                return Ok(());
            }
            for entry in &own {
                if entry.name.to_bytes() == COMPLETE.as_bytes() {
                    self.disarm()?;
                    continue;
                }
                let removed = emptying.remove(&self.own, entry, 0);
                removed.map_err(|left| emptying.failure(left))?;
            }
        }
    }

    /// Removes this; whether it was empty.
    pub(super) fn remove(&self) -> Done<bool> {
        tree::rmdir_if_empty(&self.all, &self.name, &self.shown)
    }

    fn entries(&self) -> Done<Vec<Entry>> {
        let mut found = list::entries(&self.own, &self.shown)?;
        found.retain(|entry| {
            let name = entry.name.to_bytes();
            name != KEPT.as_bytes() && !name.starts_with(OLDER.as_bytes())
        });
        Ok(found)
    }
}

struct Emptying<'a> {
    trash: &'a OwnedFd,
    shown: &'a str,
    end: Instant,
}

impl Emptying<'_> {
    /// Removes a name from an open directory.
    fn remove(&self, above: &OwnedFd, entry: &Entry, depth: usize) -> Result<(), Left> {
        if Instant::now() >= self.end {
            return Err(Left::Time);
        }
        if !entry.may_be_directory() {
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
        let new = nonce().map_err(Left::Failure)?;
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

fn held(depth: usize) -> usize {
    (NAMES_MAX >> depth).max(NAMES_MIN)
}

/// EPERM: as POSIX has it, and some servers do.
fn is_directory(errno: Errno) -> bool {
    matches!(errno, Errno::ISDIR | Errno::PERM)
}
