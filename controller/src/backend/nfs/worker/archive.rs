//! Archives a volume: renames its directory as csi-driver-nfs does. It is moved to the trash of its
//! claim first, and from there to its new name, which is claimed as an archive: no volume is
//! created there or inside.
//!
//! An older archive of that name, which may be removed, is moved away before: to the trash of the
//! claim on it, which is removed with that claim before the name is claimed again. So a slower call
//! of the same deletion, which has seen the older archive, moves no newer one. From there it gets
//! to the trash of the volume, where it stays until the new archive has its name.

use super::super::path::Dir;
use super::claim::{Claim, Record, State};
use super::claims::{Occupancy, changing, is_taken};
use super::deletion::{Deletion, refuse_other};
use super::trash::Trash;
use belay_server::call::{Failure, Kind};

/// Maximum number of attempts to read the claim on the archive's name while other calls change it.
const ATTEMPTS: usize = 8;

/// Renames the directory, unless an earlier call has renamed it.
///
/// # Errors
/// Returns `Precondition` if there is an archive of that name, and it may not be removed; the
/// errors of the server.
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
    // Once the directory was moved, another directory may have its name.
    let moves = is_there.is_some() && kept.is_none() && !deletion.has_archive(&archived, claim)?;
    if moves {
        refuse_other(dir, is_there)?;
        deletion.unless_done(claim, deletion.refuse_older(&archived))?;
    }
    let claim = claims.advance(dir, claim, State::Archiving)?;
    let trash = Trash::of_current(claims, dir, &claim)?;
    if moves {
        trash.keep(tree, dir)?;
    }
    if trash.kept()?.is_some() {
        deletion.unless_done(&claim, deletion.place(&trash, &archived, &claim))?;
    }
    let older = trash.older()?;
    if !older.is_empty() {
        if !deletion.has_archive(&archived, &claim)? || !tree.exists(&archived)? {
            let missing = Failure::precondition(format!(
                "directory {archived}: the archive is missing, and what it has replaced is in {}; \
                 move that away, and repeat the call",
                trash.path()
            ));
            return deletion.unless_done(&claim, Err(missing));
        }
        trash.release(&older)?;
    }
    deletion.finish(&claim)
}

