//! Fills the file of a new volume from a snapshot or from another volume.

use super::damage::refuse_changed;
use super::{SnapshotRecord, SnapshotState};
use crate::backend::local::fault::emptied;
use crate::backend::local::files::{Backing, Copied, Use};
use crate::backend::local::record::Record;
use crate::backend::local::store::{Store, ready, whole_bytes};
use belay_server::call::Failure;
use belay_server::request::ContentSource;
use belay_server::size::Exact;
use std::sync::Arc;

impl Store {
    /// Fills the empty file of the volume `id`, which will have at least `bytes`, with the data of
    /// the source. Returns whether a node may format the volume, since its source was never used.
    ///
    /// # Errors
    /// Returns `NotFound` if the source does not exist, `Precondition` if it cannot be copied now,
    /// and `Invalid` if its filesystem differs from the requested one.
    pub(in crate::backend::local) fn fill(
        &self,
        id: &str,
        file: &Backing,
        bytes: u64,
        source: &ContentSource,
    ) -> Result<bool, Failure> {
        let filled = match source {
            ContentSource::Snapshot(from) => self.fill_from_snapshot(id, file, from.as_str()),
            ContentSource::Volume(from) => self.fill_from_volume(id, file, from.as_str()),
        };
        self.copies.end(id);
        let is_new = filled?;
        let taken_over = file.bytes()?;
        if taken_over > bytes {
            return Err(Failure::precondition(format!(
                "the source has grown to {} meanwhile; request at least that",
                Exact(taken_over)
            )));
        }
        Ok(is_new)
    }

    fn fill_from_snapshot(&self, id: &str, file: &Backing, from: &str) -> Result<bool, Failure> {
        let record = cut(from, self.ledger.snapshot(from)?)?;
        let origin = self.snapshots.get_for_reading(from).or_else(|missing| {
            // If the snapshot was deleted meanwhile together with its file, return `NotFound`.
            // Otherwise, report that the file of the snapshot is missing.
            cut(from, self.ledger.snapshot(from)?)?;
            Err(missing)
        })?;
        refuse_changed(&origin, record.bytes)?;
        self.refuse_emptied(id, &origin)?;
        self.refuse_other_filesystem(id, &format!("snapshot {from}"), &origin)?;
        if !file.share(&origin, record.bytes)? {
            self.ledger.change(|changes| {
                cut(from, changes.snapshot(from)?)?;
                self.copies.begin(id, from, None);
                Ok(())
            })?;
            self.copy_volume(id, file, &origin, record.bytes)?;
        }
        Ok(origin.use_so_far()? == Use::New)
    }

    /// If the volume `id` has a filesystem, refuses the file of a snapshot that has lost all its
    /// data. A raw volume may have no data, since its user may have discarded all blocks before the
    /// snapshot was taken.
    ///
    /// # Errors
    /// Returns `Precondition` if the file has lost all its data.
    fn refuse_emptied(&self, id: &str, origin: &Backing) -> Result<(), Failure> {
        let target = self.ledger.get(id)?;
        let is_filesystem = target.is_some_and(|target| target.is_filesystem());
        if !is_filesystem || !origin.is_emptied()? {
            return Ok(());
        }
        Err(Failure::precondition(emptied(origin.path().display())))
    }

    fn fill_from_volume(&self, id: &str, file: &Backing, from: &str) -> Result<bool, Failure> {
        // Volumes do not shrink, so the current minimum size of the file also applies when the
        // blocks are shared.
        let volume = ready(from, self.ledger.get(from)?)?;
        let origin = self.backing_for_reading(from)?;
        let least_bytes = whole_bytes(&origin, &volume)?;
        self.refuse_replaced(from, &origin, false)?;
        self.refuse_other_filesystem(id, &format!("volume {from}"), &origin)?;
        // FICLONE locks the file while it writes dirty data to disk, which blocks pods that use the
        // volume. Write most of the dirty data before FICLONE, so that the lock is held only
        // briefly.
        origin.sync()?;
        if !file.share(&origin, least_bytes)? {
            self.refuse_writer(from, &origin)?;
            self.lock_source(id, from)?;
            let bytes = self.ledger.change(|changes| {
                let record = ready(from, changes.get(from)?)?;
                whole_bytes(&origin, &record)?;
                refuse_growing(from, &record)?;
                Ok(record.bytes)
            })?;
            self.copy_volume(id, file, &origin, bytes)?;
        }
        self.is_new(&origin, file, &volume)
    }

