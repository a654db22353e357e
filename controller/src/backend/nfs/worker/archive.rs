//! Archives a volume: renames its directory to the name that csi-driver-nfs would use. The
//! directory is first moved to the trash directory of the volume, and then from there to its new
//! name. The new name is claimed as an archive, so that no volume is created at or below this name.
//! An existing archive is never replaced.

use super::super::path::Dir;
use super::claim::{Claim, Record, State};
use super::claims::{Occupancy, changing, is_taken};
use super::deletion::{Deletion, refuse_other};
use super::trash::Trash;
use belay_server::call::{Failure, Kind};

/// Maximum number of attempts to read the claim on the archive's name while other calls are
/// changing the claim.
const ATTEMPTS: usize = 8;

/// Renames the directory, unless an earlier call has renamed it.
///
/// # Errors
/// Returns `Precondition` if a directory or a claim has the archive's name; the errors of the
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
    // After the directory was moved, a different directory may have been created with its name.
    let moves = is_there.is_some() && kept.is_none() && !deletion.has_archive(&archived, claim)?;
    if moves {
        refuse_other(dir, is_there)?;
        deletion.unless_done(claim, deletion.refuse_taken(&archived))?;
    }
    let claim = claims.advance(dir, claim, State::Deleting)?;
    let trash = Trash::of_current(claims, dir, &claim)?;
    // Remove the notes (empty files with an inode number in their names) that the creation of a
    // copy may have left in the trash: notes identify the directory of an incomplete copy, but this
    // volume is complete.
    trash.forget_notes()?;
    if moves {
        trash.keep(tree, dir)?;
    }
    if trash.kept()?.is_some() {
        deletion.unless_done(&claim, deletion.place(&trash, &archived, &claim))?;
    }
    deletion.finish(&claim)
}

/// Refuses a directory whose archive would have too long a name, before anything is changed.
///
/// # Errors
/// Returns `Precondition` if the name is too long.
pub(super) fn refuse_long(dir: &Dir) -> Result<(), Failure> {
    match dir.archive_too_long() {
        None => Ok(()),
        Some(why) => Err(Failure::precondition(format!(
            "directory {dir}: cannot be archived: {why}; archive it by hand"
        ))),
    }
}

impl Deletion<'_> {
    /// Returns `Busy` instead of the error in `result` if another call has completed this deletion,
    /// because the volume's own archive then has the name.
    fn unless_done(&self, claim: &Claim, result: Result<(), Failure>) -> Result<(), Failure> {
        if result.is_err() {
            self.claims.check(self.dir, claim)?;
        }
        result
    }

    /// Whether the name of the archive is claimed for this volume, which means that the volume was
    /// moved to the trash.
    fn has_archive(&self, archived: &Dir, of: &Claim) -> Result<bool, Failure> {
        let held = self.claims.read(archived)?;
        Ok(matches!(held, Occupancy::By(it) if it.is_archive_of(of)))
    }

    /// Checks that the name of the archive is free: no file has the name, and no volume has a claim
    /// on the name or on a parent directory. The claim of a volume is ignored if another program
    /// has moved the volume away.
    fn refuse_taken(&self, archived: &Dir) -> Result<(), Failure> {
        for dir in archived.above().chain([archived.clone()]) {
            if let Occupancy::By(claim) = self.claims.read(&dir)?
                && !self.claims.is_void(self.tree, &dir, &claim)?
            {
                return Err(occupied(archived, &dir, &claim));
            }
        }
        match self.tree.exists(archived)? {
            true => Err(self.exists(archived)),
            false => Ok(()),
        }
    }

    /// Moves the directory from the trash to the name of the archive.
    fn place(&self, trash: &Trash, archived: &Dir, claim: &Claim) -> Result<(), Failure> {
        self.claim_archive(archived, claim)?;
        let above = self.tree.make_above(archived)?;
        match trash.place(&above, archived) {
            // The name of the archive was free when the name was claimed.
            Err(error) if is_taken(&error) => Err(Failure::precondition(format!(
                "directory {}: cannot become {archived}, which another program has made \
                 meanwhile; move that away, and repeat the call. The volume is in {}",
                self.dir,
                trash.path()
            ))),
            result => Ok(result?),
        }
    }

    /// Claims the name of the archive. The claim on the archive's name is never removed before the
    /// volume's own claim.
    fn claim_archive(&self, archived: &Dir, of: &Claim) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            let held = self.claims.read(archived)?;
            // If this deletion is still in progress, the claim in `held` does not belong to a later
            // volume.
            self.claims.check(self.dir, of)?;
            match held {
                Occupancy::By(claim) if claim.is_archive_of(of) => {
                    return self.hold_archive(archived, &claim);
                }
                Occupancy::By(claim) if self.claims.is_void(self.tree, archived, &claim)? => {
                    self.claims.remove(archived, &claim)?;
                    continue;
                }
                Occupancy::By(claim) => return Err(occupied(archived, archived, &claim)),
                Occupancy::Above if self.claims.is_above(self.tree, archived)? => {
                    return Err(self.exists(archived));
                }
                Occupancy::Free | Occupancy::Above => {}
            }
            if self.tree.exists(archived)? {
                return Err(self.exists(archived));
            }
            let record = Record {
                dir: archived.to_string(),
                archive_of: Some(of.nonce.clone()),
                ..of.of.clone()
            };
            let claim = Claim::new(record, State::Archived)?;
            if self.claims.publish(archived, &claim)? {
                return self.hold_archive(archived, &claim);
            }
        }
        Err(changing(archived))
    }

    fn hold_archive(&self, archived: &Dir, claim: &Claim) -> Result<(), Failure> {
        match self.claims.hold_above(self.tree, archived, claim) {
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

    fn exists(&self, archived: &Dir) -> Failure {
        Failure::precondition(format!(
            "directory {}: cannot become {archived}, which exists or has the directories of \
             volumes; move that away, and repeat the call",
            self.dir
        ))
    }
}

fn occupied(archived: &Dir, dir: &Dir, claim: &Claim) -> Failure {
    Failure::precondition(format!(
        "directory {archived}: {dir} {}, so no archive goes there; retain the volume, or delete \
         the other one",
        claim.describe()
    ))
}
