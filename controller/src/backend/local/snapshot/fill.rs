//! Fills the file of a new volume from a snapshot or from another volume.

use super::damage::refuse_changed;
use super::{SnapshotRecord, SnapshotState};
use crate::backend::local::fault::emptied;
use crate::backend::local::files::{Backing, Copied};
use crate::backend::local::ledger::Changes;
use crate::backend::local::record::Record;
use crate::backend::local::store::{Store, ready, whole_bytes};
use belay_server::call::Failure;
use belay_server::request::ContentSource;
use belay_server::size::Exact;
use std::sync::Arc;

impl Store {
    /// Fills the empty file of the volume `id`, which will have at least `bytes`. Returns whether
    /// the source holds data.
    ///
    /// # Errors
    /// Returns `NotFound` for the source, `Precondition` if it cannot be read now, and `Invalid` if
    /// its filesystem differs from the requested one.
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
        let populated = filled?;
        let taken_over = file.bytes()?;
        if taken_over > bytes {
            return Err(Failure::precondition(format!(
                "the source has grown to {} meanwhile; request at least that",
                Exact(taken_over)
            )));
        }
        Ok(populated)
    }

    fn fill_from_snapshot(&self, id: &str, file: &Backing, from: &str) -> Result<bool, Failure> {
        let record = cut(from, self.ledger.snapshot(from)?)?;
        let origin = self.snapshots.get_for_reading(from).or_else(|missing| {
            // If the snapshot was deleted meanwhile, and its file with it, return `NotFound`.
            // Otherwise the file is missing.
            cut(from, self.ledger.snapshot(from)?)?;
            Err(missing)
        })?;
        refuse_changed(&origin, record.bytes)?;
        self.refuse_emptied(id, &origin, &record)?;
        self.refuse_other_filesystem(id, &format!("snapshot {from}"), &origin)?;
        if file.share(&origin, record.bytes)? {
            return Ok(record.populated);
        }
        self.ledger.change(|changes| {
            cut(from, changes.snapshot(from)?)?;
            self.copies.begin(id, from, None);
            Ok(())
        })?;
        self.copy_volume(id, file, &origin, record.bytes)?;
        Ok(record.populated)
    }

    /// Refuses the file of a snapshot that has lost all its data, if the volume `id` has a
    /// filesystem. A raw volume may have been discarded before the cut.
    ///
    /// # Errors
    /// Returns `Precondition`.
    fn refuse_emptied(
        &self,
        id: &str,
        origin: &Backing,
        cut: &SnapshotRecord,
    ) -> Result<(), Failure> {
        let target = self.ledger.get(id)?;
        let is_filesystem = target.is_some_and(|target| target.is_filesystem());
        if !(cut.populated && is_filesystem && self.tells_holes) || origin.holds_data()? {
            return Ok(());
        }
        Err(Failure::precondition(emptied(origin.path().display())))
    }

    fn fill_from_volume(&self, id: &str, file: &Backing, from: &str) -> Result<bool, Failure> {
        // Volumes do not shrink, so the current minimum size of the file also applies at the cut.
        let volume = ready(from, self.ledger.get(from)?)?;
        let origin = self.backing_for_reading(from)?;
        let least_bytes = whole_bytes(&origin, &volume)?;
        self.refuse_replaced(from, &volume, &origin)?;
        self.refuse_other_filesystem(id, &format!("volume {from}"), &origin)?;
        // FICLONE writes dirty data back with the file locked, which blocks the volume's users, so
        // write most of it before.
        origin.sync()?;
        if !file.share(&origin, least_bytes)? {
            self.refuse_writer(from, &origin)?;
            let bytes = self.ledger.change(|changes| {
                let record = ready(from, changes.get(from)?)?;
                let lock = self.lock_source(from, &record)?;
                // An expansion may be recorded but not complete.
                let least_bytes = record.least_bytes(origin.grown_to()?);
                let bytes = record.bytes.min(origin.bytes()?).max(least_bytes);
                self.copies.begin(id, from, Some(lock));
                Ok(bytes)
            })?;
            self.copy_volume(id, file, &origin, bytes)?;
        }
        // Inspect the volume after the cut: a volume never becomes new again.
        let Some(mut record) = self.ledger.get(from)? else {
            return Ok(true);
        };
        let data = self.data_in(file, from, &record)?;
        if record.observe(data, self.tells_holes) {
            self.ledger.change(|changes| match changes.get(from)? {
                Some(record) => self.note_data(changes, from, record, data).map(drop),
                None => Ok(()),
            })?;
        }
        Ok(record.was_written())
    }

    /// Records whether the volume holds data; returns the updated record.
    pub(in crate::backend::local) fn note_data(
        &self,
        changes: &mut Changes<'_>,
        id: &str,
        mut record: Record,
        data: bool,
    ) -> Result<Record, Failure> {
        if record.observe(data, self.tells_holes) {
            changes.put(id, &record)?;
        }
        Ok(record)
    }

    /// Performs a copy that was added by [`Copies::begin`](super::super::copies::Copies::begin).
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

    /// Refuses to copy a volume while another program, which takes no lock, can write to it.
    ///
    /// # Errors
    /// Returns `Precondition`.
    pub(in crate::backend::local) fn refuse_writer(
        &self,
        id: &str,
        from: &Backing,
    ) -> Result<(), Failure> {
        // If the volume is attached or being copied, the lock decides instead: this process may
        // have the file open for writing itself. Check again afterwards, since either may have
        // begun meanwhile.
        let is_ours = || {
            let record = ready(id, self.ledger.get(id)?)?;
            Ok::<_, Failure>(record.node().is_some() || self.copies.lock_of(id).is_some())
        };
        if is_ours()? || !from.has_writer() || is_ours()? {
            return Ok(());
        }
        Err(torn(
            id,
            "open for writing in another program of this node (mount -o loop, e2fsck, qemu-img)",
        ))
    }

    /// Locks a volume for copying, or shares the lock of another copy. Must be called within a
    /// change of the ledger, so that no attachment can be made in between.
    ///
    /// # Errors
    /// Returns `Precondition` if another process may write to the volume.
    pub(in crate::backend::local) fn lock_source(
        &self,
        id: &str,
        record: &Record,
    ) -> Result<Arc<Backing>, Failure> {
        if let Some(node) = record.node() {
            return Err(torn(id, &format!("attached to node {node}")));
        }
        if let Some(lock) = self.copies.lock_of(id) {
            return Ok(lock);
        }
        let backing = self.files.get(id)?;
        self.refuse_linked(id, &backing)?;
        if !backing.try_lock()? {
            return Err(torn(id, "bound to a loop device of this node"));
        }
        Ok(Arc::new(backing))
    }
}

/// Returns the record of a snapshot that can be restored.
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

fn torn(id: &str, why: &str) -> Failure {
    Failure::precondition(format!(
        "volume {id}: {why}, and a plain copy of a file in use would be inconsistent; detach it \
         first, or use xfs or btrfs for the state directory, where a snapshot or clone shares the \
         blocks of the file at one instant"
    ))
}