    /// Makes a copy that was added with [`Copies::begin`](super::super::copies::Copies::begin).
    fn copy_volume(
        &self,
        id: &str,
        file: &Backing,
        origin: &Backing,
        bytes: u64,
    ) -> Result<(), Failure> {
        let copied = file.copy(origin, bytes, || self.copies.wanted(id));
        match copied? {
            Copied::Whole => Ok(()),
            Copied::Stopped => Err(Failure::busy(
                "the controller is shutting down; repeat the call",
            )),
        }
    }

    /// Refuses to copy a volume while another program, which holds no lock on its file, can write
    /// to the file.
    ///
    /// # Errors
    /// Returns `Precondition` if another program can write to the file.
    pub(in crate::backend::local) fn refuse_writer(
        &self,
        id: &str,
        from: &Backing,
    ) -> Result<(), Failure> {
        if !from.has_writer()? {
            return Ok(());
        }
        Err(torn(
            id,
            "open for writing in another program of this node (mount -o loop, e2fsck, qemu-img)",
        ))
    }

    /// Refuses a volume whose data is being copied.
    ///
    /// # Errors
    /// Returns `Busy` if the volume is being copied.
    pub(in crate::backend::local) fn refuse_while_copied(&self, id: &str) -> Result<(), Failure> {
        match self.copies.reading(id) {
            None => Ok(()),
            Some(target) => Err(copied(id, &target)),
        }
    }

    /// Adds a copy of the volume `id` to `target`, and locks the volume's file for the copy.
    ///
    /// # Errors
    /// Returns `Busy` if another copy of the volume is running, and `Precondition` if another
    /// process may write to the file.
    pub(in crate::backend::local) fn lock_source(
        &self,
        target: &str,
        id: &str,
    ) -> Result<Arc<Backing>, Failure> {
        let begun = self.copies.begin_alone(target, id);
        begun.map_err(|other| copied(id, &other))?;
        let locked = self.try_lock_source(id);
        match &locked {
            Ok(lock) => self.copies.keep_lock(target, Arc::clone(lock)),
            Err(_) => self.copies.end(target),
        }
        locked
    }

    fn try_lock_source(&self, id: &str) -> Result<Arc<Backing>, Failure> {
        let backing = self.backing(id)?;
        if !backing.lock_soon()? {
            return Err(torn(id, "bound to a loop device of this node"));
        }
        Ok(Arc::new(backing))
    }
}

/// Returns the record of a snapshot that can be restored.
///
/// # Errors
/// Returns `NotFound` if the snapshot does not exist, and `Precondition` if its data is still being
/// copied.
fn cut(id: &str, record: Option<SnapshotRecord>) -> Result<SnapshotRecord, Failure> {
    let record = record.filter(|record| {
        !matches!(
            record.state,
            SnapshotState::Cutting | SnapshotState::Deleting
        )
    });
    let record = record.ok_or_else(|| Failure::not_found(format!("snapshot {id}: not found")))?;
    if record.state == SnapshotState::Ready {
        return Ok(record);
    }
    Err(Failure::precondition(format!(
        "snapshot {id}: still being copied; restore it when it is ready_to_use"
    )))
}

/// Refuses to copy a volume that is being expanded, since its file changes.
///
/// # Errors
/// Returns `Busy` if the volume is being expanded.
pub(super) fn refuse_growing(id: &str, record: &Record) -> Result<(), Failure> {
    match record.growing_from {
        None => Ok(()),
        Some(_) => Err(Failure::busy(format!(
            "volume {id}: is being expanded; repeat the call when that is done"
        ))),
    }
}

/// Returns the error for a volume from which `target` is being copied.
fn copied(id: &str, target: &str) -> Failure {
    Failure::busy(format!(
        "volume {id}: {target} is being copied from it; repeat the call when {target} is ready"
    ))
}

pub(super) fn torn(id: &str, why: &str) -> Failure {
    Failure::precondition(format!(
        "volume {id}: {why}, and a plain copy of a file in use would be inconsistent; delete the \
         pods that use it first, or use xfs or btrfs for the state directory, where a snapshot or \
         clone shares the blocks of the file at one instant"
    ))
}
