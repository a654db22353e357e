//! Creates the directory of a volume. The order of the steps is such that a directory with files
//! never becomes that of another volume:
//!
//! 1. a directory that exists and is not claimed is refused, unless it is called as the volume;
//! 2. the directory is claimed, as *creating*;
//! 3. it is made; if it exists by now, it must be empty: no caller knows the volume yet;
//! 4. the claim becomes *ready*, and the caller gets its answer.

use super::super::call::{NewVolume, Seen};
use super::claims::{Claim, Claims, State};
use super::tree::{self, Tree};
use super::{error, list};
use belay_server::call::Failure;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// How often the directories above are made again when another call removes them meanwhile.
const ATTEMPTS: usize = 8;

/// Creates it, or finds it.
///
/// # Errors
/// `Incompatible` if another volume has the directory, or it is no volume's; `Busy` if its deletion
/// was begun; those of the server.
pub(super) fn create(tree: &Tree, order: &NewVolume) -> Result<Seen, Failure> {
    let claims = Claims::open(tree)?;
    let dir = &order.at.dir;
    if let Some(claim) = claims.read(dir)? {
        if let Some(seen) = owned(tree, order, &claim)? {
            return Ok(seen);
        }
    } else {
        if !order.is_named_so && tree.exists(dir)? {
            return Err(foreign(order));
        }
        claims.hold_above(dir)?;
        // Later failures leave it.
        let made = claims.make(dir, dir, &order.claim(State::Creating));
        made.map_err(Failure::may_be_running)?;
        let claim = claims.read(dir).map_err(Failure::may_be_running)?;
        let claim = claim.ok_or_else(|| changed(order))?;
        if let Some(seen) = owned(tree, order, &claim)? {
            return Ok(seen);
        }
    }
    match make(tree, &claims, order) {
        Ok(()) => {}
        Err(Refusal::Foreign) => return refuse(tree, &claims, order),
        Err(Refusal::Error(failure, true)) if withdrawn(tree, &claims, order) => {
            return Err(failure.rolled_back());
        }
        Err(Refusal::Error(failure, _)) => return Err(failure.may_be_running()),
    }
    let ready = claims.replace(dir, &order.claim(State::Ready));
    ready.map_err(Failure::may_be_running)?;
    Ok(Seen {
        bytes: order.bytes,
        is_deleting: false,
    })
}

/// The volume, if the claim is that of a volume of this name that is complete; none if it has to be
/// completed.
fn owned(tree: &Tree, order: &NewVolume, claim: &Claim) -> Result<Option<Seen>, Failure> {
    let dir = &order.at.dir;
    if claim.state == State::Above {
        return Err(Failure::incompatible(format!(
            "subDir {dir}: has the directories of other volumes; choose another directory"
        )));
    }
    if claim.name != order.at.name {
        return Err(Failure::incompatible(format!(
            "subDir {dir}: is the directory of volume {:?}; choose another directory, for example \
             with ${{pv.metadata.name}}",
            claim.name
        )));
    }
    match claim.state {
        State::Ready if tree.is_directory(dir)? => Ok(Some(Seen {
            bytes: claim.bytes,
            is_deleting: false,
        })),
        State::Ready => Err(Failure::precondition(format!(
            "name {:?}: its directory {dir} is missing in the share; restore it, or delete the \
             volume",
            order.at.name
        ))),
        State::Deleting => Err(Failure::busy(format!(
            "name {:?}: the volume of that name is being deleted",
            order.at.name
        ))),
        State::Creating | State::Above => Ok(None),
    }
}

/// Why the directory was not made.
enum Refusal {
    /// It exists, and is not this volume's.
    Foreign,
    /// Another reason; true if the server has refused a call.
    Error(Failure, bool),
}

impl From<error::Error> for Refusal {
    fn from(error: error::Error) -> Self {
        let is_answered = error.is_answered();
        Self::Error(error.into(), is_answered)
    }
}

fn make(tree: &Tree, claims: &Claims, order: &NewVolume) -> Result<(), Refusal> {
    let dir = &order.at.dir;
    let above = made(tree, order)?;
    let directory = match tree::open(&above, dir.name(), &dir.to_string()) {
        // A file or a link.
        Err(error) if [Errno::NOTDIR, Errno::LOOP].contains(&error.errno) => {
            return Err(Refusal::Foreign);
        }
        result => result?,
    };
    let unfinished = |failure| Refusal::Error(failure, false);
    let has_files = || list::entries(&directory, &dir.to_string()).map(|found| !found.is_empty());
    if !order.is_named_so && has_files()? {
        return Err(Refusal::Foreign);
    }
    // Another call may have removed their claims with the directories.
    claims.hold_above(dir).map_err(unfinished)?;
    if let Some(mode) = order.permissions {
        let set = tree::chmod(&directory, mode, &dir.to_string());
        set.map_err(|error| unfinished(error.into()))?;
    }
    Ok(())
}

/// Makes the directory, unless there is a file of any type; returns the one above.
fn made(tree: &Tree, order: &NewVolume) -> error::Result<OwnedFd> {
    let dir = &order.at.dir;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let above = tree.make_above(dir);
        let above = match above {
            Err(error) if error.errno == Errno::NOENT && attempts < ATTEMPTS => continue,
            result => result?,
        };
        match tree::make_volume(&above, dir) {
            Err(error) if error.errno == Errno::NOENT && attempts < ATTEMPTS => {}
            Err(error) if error.errno != Errno::EXIST => return Err(error),
            _ => return Ok(above),
        }
    }
}

/// The server refuses the directory: without it, the claim is withdrawn, and a repeated call begins
/// again. Whether that was possible.
fn withdrawn(tree: &Tree, claims: &Claims, order: &NewVolume) -> bool {
    let dir = &order.at.dir;
    let is_own = |claim: &Claim| claim.name == order.at.name && claim.state == State::Creating;
    let is_missing = match tree.exists(dir) {
        Ok(is_there) => !is_there,
        // Something else is in the path.
        Err(error) => [Errno::NOTDIR, Errno::LOOP].contains(&error.errno),
    };
    let may = is_missing && matches!(claims.read(dir), Ok(Some(claim)) if is_own(&claim));
    may && claims.remove(dir).is_ok()
}

/// The directory has files, or is none: unless another call has completed the volume, the claim is
/// withdrawn.
fn refuse(tree: &Tree, claims: &Claims, order: &NewVolume) -> Result<Seen, Failure> {
    let claim = claims
        .read(&order.at.dir)
        .map_err(Failure::may_be_running)?;
    if let Some(claim) = claim
        && let Some(seen) = owned(tree, order, &claim)?
    {
        return Ok(seen);
    }
    let removed = claims.remove(&order.at.dir);
    removed.map_err(|error| Failure::from(error).may_be_running())?;
    Err(foreign(order).rolled_back())
}

fn foreign(order: &NewVolume) -> Failure {
    Failure::incompatible(format!(
        "subDir {}: exists in the share, and is not known to be this volume's; choose another \
         directory, for example with ${{pv.metadata.name}}, or create a PersistentVolume for it by \
         hand",
        order.at.dir
    ))
}

fn changed(order: &NewVolume) -> Failure {
    let name = &order.at.name;
    let message = format!("name {name:?}: another call changes the volume; repeat the call");
    Failure::busy(message).may_be_running()
}

impl NewVolume {
    fn claim(&self, state: State) -> Claim {
        Claim {
            dir: self.at.dir.to_string(),
            name: self.at.name.clone(),
            state,
            on_delete: self.on_delete,
            bytes: self.bytes,
        }
    }
}
