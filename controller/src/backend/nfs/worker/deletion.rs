//! Steps that all deletions have in common.

use super::super::id::OnDelete;
use super::super::path::Dir;
use super::claim::{Claim, State};
use super::claims::{Claims, changing};
use super::trash::Trash;
use super::tree::{self, FileInfo, Tree};
use belay_server::call::Failure;
use rustix::fs::FileType;
use std::time::Instant;

/// Maximum number of empty parent directories that are removed with a volume, as csi-driver-nfs
/// does.
const ABOVE_MAX: usize = 10;
/// Maximum number of times that the trash is emptied while a slower call of the same deletion is
/// moving files to the trash.
const PASSES_MAX: usize = 8;

/// A deletion in progress.
pub(super) struct Deletion<'a> {
    pub(super) tree: &'a Tree,
    pub(super) claims: Claims,
    pub(super) dir: &'a Dir,
    pub(super) end: Instant,
}

impl Deletion<'_> {
    /// Removes the claim file, which records that the directory belongs to the volume.
    pub(super) fn release(&self, claim: &Claim) -> Result<(), Failure> {
        match self.claims.remove(self.dir, claim)? {
            true => Ok(()),
            false => Err(changing(self.dir)),
        }
    }

    /// Removes the trash directory and the claim file of the volume. The order ensures that a
    /// slower call of the same deletion cannot move a later volume with the same directory: the
    /// slower call finds the claim in the state *gone*, or finds no trash.
    pub(super) fn finish(&self, claim: &Claim) -> Result<(), Failure> {
        let gone = self.claims.advance(self.dir, claim, State::Gone)?;
        if gone.of.source.is_some() {
            // Refresh the time of the claim file, so that no other call treats this removal as
            // abandoned and continues it.
            self.claims.refresh(self.dir, &gone)?;
        }
        let mut passes = 0;
        while let Some(trash) = Trash::find(&self.claims, self.dir, &gone)? {
            if gone.of.source.is_some() {
                self.claims.check(self.dir, &gone)?;
                trash.withdraw(self.tree, self.dir)?;
            }
            trash.empty(self.end)?;
            if trash.remove()? {
                break;
            }
            if trash.kept()?.is_some() {
                return Err(Failure::precondition(format!(
                    "directory {}: the volume was deleted or archived, and {} has a directory that \
                     was moved there since; move it away, and repeat the call",
                    self.dir,
                    trash.path()
                )));
            }
            passes += 1;
            if passes == PASSES_MAX {
                return Err(changing(self.dir));
            }
        }
        self.tidy(&gone)?;
        self.release(&gone)
    }

    /// Removes the empty parent directories of the volume's directory.
    fn tidy(&self, gone: &Claim) -> Result<(), Failure> {
        if gone.of.on_delete != OnDelete::Delete {
            return Ok(());
        }
        let mut above: Vec<_> = self.dir.above().collect();
        above.reverse();
        for above in above.iter().take(ABOVE_MAX) {
            let parent = match self.tree.open_above(above) {
                // A parent directory does not exist, or a file has the name of the parent
                // directory.
                Err(error) if error.is_answered() => continue,
                result => result?,
            };
            self.claims.check(self.dir, gone)?;
            match tree::rmdir_if_empty(&parent, above.name(), &above.to_string()) {
                Ok(true) => {}
                Ok(false) => break,
                // A parent directory that cannot be removed does not prevent the deletion of the
                // volume.
                Err(error) if error.is_answered() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Removes the remaining files and the claim of a deleted volume, or of a copy that no caller has
/// received.
///
/// # Errors
/// Returns `Busy` if files remain at `end`; the errors of the server.
pub(super) fn discard(tree: &Tree, dir: &Dir, claim: &Claim, end: Instant) -> Result<(), Failure> {
    let deletion = Deletion {
        tree,
        claims: Claims::open(tree)?,
        dir,
        end,
    };
    deletion.finish(claim)
}

/// Refuses a link, a file or a device, which cannot be a volume.
pub(super) fn refuse_other(dir: &Dir, found: Option<FileInfo>) -> Result<(), Failure> {
    match found.map(|found| found.file_type) {
        None | Some(FileType::Directory) => Ok(()),
        Some(_) => Err(Failure::precondition(format!(
            "directory {dir}: is no directory on the server, but a link or a file, so it is not \
             touched; move it away, and repeat the call"
        ))),
    }
}
