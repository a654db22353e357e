//! Deletes a volume according to its policy. A volume of csi-driver-nfs is claimed first, so that
//! no other call finds it half deleted, and a retained one is known as such.

use super::super::call::OldVolume;
use super::super::id::OnDelete;
use super::super::path::Dir;
use super::archive;
use super::claim::{Claim, Record, State};
use super::claims::{Claims, Occupancy, changing};
use super::deletion::{Deletion, refuse_other};
use super::list;
use super::own::{is_missing, refuse_nested};
use super::trash::Trash;
use super::tree::Tree;
use belay_server::call::{Failure, Kind};
use rustix::fs::FileType;
use std::time::Instant;

/// The task of a deletion.
enum Task {
    Claim(Claims, Claim),
    /// There is nothing to do. Contains the reason if a directory with the volume's name is left.
    Nothing(Option<String>),
}

/// Deletes the volume. Succeeds if the volume does not exist, or its directory belongs to another
/// volume. Returns the reason if a directory with the volume's name was left.
///
/// # Errors
/// Returns `Precondition` if its path is not the directory of one volume; `Busy` if files remain at
/// `end`; the errors of the server.
pub(super) fn delete(
    tree: &Tree,
    order: &OldVolume,
    end: Instant,
) -> Result<Option<String>, Failure> {
    let (claims, claim) = match claimed(tree, order)? {
        Task::Claim(claims, claim) => (claims, claim),
        Task::Nothing(why) => return Ok(why),
    };
    let deletion = Deletion {
        tree,
        claims,
        dir: &order.at.dir,
        end,
        removes_archived: order.removes_archived,
    };
    let done = deletion.done(&claim, policy(&claim, order));
    done.map_err(Failure::may_be_running)
}

/// Returns the policy of the deletion. A deletion that has begun keeps its policy. Otherwise, the
/// policies in the claim and in the ID are compared, and the policy that keeps more data is used.
fn policy(claim: &Claim, order: &OldVolume) -> OnDelete {
    match claim.state {
        State::Deleting => OnDelete::Delete,
        State::Archiving => OnDelete::Archive,
        _ => order.on_delete.unwrap_or_default().max(claim.of.on_delete),
    }
}

/// Returns the claim of the volume, and makes it for a volume of csi-driver-nfs.
fn claimed(tree: &Tree, order: &OldVolume) -> Result<Task, Failure> {
    let (dir, name) = (&order.at.dir, &order.at.name);
    let Some(claims) = Claims::find(tree)? else {
        return unclaimed(tree, order);
    };
    match claims.read(dir)? {
        Occupancy::Above if claims.is_above(tree, dir)? => Err(Failure::precondition(format!(
            "directory {dir}: has the directories of other volumes, so it is not deleted; delete \
             those volumes first"
        ))),
        Occupancy::Free | Occupancy::Above if claims.is_gone(&order.at)? => {
            Ok(Task::Nothing(came_later(tree, dir)))
        }
        Occupancy::Free | Occupancy::Above => unclaimed(tree, order),
        Occupancy::By(claim) if claim.of.name != *name => Ok(Task::Nothing(Some(format!(
            "directory {dir} {}, and not of volume {name:?}",
            claim.describe()
        )))),
        Occupancy::By(claim) => match claim.state {
            State::Placing | State::Archived | State::Replaced => Ok(Task::Nothing(None)),
            State::Ready | State::Gone | State::Dropping => Ok(Task::Claim(claims, claim)),
            // The call that made the claim may have been killed.
            _ => held(tree, claims, claim, dir),
        },
    }
}

/// Returns why the directory of a deleted volume is not deleted again, if that exists.
fn came_later(tree: &Tree, dir: &Dir) -> Option<String> {
    // An error does not matter: nothing is done there.
    let is_there = tree.exists(dir).unwrap_or(false);
    let why = || {
        format!(
            "directory {dir}: the volume was deleted less than two hours ago, and what has its \
             name now is no volume of Belay; remove it by hand, if it is of no use"
        )
    };
    is_there.then(why)
}

