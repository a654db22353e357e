//! Archives a volume: renames its directory as csi-driver-nfs does. It is moved to the trash of its
//! claim first, and from there to its new name, which is claimed as an archive: no volume is
//! created there or inside.

use super::super::path::Dir;
use super::claim::{Claim, Record, State};
use super::claims::Held;
use super::delete::{Deletion, refuse_other};
use super::remove::Trash;
use belay_server::call::{Failure, Kind};
use rustix::io::Errno;

/// Renames the directory, unless that was done.
///
/// # Errors
/// `Precondition` if there is an archive of that name, and it may not be removed; those of the
/// server.
pub(super) fn archive(deletion: &Deletion<'_>, claim: &Claim) -> Result<(), Failure> {
    let Deletion {
        tree, claims, dir, ..
    } = deletion;
    refuse_long(dir)?;
    let archived = dir.archived();
    let is_there = tree.find(dir)?;
    let kept = match Trash::find(claims, dir, claim)? {
        Some(trash) => trash.kept()?,
        None => None,
    };
    let is_placed = kept.is_none()
        && matches!(claims.read(&archived)?, Held::By(it) if it.state == State::Placing)
        && tree.exists(&archived)?;
    // Once it was moved, what has its name is another directory.
    let moves = is_there.is_some() && kept.is_none() && !is_placed;
    if moves {
        refuse_other(dir, is_there)?;
        deletion.refuse_older(&archived)?;
    }
    let claim = claims.advance(dir, claim, State::Archiving)?;
    let trash = Trash::open(claims, dir, &claim)?;
    // Only as long as the claim is so, this trash is the volume's.
    claims.check(dir, &claim)?;
    if moves {
        trash.keep(tree, dir)?;
    }
    if trash.kept()?.is_some() {
        deletion.place(&trash, &archived, &claim)?;
    }
    trash.release_older(tree, &archived)?;
    deletion.finish(&claim)
}

/// A name that the archive cannot have, before anything is done.
///
/// # Errors
/// `Precondition`.
pub(super) fn refuse_long(dir: &Dir) -> Result<(), Failure> {
    match dir.archive_too_long() {
        None => Ok(()),
        Some(why) => Err(Failure::precondition(format!(
            "directory {dir}: cannot be archived: {why}; archive it by hand"
        ))),
    }
}

impl Deletion<'_> {
    /// That the archive may have its name.
    fn refuse_older(&self, archived: &Dir) -> Result<(), Failure> {
        let there = self.tree.find(archived)?;
        if there.is_some() && !self.removes_archived {
            return Err(self.exists(archived));
        }
        refuse_other(archived, there)?;
        for dir in archived.above() {
            if let Held::By(claim) = self.claims.read(&dir)? {
                return Err(occupied(archived, &dir, &claim));
            }
        }
        match self.claims.read(archived)? {
            Held::By(claim) if !is_archive(claim.state) => {
                Err(occupied(archived, archived, &claim))
            }
            Held::Above if self.claims.is_above(self.tree, archived)? => {
                Err(Failure::precondition(format!(
                    "directory {archived}: has the directories of volumes, so no archive goes \
                 there; retain the volume, or delete the others"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Gives the directory in the trash its name.
    fn place(&self, trash: &Trash, archived: &Dir, claim: &Claim) -> Result<(), Failure> {
        self.refuse_occupied(archived, claim)?;
        let (moved, there) = (trash.kept()?, self.tree.find(archived)?);
        let Some(moved) = moved else {
            return Ok(());
        };
        if there.is_some_and(|there| there != moved) {
            if !self.removes_archived {
                return Err(self.exists(archived));
            }
            refuse_other(archived, there)?;
            trash.take_older(self.tree, archived, moved)?;
        }
        let above = self.tree.make_above(archived)?;
        match trash.place(&above, archived) {
            // It was done, and the answer was lost.
            Err(error) if error.errno == Errno::NOENT && self.tree.exists(archived)? => Ok(()),
            result => Ok(result?),
        }
    }

    /// Claims the name of the archive.
    fn refuse_occupied(&self, archived: &Dir, of: &Claim) -> Result<(), Failure> {
        match self.claims.read(archived)? {
            Held::By(claim) if claim.state == State::Placing => {
                return self.hold_archive(archived, &claim);
            }
            // That of an older archive, which may have another name.
            Held::By(claim) if claim.state == State::Archived => {
                self.claims.remove(archived, &claim)?;
            }
            Held::By(claim) => return Err(occupied(archived, archived, &claim)),
            Held::Free | Held::Above => {}
        }
        let record = Record {
            dir: archived.to_string(),
            ..of.of.clone()
        };
        let claim = Claim::new(record, State::Placing)?;
        match self.claims.publish(archived, &claim)? {
            true => self.hold_archive(archived, &claim),
            false => {
                // Says by whom; or it is free again, and the call is repeated.
                self.refuse_older(archived)?;
                Err(super::claims::changing(archived))
            }
        }
    }

    fn hold_archive(&self, archived: &Dir, claim: &Claim) -> Result<(), Failure> {
        match self.claims.hold_above(archived, claim) {
            Err(failure) if failure.kind == Kind::Incompatible => {
                self.claims.remove(archived, claim)?;
                Err(Failure::precondition(format!(
                    "archive of {}: {}",
                    self.dir, failure.message
                )))
            }
            result => result,
        }
    }

    /// The archive is complete, if there is one.
    pub(super) fn settle(&self) -> Result<(), Failure> {
        let archived = &self.dir.archived();
        match self.claims.read(archived)? {
            Held::By(claim) if claim.state == State::Placing => {
                match self.tree.exists(archived)? {
                    true => {
                        self.claims.advance(archived, &claim, State::Archived)?;
                    }
                    false => {
                        self.claims.remove(archived, &claim)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn exists(&self, archived: &Dir) -> Failure {
        Failure::precondition(format!(
            "directory {}: cannot become {archived}, which exists; move that away, or start the \
             controller with --nfs-remove-archived",
            self.dir
        ))
    }
}

fn is_archive(state: State) -> bool {
    matches!(state, State::Placing | State::Archived)
}

fn occupied(archived: &Dir, dir: &Dir, claim: &Claim) -> Failure {
    Failure::precondition(format!(
        "directory {archived}: {dir} {}, so no archive goes there; retain the volume, or delete \
         the other one",
        claim.describe()
    ))
}
