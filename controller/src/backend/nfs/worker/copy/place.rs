//! Where a copy is made: names in the trash of its claim. A copy that is complete is noted there by
//! its inode before it gets the name of the volume, so that no other directory of that name passes
//! for it.

use super::super::super::path::Dir;
use super::super::claim::Claim;
use super::super::claims::{changing, is_taken};
use super::super::create::Creation;
use super::super::error::Result as Done;
use super::super::list;
use super::super::remove::Trash;
use super::super::tree::{self, Found, Tree};
use belay_server::call::Failure;
use rustix::io::Errno;

/// The prefix of all names here that a copy has.
const COPY: &str = "copy.";
/// A copy that is complete.
pub(in super::super) const COMPLETE: &str = "copy.complete";
/// The prefix of the note of its inode.
const NOTE: &str = "copy.is.";
/// How often the directories above are made again that another call removes meanwhile.
const ATTEMPTS: usize = 8;

/// The names of a new copy, and of the directory for its hard links.
pub(super) fn attempt(nonce: &str) -> (String, String) {
    (format!("{COPY}{nonce}"), format!("{COPY}{nonce}.links"))
}

impl Trash {
    /// The copy that is complete and has not got its name.
    pub(super) fn complete(&self) -> Done<Option<Found>> {
        tree::find(&self.own, COMPLETE, &self.shown)
    }

    /// Whether the directory of the volume is the copy that was made here.
    pub(in super::super) fn has_placed(&self, tree: &Tree, dir: &Dir) -> Done<bool> {
        let there = match tree.find(dir) {
            Err(error) if error.errno == Errno::NOTDIR => None,
            result => result?,
        };
        match there {
            Some(found) => {
                let note = tree::find(&self.own, &note(found), &self.shown)?;
                Ok(note.is_some())
            }
            None => Ok(false),
        }
    }

    /// A copy that is complete can be removed, and no longer gets the name of the volume.
    pub(in super::super) fn disarm(&self) -> Result<(), Failure> {
        self.rename_away(COMPLETE)
    }

    /// The same of those that are not complete: they do not become so.
    pub(super) fn disarm_attempts(&self) -> Result<(), Failure> {
        for name in list::names(&self.own, &self.shown)? {
            if name.starts_with(COPY) && name != COMPLETE && !is_note(name.as_bytes()) {
                self.rename_away(&name)?;
            }
        }
        Ok(())
    }

    /// The copy that was complete does not get its name: another directory may have its inode, once
    /// it is removed.
    pub(super) fn forget_notes(&self) -> Done<()> {
        for name in list::names(&self.own, &self.shown)? {
            if is_note(name.as_bytes()) {
                tree::unlink(&self.own, &name, &self.shown)?;
            }
        }
        Ok(())
    }

    /// The copy of that name is complete.
    pub(super) fn name_complete(&self, name: &str) -> Result<(), Failure> {
        let renamed = tree::rename((&self.own, name), (&self.own, COMPLETE), &self.shown);
        match renamed {
            // It was done, and the answer was lost.
            Err(error) if error.errno == Errno::NOENT && self.complete()?.is_some() => Ok(()),
            result => Ok(result?),
        }
    }

    /// Gives the copy that is complete the name of the volume.
    ///
    /// # Errors
    /// `Incompatible` if another program has made something of that name; `Busy` if another call
    /// makes or removes the copy.
    pub(super) fn place_copy(&self, creation: &Creation<'_>, claim: &Claim) -> Result<(), Failure> {
        let Creation {
            tree, claims, dir, ..
        } = creation;
        let complete = self.complete()?.ok_or_else(|| changing(dir))?;
        tree::touch(&self.own, &note(complete), &self.shown)?;
        for _ in 0..ATTEMPTS {
            let above = match tree.make_above(dir) {
                Err(error) if error.errno == Errno::NOENT => continue,
                result => result?,
            };
            // Only as long as the claim is so, the name is the volume's.
            claims.check(dir, claim)?;
            match tree::rename((&self.own, COMPLETE), (&above, dir.name()), &self.shown) {
                Ok(()) => return Ok(()),
                // It was done, and the answer was lost; or a directory above was removed.
                Err(error) if error.errno == Errno::NOENT => {
                    if self.has_placed(tree, dir)? {
                        return Ok(());
                    }
                }
                Err(error) if is_taken(&error) || error.errno == Errno::NOTDIR => {
                    return Err(creation.foreign());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(changing(dir))
    }
}

/// They are needed until the claim is *ready*.
pub(super) fn is_note(name: &[u8]) -> bool {
    name.starts_with(NOTE.as_bytes())
}

/// st_dev differs between mounts.
fn note(found: Found) -> String {
    format!("{NOTE}{:x}", found.identity.1)
}