/// Refuses a directory whose archive would have too long a name, before anything is done.
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
    /// Returns `Busy` instead of the refusal if another call has completed this one: then the
    /// archive itself is in the way.
    fn unless_done(&self, claim: &Claim, result: Result<(), Failure>) -> Result<(), Failure> {
        if result.is_err() {
            self.claims.check(self.dir, claim)?;
        }
        result
    }

    /// Whether the name of the archive is claimed for this volume: then the volume was moved to the
    /// trash.
    fn has_archive(&self, archived: &Dir, of: &Claim) -> Result<bool, Failure> {
        let held = self.claims.read(archived)?;
        Ok(matches!(held, Occupancy::By(it) if it.is_archive_of(of)))
    }

    /// Checks that the archive may have its name.
    fn refuse_older(&self, archived: &Dir) -> Result<(), Failure> {
        let there = self.tree.find(archived)?;
        if there.is_some() && !self.removes_archived {
            return Err(self.exists(archived));
        }
        refuse_other(archived, there)?;
        for dir in archived.above() {
            self.refuse_occupied(archived, &dir)?;
        }
        match self.claims.read(archived)? {
            Occupancy::By(claim) if !is_archive(claim.state) => {
                self.refuse_occupied(archived, archived)
            }
            Occupancy::Above if self.claims.is_above(self.tree, archived)? => {
                Err(Failure::precondition(format!(
                    "directory {archived}: has the directories of volumes, so no archive goes \
                     there; retain the volume, or delete the others"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no volume has a claim on `dir`, except one that was moved away.
    fn refuse_occupied(&self, archived: &Dir, dir: &Dir) -> Result<(), Failure> {
        match self.claims.read(dir)? {
            Occupancy::By(claim) if self.claims.is_void(self.tree, dir, &claim)? => Ok(()),
            Occupancy::By(claim) => Err(occupied(archived, dir, &claim)),
            Occupancy::Free | Occupancy::Above => Ok(()),
        }
    }

    /// Gives the directory in the trash the name of the archive.
    fn place(&self, trash: &Trash, archived: &Dir, claim: &Claim) -> Result<(), Failure> {
        self.claim_archive(trash, archived, claim)?;
        let above = self.tree.make_above(archived)?;
        match trash.place(&above, archived) {
            // No directory had the name when it was claimed.
            Err(error) if is_taken(&error) => Err(Failure::precondition(format!(
                "directory {}: cannot become {archived}, which another program has made \
                 meanwhile; move that away, and repeat the call. The volume is in {}",
                self.dir,
                trash.path()
            ))),
            result => Ok(result?),
        }
    }

    /// Claims the name of the archive, after moving away an older archive of that name.
    fn claim_archive(&self, trash: &Trash, archived: &Dir, of: &Claim) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            let held = self.claims.read(archived)?;
            // If this deletion is still in progress, the claim read above is not that of a later
            // volume.
            self.claims.check(self.dir, of)?;
            match held {
                Occupancy::By(claim) if claim.is_archive_of(of) => {
                    return self.hold_archive(archived, &claim);
                }
                Occupancy::By(claim) if is_archive(claim.state) => {
                    self.replace(trash, archived, &claim)?;
                    continue;
                }
                Occupancy::By(claim) if self.claims.is_void(self.tree, archived, &claim)? => {
                    self.claims.remove(archived, &claim)?;
                    continue;
                }
                Occupancy::By(claim) => return Err(occupied(archived, archived, &claim)),
                Occupancy::Free | Occupancy::Above => {}
            }
            let record = |name: &str, archive_of| Record {
                dir: archived.to_string(),
                name: name.to_owned(),
                archive_of,
                ..of.of.clone()
            };
            let claim = match self.tree.exists(archived)? {
                false => Claim::new(record(&of.of.name, Some(of.nonce.clone())), State::Placing)?,
                true if !self.removes_archived => return Err(self.exists(archived)),
                // The archive of another program has no other name than its directory.
                true => Claim::new(record(&self.dir.to_string(), None), State::Archived)?,
            };
            match self.claims.publish(archived, &claim)? {
                true => self.hold_archive(archived, &claim)?,
                // Another call has claimed the name: returns the reason, unless the name is free
                // again.
                false => self.refuse_older(archived)?,
            }
        }
        Err(changing(archived))
    }

    /// Moves an older archive to the trash of the volume, and removes its claim. Removes its own
    /// trash before, once no call moves files there.
    fn replace(&self, trash: &Trash, archived: &Dir, older: &Claim) -> Result<(), Failure> {
        let there = self.tree.find(archived)?;
        if older.state != State::Replaced && there.is_some() {
            if !self.removes_archived {
                return Err(self.exists(archived));
            }
            refuse_other(archived, there)?;
            let own = Trash::of_current(&self.claims, archived, older)?;
            own.keep(self.tree, archived)?;
        }
        let older = self.claims.advance(archived, older, State::Replaced)?;
        if let Some(own) = Trash::find(&self.claims, archived, &older)? {
            own.hand_over(trash)?;
            if !own.remove()? {
                return Err(changing(archived));
            }
        }
        // If another call has removed or replaced the claim, the next read shows it.
        self.claims.remove(archived, &older).map(drop)
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
            "directory {}: cannot become {archived}, which exists; move that away, or start the \
             controller with --nfs-remove-archived",
            self.dir
        ))
    }
}

fn is_archive(state: State) -> bool {
    matches!(state, State::Placing | State::Archived | State::Replaced)
}

fn occupied(archived: &Dir, dir: &Dir, claim: &Claim) -> Failure {
    Failure::precondition(format!(
        "directory {archived}: {dir} {}, so no archive goes there; retain the volume, or delete \
         the other one",
        claim.describe()
    ))
}
