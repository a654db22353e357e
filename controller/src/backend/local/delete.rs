//! Deleting a volume: marks it in the ledger, unlinks the file, and removes the record.

use super::files::Backing;
use super::loops::Device;
use super::record::{Record, State};
use super::store::{Store, ready};
use belay_server::call::Failure;

impl Store {
    pub(super) fn delete(&self, id: &str) -> Result<(), Failure> {
        let Some(record) = self.ledger.get(id)? else {
            return Ok(());
        };
        if record.state == State::Deleting {
            return self.finish_delete(id);
        }
        let record = ready(id, Some(record))?;
        refuse_attached(id, record.node())?;
        self.refuse_copied(id)?;
        let _lock = self.lock_unused(id, &record)?;
        self.begin_delete(id)?;
        self.remove_and_forget(id)
    }

    /// Marks the volume as being deleted; from then on it no longer exists for callers.
    pub(super) fn begin_delete(&self, id: &str) -> Result<(), Failure> {
        self.ledger.change(|changes| {
            let Some(mut record) = changes.get(id)? else {
                return Ok(());
            };
            refuse_attached(id, record.node())?;
            self.refuse_copied(id)?;
            record.state = State::Deleting;
            changes.put(id, &record)
        })
    }

    /// Refuses to delete a volume that is being copied.
    fn refuse_copied(&self, id: &str) -> Result<(), Failure> {
        match self.copies.reading(id) {
            None => Ok(()),
            Some(target) => Err(Failure::precondition(format!(
                "volume {id}: {target} is being copied from it; delete it when {target} is ready"
            ))),
        }
    }

    /// Locks the file, so that no process binds it to a loop device before it is removed.
    fn lock_unused(&self, id: &str, record: &Record) -> Result<Backing, Failure> {
        let device = self.device_of(id, record)?;
        let backing = self.files.get(id)?;
        // Check this before the lock, which the other volume may hold.
        self.refuse_linked(id, &backing)?;
        if !backing.try_lock()? {
            return Err(Failure::precondition(format!(
                "volume {id}: {} is bound to a loop device of this node; delete the pods that \
                 use the volume, so that it is unstaged",
                backing.path().display()
            )));
        }
        match device {
            None => Ok(backing),
            Some(Device { path, file }) => Err(Failure::precondition(format!(
                "volume {id}: {path} of this node is bound to {file:?}; delete the pods that \
                 use the volume, so that it is unstaged; only if none does: losetup --detach {path}"
            ))),
        }
    }

    /// Unlinks the file and removes the record. Either may already have been done.
    pub(super) fn finish_delete(&self, id: &str) -> Result<(), Failure> {
        let backing = self.files.find(id)?;
        if let Some(backing) = &backing {
            self.refuse_linked(id, backing)?;
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
        // Give a last name a replacement first: otherwise, a power cut could restore the second
        // name as the only name of its file.
        self.keep_last(id).map_err(Failure::may_be_running)?;
        self.attached.remove(id).map_err(Failure::may_be_running)?;
        let bytes = self.files.allocated(id);
        self.files.remove(id).map_err(Failure::may_be_running)?;
        self.ceiling.freed(bytes);
        self.ledger
            .change(|changes| changes.forget(id))
            .map_err(Failure::may_be_running)
    }
}

fn refuse_attached(id: &str, node: Option<&str>) -> Result<(), Failure> {
    match node {
        None => Ok(()),
        Some(node) => Err(Failure::precondition(format!(
            "volume {id}: attached to node {node}; detach it there first"
        ))),
    }
}
