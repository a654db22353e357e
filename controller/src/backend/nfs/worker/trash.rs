//! The trash of a claim: a directory in `.belay/trash` to which the directory of the claim's volume
//! is moved. The trash directory is removed before the claim file. Therefore, if a call was killed
//! and the server executes its request to move a volume to the trash late, the request fails: it
//! cannot move a later volume with the same directory.
//!
//! A volume with initial files is written in the trash, too. When all files are written, the inode
//! number of the new directory is recorded in the trash, and then the directory is renamed to the
//! directory of the volume. The inode number distinguishes the new directory from other directories
//! with its name.

use super::super::path::Dir;
use super::claim::Claim;
use super::claims::Claims;
use super::error::Result as Done;
use super::layout::{COMPLETE, COPY, KEPT, TRASH, attempt, is_note, nonce, note, numbered};
use super::list;
use super::remove::Emptying;
use super::tree::{self, FileInfo, Tree};
use belay_server::call::{Failure, Kind};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The trash directory of one claim.
pub(super) struct Trash {
    /// The directory that contains the trash directories of all claims.
    all: OwnedFd,
    pub(super) own: OwnedFd,
    name: String,
    /// The directory of the volume, for messages.
    pub(super) shown: String,
}

impl Trash {
    /// Opens the trash directory of a claim, and creates it if it is missing.
    pub(super) fn open(claims: &Claims, dir: &Dir, claim: &Claim) -> Result<Self, Failure> {
        let all = claims.own.make_directory(TRASH)?;
        let name = numbered(dir, &claim.nonce);
        let own = tree::own(&all, &name, TRASH)?;
        Ok(Self {
            all,
            own,
            name,
            shown: dir.to_string(),
        })
    }

    /// Opens the trash directory of a claim, and creates it if it is missing. The claim is checked
    /// afterwards, since the trash belongs to the directory only as long as the claim is unchanged.
    ///
    /// # Errors
    /// Returns `Busy` if the claim has changed; the errors of the server.
    pub(super) fn of_current(claims: &Claims, dir: &Dir, claim: &Claim) -> Result<Self, Failure> {
        let trash = Self::open(claims, dir, claim)?;
        match claims.check(dir, claim) {
            Ok(()) => Ok(trash),
            Err(failure) => {
                if failure.kind == Kind::Busy {
                    // The trash directory was created after the claim file was removed or changed.
                    trash.remove().unwrap_or_default();
                }
                Err(failure)
            }
        }
    }

    /// Opens the trash directory of a claim; `None` if no file was moved to the trash.
    pub(super) fn find(claims: &Claims, dir: &Dir, claim: &Claim) -> Result<Option<Self>, Failure> {
        let Some(all) = claims.own.find_directory(TRASH)? else {
            return Ok(None);
        };
        let name = numbered(dir, &claim.nonce);
        let own = tree::open_existing(&all, &name, TRASH)?;
        Ok(own.map(|own| Self {
            all,
            own,
            name,
            shown: dir.to_string(),
        }))
    }

    /// Returns the path of the trash in the share.
    pub(super) fn path(&self) -> String {
        format!(".belay/{TRASH}/{}", self.name)
    }

    /// Returns the directory that is kept in the trash to be archived, or `None` if the trash
    /// contains no such directory.
    pub(super) fn kept(&self) -> Done<Option<FileInfo>> {
        tree::find(&self.own, KEPT, &self.shown)
    }

    /// Moves a directory to the trash, to be removed.
    pub(super) fn take(&self, tree: &Tree, dir: &Dir) -> Result<(), Failure> {
        self.move_here(tree, dir, &nonce()?)
    }

    /// Moves a directory to the trash, to be archived.
    pub(super) fn keep(&self, tree: &Tree, dir: &Dir) -> Result<(), Failure> {
        self.move_here(tree, dir, KEPT)
    }

