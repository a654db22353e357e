//! Deletes a volume: marks it as being deleted in the ledger, unlinks the file, and removes the
//! record.

use super::files::Backing;
use super::record::State;
use super::store::{Store, being_created};
use belay_contract::drivers::local::Claim;
use belay_server::call::{Failure, Kind};

/// The result of an attempt to delete a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The volume no longer exists.
    Done,
    /// The node is using the volume's file. Nothing was changed.
    InUse,
}

/// A volume that can be removed now, or the reason why it cannot.
#[derive(Debug)]
pub(super) enum Removal {
    /// There is no record of the volume.
    Gone,
    /// The volume is incomplete, since its creation has not ended.
    Incomplete,
    /// An earlier deletion has begun, and must be completed.
    Begun,
    /// The node is using the volume's file.
    InUse,
    /// The volume is not in use. Its file is locked until this value is dropped, so that no process
    /// binds the file to a loop device.
    Locked(Backing),
}

impl Store {
    /// Deletes a volume, unless the node uses its file.
    pub(super) fn try_delete(&self, id: &str) -> Result<Deletion, Failure> {
        match self.reserve(id)? {
            Removal::InUse => Ok(Deletion::InUse),
            Removal::Incomplete => Err(being_created(id)),
            removal => self.remove_reserved(id, removal).map(|()| Deletion::Done),
        }
    }

    /// Checks whether a volume can be removed now, and locks its file.
    ///
    /// # Errors
    /// Returns `Precondition` if the volume must not be removed.
    pub(super) fn reserve(&self, id: &str) -> Result<Removal, Failure> {
        let Some(record) = self.ledger.get(id)? else {
            return Ok(Removal::Gone);
        };
        match record.state {
            State::Creating => {
                self.refuse_unknown_data(id, &record)?;
                return Ok(Removal::Incomplete);
            }
            State::Deleting => {
                return Ok(match self.files.find(id)? {
                    Some(file) if file.is_locked()? => Removal::InUse,
                    _ => Removal::Begun,
                });
            }
            State::Ready => {}
        }
        self.refuse_copied(id)?;
        let backing = self.files.get(id)?;
        backing.refuse_linked()?;
        if !backing.try_lock()? {
            return Ok(Removal::InUse);
        }
        if let Err(failure) = self.refuse_replaced(id, &backing, true) {
            self.want_back(id);
            return Err(failure);
        }
        self.refuse_claimed(id, &backing)?;
        Ok(Removal::Locked(backing))
    }

    /// Removes the file and the record of a volume after [`Self::reserve`].
    ///
    /// # Errors
    /// Returns `Busy` if the node uses the file.
    pub(super) fn remove_reserved(&self, id: &str, removal: Removal) -> Result<(), Failure> {
        match removal {
            Removal::Gone => Ok(()),
            Removal::Incomplete => self.abandon(id),
            Removal::Begun | Removal::InUse => self.finish_delete(id),
            Removal::Locked(backing) => self.delete_locked(id, &backing),
        }
    }

    fn delete_locked(&self, id: &str, backing: &Backing) -> Result<(), Failure> {
        claim_deleting(id, backing)?;
        if let Err(failure) = self.begin_delete(id) {
            let record = self.ledger.get(id);
            if record.is_ok_and(|record| record.is_some_and(|it| it.state == State::Ready))
                && let Err(also) = backing.end_claim(&Claim::Deleting)
            {
                tracing::warn!(volume = id, "{also}; the next start ends the claim");
            }
            return Err(failure);
        }
        self.remove_and_forget(id)
    }

    /// Returns the error for a volume that the node uses. Also asks the node agent to unstage the
    /// volume if no pod uses it, since a killed kubelet may have left the volume staged.
    pub(super) fn refuse_used(&self, id: &str) -> Failure {
        self.want_back(id);
        Failure::precondition(format!(
            "volume {id}: {path} is bound to a loop device of this node (`losetup --associated \
             {path}`); `belayctl where {id}` shows the pods and mounts that use it: delete these \
             pods, or unstage the volume, and repeat",
            path = self.files.path_of(id).display()
        ))
    }

    fn want_back(&self, id: &str) {
        let claimed = self.files.get(id).and_then(|file| match file.claimed()? {
            Some(Claim::Copy(_)) => Ok(()),
            Some(claim) => file.claim(&claim),
            None => file.claim_first(&Claim::Delete),
        });
        if let Err(failure) = claimed {
            tracing::warn!(volume = id, "cannot ask the node to unstage it: {failure}");
        }
    }

    /// Marks the volume as being deleted. From then on, no lookup returns the volume.
    pub(super) fn begin_delete(&self, id: &str) -> Result<(), Failure> {
        self.ledger.change(|changes| {
            let Some(mut record) = changes.get(id)? else {
                return Ok(());
            };
            self.refuse_copied(id)?;
            record.state = State::Deleting;
            changes.put(id, &record)
        })
    }

    /// Refuses to delete a volume whose data is being copied.
    fn refuse_copied(&self, id: &str) -> Result<(), Failure> {
        match self.copies.reading(id) {
            None => Ok(()),
            Some(target) => Err(being_copied(id, &target)),
        }
    }

    /// Refuses to delete a volume whose copy was begun before this process started and has not been
    /// resumed yet. Such a copy has set a claim (an extended attribute) on the file.
    fn refuse_claimed(&self, id: &str, backing: &Backing) -> Result<(), Failure> {
        let Some(Claim::Copy(snapshot)) = backing.claimed()? else {
            return Ok(());
        };
        match self.is_copying(&snapshot)? {
            true => Err(being_copied(id, &snapshot)),
            false => Ok(()),
        }
    }

    /// Unlinks the file and removes the record. Succeeds even if the file or the record no longer
    /// exists.
    pub(super) fn finish_delete(&self, id: &str) -> Result<(), Failure> {
        let backing = self.files.find(id)?;
        if let Some(backing) = &backing {
            backing.refuse_linked()?;
            if !backing.try_lock()? {
                return Err(Failure::busy(format!(
                    "volume {id}: another call is deleting it, or {} is bound to a loop device of \
                     this node; repeat the call later",
                    backing.path().display()
                )));
            }
        }
        self.remove_and_forget(id)
    }

    fn remove_and_forget(&self, id: &str) -> Result<(), Failure> {
        let bytes = self.files.allocated(id);
        self.files.remove(id).map_err(Failure::may_be_running)?;
        self.ceiling.freed(bytes);
        self.ledger
            .change(|changes| changes.forget(id))
            .map_err(Failure::may_be_running)
    }
}

/// Sets a claim (an extended attribute) on the file. The claim prevents the node agent from staging
/// the file if this process is killed before it removes the file.
fn claim_deleting(id: &str, backing: &Backing) -> Result<(), Failure> {
    match backing
        .claim(&Claim::Deleting)
        .and_then(|()| backing.sync())
    {
        // An xfs without free blocks accepts no extended attributes. The deletion must succeed on a
        // full xfs, too, since the deletion frees blocks.
        Err(failure) if failure.kind == Kind::Quota => {
            tracing::warn!(volume = id, "deleted without a claim: {failure}");
            Ok(())
        }
        claimed => claimed,
    }
}

fn being_copied(id: &str, target: &str) -> Failure {
    Failure::precondition(format!(
        "volume {id}: {target} is being copied from it; delete it when {target} is ready, or \
         delete {target} first"
    ))
}