/// Claims a volume of csi-driver-nfs.
fn unclaimed(tree: &Tree, order: &OldVolume) -> Result<Task, Failure> {
    let dir = &order.at.dir;
    let policy = order.on_delete.unwrap_or(order.default);
    let found = match tree.find(dir) {
        Err(error) if policy == OnDelete::Retain && is_missing(error.errno) => None,
        result => result?,
    };
    match found.map(|found| found.file_type) {
        None => return Ok(Task::Nothing(None)),
        Some(FileType::Directory) => {}
        Some(_) if policy == OnDelete::Retain => return Ok(Task::Nothing(None)),
        Some(_) => refuse_other(dir, found)?,
    }
    if policy != OnDelete::Retain {
        refuse_nested(tree, dir, dir.above().chain([dir.clone()]))?;
    }
    if policy == OnDelete::Archive {
        archive::refuse_long(dir)?;
    }
    let claims = Claims::open(tree)?;
    let record = Record {
        dir: dir.to_string(),
        name: order.at.name.clone(),
        on_delete: policy,
        bytes: 0,
        archive_of: None,
        source: None,
    };
    let state = match policy {
        OnDelete::Delete => State::Deleting,
        OnDelete::Archive => State::Archiving,
        OnDelete::Retain => State::Retained,
    };
    let claim = Claim::new(record, state)?;
    if !claims.publish(dir, &claim)? {
        return Err(changing(dir));
    }
    held(tree, claims, claim, dir)
}

/// Claims the parent directories of the volume's directory.
fn held(tree: &Tree, claims: Claims, claim: Claim, dir: &Dir) -> Result<Task, Failure> {
    match claims.hold_above(tree, dir, &claim) {
        Err(failure) if failure.kind == Kind::Incompatible => {
            claims
                .remove(dir, &claim)
                .map_err(Failure::may_be_running)?;
            match claim.state {
                State::Deleting | State::Archiving => Err(inside(&failure)),
                // The volume was not created, or no volume can be created there.
                _ => Ok(Task::Nothing(None)),
            }
        }
        Err(failure) => Err(failure.may_be_running()),
        Ok(()) if claim.state == State::Retained => Ok(Task::Nothing(None)),
        Ok(()) => Ok(Task::Claim(claims, claim)),
    }
}

fn inside(failure: &Failure) -> Failure {
    let why = &failure.message;
    Failure::precondition(format!(
        "{why}; a part of another volume is not deleted; remove it by hand"
    ))
}

impl Deletion<'_> {
    fn done(&self, claim: &Claim, policy: OnDelete) -> Result<Option<String>, Failure> {
        if claim.state == State::Ready && policy != OnDelete::Retain {
            refuse_nested(self.tree, self.dir, self.dir.above())?;
        }
        match policy {
            _ if claim.state == State::Gone => self.finish(claim)?,
            _ if claim.is_copy_in_progress() => self.uncopied(claim)?,
            OnDelete::Retain => self.retain(claim)?,
            _ if claim.state == State::Creating && self.is_foreign(claim)? => {
                self.release(claim)?;
                return Ok(Some(format!(
                    "directory {}: has files, and the volume was not created",
                    self.dir
                )));
            }
            OnDelete::Archive => archive::archive(self, claim)?,
            OnDelete::Delete => self.removed(claim)?,
        }
        Ok(None)
    }

    /// Leaves the directory, and records that it is no longer a volume.
    fn retain(&self, claim: &Claim) -> Result<(), Failure> {
        let exists = match self.tree.exists(self.dir) {
            Err(error) if is_missing(error.errno) => false,
            result => result?,
        };
        match exists {
            true => self
                .claims
                .advance(self.dir, claim, State::Retained)
                .map(drop),
            false => self.release(claim),
        }
    }

    /// Moves the directory to the trash, and removes it there, so that no other process finds it
    /// half deleted.
    fn removed(&self, claim: &Claim) -> Result<(), Failure> {
        let is_there = self.tree.find(self.dir)?;
        refuse_other(self.dir, is_there)?;
        let claim = self.claims.advance(self.dir, claim, State::Deleting)?;
        if is_there.is_some() {
            let trash = Trash::of_current(&self.claims, self.dir, &claim)?;
            trash.take(self.tree, self.dir)?;
        }
        // From now on, while the files are removed, a directory with the name is not the volume's.
        self.finish(&claim)
    }

    /// Whether the directory has files of another program. No caller knew the volume, so all files
    /// are, unless the directory has the name of the volume.
    fn is_foreign(&self, claim: &Claim) -> Result<bool, Failure> {
        let shown = self.dir.to_string();
        match self.tree.open_directory(self.dir)? {
            Some(directory) if shown != claim.of.name => {
                Ok(!list::entries(&directory, &shown)?.is_empty())
            }
            _ => Ok(false),
        }
    }
}
