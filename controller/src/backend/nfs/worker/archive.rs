//! Archives a volume: renames its directory as csi-driver-nfs does.

use super::super::path::Dir;
use super::claims::{Claims, State};
use super::delete::refuse_other;
use super::remove::Trash;
use super::tree::{self, Tree};
use belay_server::call::Failure;
use rustix::io::Errno;
use std::time::Instant;

/// Renames the directory, unless that was done.
///
/// # Errors
/// `Precondition` if there is an archive of that name, and it may not be removed; those of the
/// server.
pub(super) fn archive(
    tree: &Tree,
    dir: &Dir,
    removes_archived: bool,
    end: Instant,
) -> Result<(), Failure> {
    let archived = dir.archived();
    let moved = tree.find(dir)?;
    refuse_other(dir, moved)?;
    if moved.is_some() {
        refuse_claimed(tree, &archived)?;
        let there = tree.find(&archived)?;
        if there.is_some() && there != moved {
            if !removes_archived {
                return Err(Failure::precondition(format!(
                    "directory {dir}: cannot become {archived}, which exists; move that away, or \
                     start the controller with --nfs-remove-archived"
                )));
            }
            refuse_other(&archived, there)?;
            Trash::open(tree)?.take_other(tree, &archived, moved)?;
        }
        let to = tree.make_above(&archived)?;
        let from = tree.open_above(dir)?;
        let (from, to) = ((&from, dir.name()), (&to, archived.name()));
        match tree::rename(from, to, &dir.to_string()) {
            // It was done, and the answer was lost.
            Err(error) if error.errno == Errno::NOENT && tree.exists(&archived)? => {}
            result => result?,
        }
    }
    match Trash::find(tree)? {
        // Without an archive, what is in the trash may be the only copy.
        Some(trash) if tree.exists(&archived)? => trash.empty(&archived, end),
        _ => Ok(()),
    }
}

/// The place of the archive may not be a volume's, or in one.
fn refuse_claimed(tree: &Tree, archived: &Dir) -> Result<(), Failure> {
    let Some(claims) = Claims::find(tree)? else {
        return Ok(());
    };
    for dir in archived.above().chain([archived.clone()]) {
        let claim = claims.read(&dir)?;
        if let Some(claim) = claim.filter(|claim| claim.state != State::Above || dir == *archived) {
            return Err(Failure::precondition(format!(
                "directory {archived}: {dir} is the directory of volume {:?}, or has those of \
                 volumes, so no archive goes there; retain the volume, or delete the other one",
                claim.name
            )));
        }
    }
    Ok(())
}