    fn move_here(&self, tree: &Tree, dir: &Dir, name: &str) -> Result<(), Failure> {
        let (above, shown) = (tree.open_above(dir)?, dir.to_string());
        match tree::rename((&above, dir.name()), (&self.own, name), &shown) {
            // Either the server has executed the rename, but its response was lost; or another call
            // has renamed the file.
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    /// Renames a file in the trash to a random name, so that it is removed.
    fn rename_away(&self, name: &str) -> Result<(), Failure> {
        match tree::rename((&self.own, name), (&self.own, &*nonce()?), &self.shown) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            result => Ok(result?),
        }
    }

    /// Renames the directory that is kept in the trash to `dir`. Returns `NOENT` if another call
    /// has already renamed the directory.
    pub(super) fn place(&self, above: &OwnedFd, dir: &Dir) -> Done<()> {
        tree::rename((&self.own, KEPT), (above, dir.name()), &dir.to_string())
    }

    /// Removes all files and directories in the trash, except a directory that will be archived.
    ///
    /// # Errors
    /// Returns `Busy` if files remain at `end`; the errors of the server.
    pub(super) fn empty(&self, end: Instant) -> Result<(), Failure> {
        self.empty_except(end, |_| false)
    }

    /// Removes the files and directories in the trash, except a directory that will be archived and
    /// names for which `is_kept` returns true.
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
            let mut own = list::entries(&self.own, &self.shown)?;
            own.retain(|entry| {
                let name = entry.name.to_bytes();
                name != KEPT.as_bytes() && !is_kept(name)
            });
            if own.is_empty() {
                return Ok(());
            }
            for entry in &own {
                if entry.name.to_bytes() == COMPLETE.as_bytes() {
                    self.disarm()?;
                    continue;
                }
                emptying.run(entry)?;
            }
        }
    }

    /// Removes the trash itself. Returns `false` if the trash is not empty.
    pub(super) fn remove(&self) -> Done<bool> {
        tree::rmdir_if_empty(&self.all, &self.name, &self.shown)
    }

    /// Creates the directories for a new attempt to write the initial files of a volume. Returns
    /// the name of the directory for the files, and the directories for the files and for hard
    /// links.
    pub(super) fn begin_attempt(&self) -> Result<(String, OwnedFd, OwnedFd), Failure> {
        let (name, links) = attempt(&nonce()?);
        let target = tree::own(&self.own, &name, &self.shown)?;
        let links = tree::own(&self.own, &links, &self.shown)?;
        Ok((name, target, links))
    }

    /// Returns the new volume in the trash whose initial files are all written, but which is not
    /// yet renamed to the volume's directory.
    pub(super) fn complete(&self) -> Done<Option<FileInfo>> {
        tree::find(&self.own, COMPLETE, &self.shown)
    }

    /// Whether the directory of the volume is the directory to which initial files were written in
    /// this trash.
    pub(super) fn has_placed(&self, tree: &Tree, dir: &Dir) -> Done<bool> {
        let there = match tree.find(dir) {
            Err(error) if error.errno == Errno::NOTDIR => None,
            result => result?,
        };
        match there {
            Some(found) => {
                let note = tree::find(&self.own, &note(found.identity.1), &self.shown)?;
                Ok(note.is_some())
            }
            None => Ok(false),
        }
    }

    /// Renames a new volume in the trash whose initial files are all written, so that it is removed
    /// and never renamed to the volume's directory.
    fn disarm(&self) -> Result<(), Failure> {
        self.rename_away(COMPLETE)
    }

    /// Moves a volume that was created with initial files, and whose claim is in the state *gone*,
    /// back to the trash, so that it is removed. A different directory with the same name is not
    /// moved.
    pub(super) fn withdraw(&self, tree: &Tree, dir: &Dir) -> Result<(), Failure> {
        self.disarm_attempts()?;
        self.disarm()?;
        if self.has_placed(tree, dir)? {
            self.take(tree, dir)?;
        }
        Ok(self.forget_notes()?)
    }

    /// Renames new volumes in the trash whose initial files are not all written, so that they are
    /// removed and never completed.
    pub(super) fn disarm_attempts(&self) -> Result<(), Failure> {
        for name in list::names(&self.own, &self.shown)? {
            if name.starts_with(COPY) && name != COMPLETE && !is_note(name.as_bytes()) {
                self.rename_away(&name)?;
            }
        }
        Ok(())
    }

    /// Removes the notes (empty files with an inode number in their names): after the directory
    /// with the initial files is removed, a different directory may get the same inode number.
    pub(super) fn forget_notes(&self) -> Done<()> {
        for name in list::names(&self.own, &self.shown)? {
            if is_note(name.as_bytes()) {
                tree::unlink(&self.own, &name, &self.shown)?;
            }
        }
        Ok(())
    }

    /// Renames a new volume in the trash to the name that means that its initial files are all
    /// written.
    pub(super) fn name_complete(&self, name: &str) -> Result<(), Failure> {
        let renamed = tree::rename((&self.own, name), (&self.own, COMPLETE), &self.shown);
        match renamed {
            // The server has executed the rename, but its response was lost.
            Err(error) if error.errno == Errno::NOENT && self.complete()?.is_some() => Ok(()),
            result => Ok(result?),
        }
    }
}
