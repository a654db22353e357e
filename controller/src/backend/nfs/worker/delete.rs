//! Deletes a volume: what its policy says.

use super::super::call::OldVolume;
use super::super::class::OnDelete;
use super::super::path::Dir;
use super::claims::{Claim, Claims, State};
use super::remove::Trash;
use super::tree::{self, Found, Tree};
use super::{archive, error};
use belay_server::call::Failure;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::time::Instant;

/// How many empty directories above a deleted one are removed, as csi-driver-nfs does.
const ABOVE_MAX: usize = 10;

/// Deletes it; OK if it does not exist, or its directory is another volume's.
///
/// # Errors
/// `Precondition` if what has its name is not the directory of one volume; `Busy` if files remain
/// at `end`; those of the server.
pub(super) fn delete(tree: &Tree, order: &OldVolume, end: Instant) -> Result<(), Failure> {
    let dir = &order.at.dir;
    let claims = Claims::find(tree)?;
    let claim = claims.as_ref().map(|claims| claims.read(dir)).transpose()?;
    let claim = claim.flatten();
    match &claim {
        Some(claim) if claim.state == State::Above => {
            return Err(Failure::precondition(format!(
                "directory {dir}: has the directories of other volumes, so it is not deleted; \
                 delete those volumes first"
            )));
        }
        Some(claim) if claim.name != order.at.name => return Ok(()),
        _ => {}
    }
    let policy = claim.as_ref().map_or(order.on_delete, |it| it.on_delete);
    let claims = claims.zip(claim);
    let done = match policy {
        OnDelete::Retain => Ok(()),
        OnDelete::Archive => begun(claims.as_ref(), dir)
            .and_then(|()| archive::archive(tree, dir, order.removes_archived, end)),
        OnDelete::Delete => begun(claims.as_ref(), dir).and_then(|()| removed(tree, dir, end)),
    };
    done.map_err(Failure::may_be_running)?;
    if let Some((claims, _)) = claims {
        let dropped = claims.remove(dir);
        dropped.map_err(|error| Failure::from(error).may_be_running())?;
    }
    Ok(())
}

/// Records that the deletion was begun, so that no call creates or finds the volume meanwhile.
fn begun(claim: Option<&(Claims, Claim)>, dir: &Dir) -> Result<(), Failure> {
    match claim {
        Some((claims, claim)) if claim.state != State::Deleting => {
            let mut claim = claim.clone();
            claim.state = State::Deleting;
            claims.replace(dir, &claim)
        }
        _ => Ok(()),
    }
}

/// Moves the directory away, and removes it there: no other process meets half of it.
fn removed(tree: &Tree, dir: &Dir, end: Instant) -> Result<(), Failure> {
    let is_there = tree.find(dir)?;
    refuse_other(dir, is_there)?;
    let trash = match is_there {
        Some(_) => Some(Trash::open(tree)?),
        None => Trash::find(tree)?,
    };
    let Some(trash) = trash else {
        return Ok(());
    };
    if is_there.is_some() {
        trash.take(tree, dir)?;
    }
    trash.empty(dir, end)?;
    Ok(tidy(tree, dir)?)
}

/// A link, a file or a device is no volume.
pub(super) fn refuse_other(dir: &Dir, found: Option<Found>) -> Result<(), Failure> {
    match found.map(|found| found.file_type) {
        None | Some(FileType::Directory) => Ok(()),
        Some(_) => Err(Failure::precondition(format!(
            "directory {dir}: is no directory on the server, but a link or a file, so it is not \
             touched; move it away, and repeat the call"
        ))),
    }
}

/// Removes the empty directories above, and their claims.
fn tidy(tree: &Tree, dir: &Dir) -> error::Result<()> {
    let claims = Claims::find(tree)?;
    let mut above: Vec<_> = dir.above().collect();
    above.reverse();
    for above in above.iter().take(ABOVE_MAX) {
        let parent = match tree.open_above(above) {
            Err(error) if error.errno == Errno::NOENT => continue,
            result => result?,
        };
        match tree::rmdir(&parent, above.name(), &above.to_string()) {
            // The server may know one of both.
            Err(error) if [Errno::NOTEMPTY, Errno::EXIST].contains(&error.errno) => break,
            // A volume that is gone is not kept for a directory above it.
            Err(error) if error.is_answered() => break,
            result => result?,
        }
        // It exists only as long as the directory.
        if let Some(claims) = &claims
            && matches!(claims.read(above), Ok(Some(claim)) if claim.state == State::Above)
        {
            claims.remove(above)?;
        }
    }
    Ok(())
}
