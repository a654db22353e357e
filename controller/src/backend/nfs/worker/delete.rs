//! Deletes a volume according to its policy. A directory without a claim is treated as a volume of
//! csi-driver-nfs only if the operator has set `--nfs-adopt`. Before a directory without a claim is
//! deleted, it is claimed, so that no other call uses the directory during its removal, and so that
//! a retained directory is recorded.

use super::super::call::OldVolume;
use super::super::id::OnDelete;
use super::super::path::Dir;
use super::archive;
use super::claim::{Claim, Record, State};
use super::claims::{Claims, Occupancy, changing};
use super::deletion::{Deletion, refuse_other};
use super::layout::OWN;
use super::list;
use super::own::{is_missing, refuse_nested};
use super::trash::Trash;
use super::tree::Tree;
use belay_server::call::{Failure, Kind};
use rustix::fs::FileType;
use std::time::Instant;

/// The remaining work of a deletion.
enum Task {
    Claim(Claims, Claim),
    /// The deletion is complete. Contains an explanation if a directory with the volume's name
    /// remains.
    Nothing(Option<String>),
}

/// Deletes the volume. Succeeds if the volume does not exist, or if the directory in its ID belongs
/// to a different volume. Returns an explanation if a directory with the volume's name remains.
///
/// # Errors
/// Returns `Precondition` if the path is not the directory of exactly one volume; `Busy` if files
/// remain at `end`; the errors of the server.
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
    };
    let done = deletion.done(&claim, policy(&claim, order));
    done.map_err(Failure::may_be_running)
}

/// Returns the policy of the deletion: of the policies in the claim and in the ID, the policy that
/// keeps more data. Neither policy ever changes.
fn policy(claim: &Claim, order: &OldVolume) -> OnDelete {
    match order.on_delete.unwrap_or_default().max(claim.of.on_delete) {
        // An earlier call has begun the deletion with a different ID, whose policy is not to retain
        // the directory.
        OnDelete::Retain if claim.state == State::Deleting => claim.of.on_delete,
        policy => policy,
    }
}

/// Returns the claim (the record that the directory belongs to the volume). Claims the directory of
/// a volume of csi-driver-nfs.
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
        Occupancy::Free | Occupancy::Above => unclaimed(tree, order),
        Occupancy::By(claim) if claim.of.name != *name => Ok(Task::Nothing(Some(format!(
            "directory {dir} {}, and not of volume {name:?}",
            claim.describe()
        )))),
        Occupancy::By(claim) => match claim.state {
            State::Archived => Ok(Task::Nothing(None)),
            State::Ready | State::Gone => Ok(Task::Claim(claims, claim)),
            // The call that created the claim may have been killed before it claimed the parent
            // directories.
            _ => held(tree, claims, claim, dir),
        },
    }
}

/// Claims the directory of a volume of csi-driver-nfs.
fn unclaimed(tree: &Tree, order: &OldVolume) -> Result<Task, Failure> {
    let dir = &order.at.dir;
    let policy = order.on_delete.unwrap_or(order.default);
    let found = match tree.find(dir) {
        Err(error) if policy == OnDelete::Retain && is_missing(error.errno) => None,
        result => result?,
    };
    match found.map(|found| found.file_type) {
        None => return Ok(Task::Nothing(None)),
        Some(_) if !order.at.adopts && policy == OnDelete::Retain => {
            return Ok(Task::Nothing(None));
        }
        Some(FileType::Directory) if !order.at.adopts => {
            return Err(unrecorded(&format!("directory {dir}"), "deleted"));
        }
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
        OnDelete::Delete | OnDelete::Archive => State::Deleting,
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
                State::Deleting => Err(inside(&failure)),
                // A volume that is being created does not exist yet, and a retained directory
                // inside a volume needs no claim.
                _ => Ok(Task::Nothing(None)),
            }
        }
        Err(failure) => Err(failure.may_be_running()),
        Ok(()) if claim.state == State::Retained => Ok(Task::Nothing(None)),
        Ok(()) => Ok(Task::Claim(claims, claim)),
    }
}

/// Returns the error for a directory without a claim if `--nfs-adopt` is not set.
pub(super) fn unrecorded(what: &str, done: &str) -> Failure {
    Failure::precondition(format!(
        "{what}: exists, but {OWN} has no record of its volume, so it is not {done}; if \
         csi-driver-nfs has created the volume, start the controller with --nfs-adopt, else move \
         the directory away, and repeat the call"
    ))
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
            // The copy is not complete, so no caller knows the volume.
            _ if claim.state == State::Creating && claim.of.source.is_some() => {
                self.finish(claim)?;
            }
            OnDelete::Retain => self.retain(claim)?,
            _ if claim.state == State::Creating && self.is_foreign()? => {
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

    /// Keeps the directory, and records that it is no longer a volume.
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

    /// Moves the directory to the trash, and removes the directory from the trash, so that no other
    /// process finds the directory while files are missing.
    fn removed(&self, claim: &Claim) -> Result<(), Failure> {
        let is_there = self.tree.find(self.dir)?;
        refuse_other(self.dir, is_there)?;
        let claim = self.claims.advance(self.dir, claim, State::Deleting)?;
        // Remove the notes (empty files with an inode number in their names) from the trash: notes
        // identify the directory of an incomplete copy, but this volume is complete.
        if let Some(trash) = Trash::find(&self.claims, self.dir, &claim)? {
            trash.forget_notes()?;
        }
        if is_there.is_some() {
            let trash = Trash::of_current(&self.claims, self.dir, &claim)?;
            trash.take(self.tree, self.dir)?;
        }
        // The volume is in the trash now; a directory with its name is no longer the volume.
        self.finish(&claim)
    }

    /// Whether the directory has files. No caller knew the volume, so another program has created
    /// these files.
    fn is_foreign(&self) -> Result<bool, Failure> {
        match self.tree.open_directory(self.dir)? {
            Some(found) => Ok(!list::some(&found, 1, &self.dir.to_string())?.is_empty()),
            None => Ok(false),
        }
    }
}
