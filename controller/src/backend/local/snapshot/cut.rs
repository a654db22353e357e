//! Cutting a snapshot: writes the intent, shares the volume's blocks with the snapshot's file, and
//! marks the snapshot as ready. If blocks cannot be shared, the cut is the moment from which no
//! process can write to the volume, and the file is filled in the background.

use super::{SnapshotRecord, SnapshotState};
use crate::backend::local::fault::unread;
use crate::backend::local::files::{Backing, Copied};
use crate::backend::local::id;
use crate::backend::local::record::Record;
use crate::backend::local::store::{Store, fits, ready, whole_bytes};
use crate::backend::{Snapshot, SnapshotOrder};
use belay_server::call::Failure;
use std::sync::Arc;
use std::time::SystemTime;

/// The result of looking up the name of a new snapshot.
pub(in crate::backend::local) enum Intent {
    /// A snapshot that was cut has the name.
    Exists(Snapshot),
    /// No snapshot has the name, and this ID is now reserved for it.
    Made(String),
    /// The name belongs to a snapshot whose cut or deletion was started and failed.
    Remains(String),
}

impl Store {
    pub(in crate::backend::local) fn cut(
        &self,
        order: &SnapshotOrder,
    ) -> Result<Snapshot, Failure> {
        let name = order.name.as_str();
        let _cutting = self.cutting.begin(name).ok_or_else(|| busy(order))?;
        let id = match self.intended_snapshot(order).map_err(unread)? {
            Intent::Made(id) => id,
            Intent::Remains(_) => return Err(busy(order)),
            Intent::Exists(snapshot) => {
                return match self.copies.repeat(snapshot.id.as_str()) {
                    None => Ok(snapshot),
                    // The snapshot was cut, so the caller must not conclude that nothing happened.
                    Some(failure) => Err(failure.may_be_running()),
                };
            }
        };
        self.fill_or_discard(&id, order.source.as_str())
    }

    /// Looks up the name and writes the intent, after completing or removing the remains of a
    /// failed call.
    fn intended_snapshot(&self, order: &SnapshotOrder) -> Result<Intent, Failure> {
        let intent = self.intend_snapshot(order)?;
        let Intent::Remains(old) = intent else {
            return Ok(intent);
        };
        if let Some(snapshot) = self.complete_whole_snapshot(&old)? {
            return Ok(Intent::Exists(snapshot));
        }
        self.finish_discard(&old)?;
        self.intend_snapshot(order)
    }

    /// Completes a snapshot with a new ID, or removes its remains.
    pub(in crate::backend::local) fn fill_or_discard(
        &self,
        id: &str,
        source: &str,
    ) -> Result<Snapshot, Failure> {
        self.fill_snapshot(id, source)
            .map_err(|failure| match self.finish_discard(id) {
                Ok(()) => failure.rolled_back(),
                Err(also) => Failure {
                    message: format!("{failure}; the cleanup failed too: {also}"),
                    ..failure.may_be_running()
                },
            })
    }

    /// Looks up the name; if no snapshot has it, writes the intent.
    pub(in crate::backend::local) fn intend_snapshot(
        &self,
        order: &SnapshotOrder,
    ) -> Result<Intent, Failure> {
        let (name, source) = (order.name.as_str(), order.source.as_str());
        self.provision(|changes, ceiling| {
            if let Some(id) = changes.snapshot_named(name)? {
                let record = changes.snapshot(&id).map_err(Failure::may_be_running)?;
                let record = record.ok_or_else(|| {
                    Failure::bug(format!("state.redb: name {name:?} refers to no snapshot"))
                        .may_be_running()
                })?;
                return Ok(match record.snapshot(&id)? {
                    Some(snapshot) => Intent::Exists(snapshot),
                    // The thread that began has ended, since only one thread at a time works on a
                    // name.
                    None => Intent::Remains(id),
                });
            }
            let volume = ready(source, changes.get(source)?)?;
            fits(changes, ceiling, volume.bytes)?;
            let id = id::fresh(id::SNAPSHOT)?;
            let record = SnapshotRecord::cutting(name, source, &volume);
            changes.put_snapshot(&id, &record)?;
            Ok(Intent::Made(id))
        })
    }

    fn fill_snapshot(&self, id: &str, source: &str) -> Result<Snapshot, Failure> {
        // Volumes do not shrink, so the current minimum size of the file also applies at the cut.
        let volume = ready(source, self.ledger.get(source)?)?;
        let from = self.backing_for_reading(source)?;
        let least_bytes = whole_bytes(&from, &volume)?;
        self.refuse_replaced(source, &volume, &from)?;
        // FICLONE writes dirty data back with the file locked, which blocks the volume's users, so
        // write most of it before.
        from.sync()?;
        let file = self.snapshots.begin(id)?;
        if !file.share(&from, least_bytes)? {
            return self.leave_to_copier(id, source, &from);
        }
        let cut_at = SystemTime::now();
        // Without this, the mark could reach the disk before the data.
        file.sync()?;
        if let Some(volume) = self.ledger.get(source)? {
            let written = self.data_in(&file, source, &volume)?;
            file.mark_complete(written || volume.was_written())?;
        }
        self.snapshots.sync()?;
        self.complete_snapshot(id, source, &file, cut_at)
    }

    /// Marks the snapshot as ready, and records the size and content of its file.
    pub(in crate::backend::local) fn complete_snapshot(
        &self,
        id: &str,
        source: &str,
        file: &Backing,
        cut_at: SystemTime,
    ) -> Result<Snapshot, Failure> {
        let bytes = file.bytes()?;
        self.ledger.change(|changes| {
            let mut record = known(id, changes.snapshot(id)?)?;
            record.cut_at(cut_at);
            record.state = SnapshotState::Ready;
            record.bytes = bytes;
            let snapshot = visible(id, &record)?;
            // Inspect the volume after the cut: a volume never becomes new again.
            record.populated = match changes.get(source)? {
                None => file.holds_data()?,
                Some(volume) => {
                    let written = self.data_in(file, source, &volume)?;
                    self.note_data(changes, source, volume, written)?
                        .was_written()
                }
            };
            changes.put_snapshot(id, &record)?;
            Ok(snapshot)
        })
    }

    /// Completes a snapshot whose file is marked as complete although its record is not: a crash
    /// came in between, or state.redb was restored from an older backup. Returns `None` if the file
    /// has no such mark.
    pub(in crate::backend::local) fn complete_whole_snapshot(
        &self,
        id: &str,
    ) -> Result<Option<Snapshot>, Failure> {
        let Some(record) = self.ledger.snapshot(id)? else {
            // The deletion of the snapshot has ended since the name was looked up.
            return Ok(None);
        };
        let is_copied = match record.state {
            SnapshotState::Cutting => false,
            SnapshotState::Copying => true,
            SnapshotState::Ready | SnapshotState::Deleting => return Ok(None),
        };
        let Some(file) = self.snapshots.find(id)? else {
            return Ok(None);
        };
        let Some(populated) = file.completed()? else {
            return Ok(None);
        };
        // The time of the cut is not recorded yet; the file's mtime is the closest.
        let (bytes, modified) = (file.bytes()?, file.modified()?);
        let completed = self.ledger.change(|changes| {
            let mut record = known(id, changes.snapshot(id)?)?;
            if !is_copied {
                record.cut_at(modified);
                record.populated = populated;
            }
            record.bytes = bytes;
            record.state = SnapshotState::Ready;
            let snapshot = visible(id, &record)?;
            changes.put_snapshot(id, &record)?;
            Ok(snapshot)
        });
        completed.map(Some)
    }

    /// Hands a snapshot whose blocks cannot be shared over to the copier. From here on the volume
    /// is locked.
    pub(in crate::backend::local) fn leave_to_copier(
        &self,
        id: &str,
        source: &str,
        from: &Backing,
    ) -> Result<Snapshot, Failure> {
        self.refuse_writer(source, from)?;
        let held = self.ledger.change(|changes| {
            let volume = ready(source, changes.get(source)?)?;
            let lock = self.lock_source(source, &volume)?;
            whole_bytes(from, &volume)?;
            let mut record = known(id, changes.snapshot(id)?)?;
            record.cut_at(SystemTime::now());
            record.state = SnapshotState::Copying;
            // An expansion may be recorded but not complete.
            record.bytes = volume.bytes.min(from.bytes()?);
            let snapshot = visible(id, &record)?;
            let written = self.data_in(from, source, &volume)?;
            let volume = self.note_data(changes, source, volume, written)?;
            record.populated = volume.was_written();
            changes.put_snapshot(id, &record)?;
            self.copies.begin(id, source, Some(lock));
            Ok(snapshot)
        });
        match held {
            Ok(snapshot) => {
                // Queue the copy only now, since the copier must find the record written.
                let lock = self.copies.lock_of(source);
                self.copies.queue(id, source, lock);
                Ok(snapshot)
            }
            Err(failure) => {
                self.copies.end(id);
                Err(failure)
            }
        }
    }

    /// Copies a snapshot. Called by the copier.
    pub(in crate::backend::local) fn copy_snapshot(&self, id: &str) -> Result<(), Failure> {
        match self.try_copy_snapshot(id) {
            Ok(Copied::Whole) => {
                self.copies.end(id);
                Ok(())
            }
            Ok(Copied::Stopped) => {
                let failure = Failure::busy(format!("snapshot {id}: copy cancelled"));
                self.copies.fail(id, failure);
                Ok(())
            }
            Err(failure) => {
                let message = format!(
                    "snapshot {id}: the copy failed and starts again now (delete the snapshot to \
                     stop it): {failure}"
                );
                let told = Failure {
                    message,
                    ..failure.clone()
                };
                self.copies.fail(id, told);
                Err(failure)
            }
        }
    }

    fn try_copy_snapshot(&self, id: &str) -> Result<Copied, Failure> {
        let record = known(id, self.ledger.snapshot(id)?)?;
        if record.state != SnapshotState::Copying {
            return Ok(Copied::Whole);
        }
        if self.complete_whole_snapshot(id)?.is_some() {
            return Ok(Copied::Whole);
        }
        let source = record.source.as_str();
        self.refuse_writer(source, &self.files.get_for_reading(source)?)?;
        let (record, volume, lock) = self.lock_cut(id, source)?;
        let file = match self.snapshots.find(id)? {
            Some(file) => file,
            None => self.snapshots.begin(id)?,
        };
        let copied = file.copy(&lock, record.bytes, || self.copies.wanted(id))?;
        if copied == Copied::Stopped {
            return Ok(copied);
        }
        self.data_in(&file, source, &volume)?;
        file.mark_complete(record.populated)?;
        self.snapshots.sync()?;
        self.ledger.change(|changes| {
            let mut record = known(id, changes.snapshot(id)?)?;
            if record.state == SnapshotState::Copying {
                record.state = SnapshotState::Ready;
                changes.put_snapshot(id, &record)?;
            }
            Ok(copied)
        })
    }
}

impl Store {
    /// Locks a volume for its copy, unless the copy has held the lock since the cut. Without the
    /// lock, the volume may have been used since, and is cut again.
    fn lock_cut(
        &self,
        id: &str,
        source: &str,
    ) -> Result<(SnapshotRecord, Record, Arc<Backing>), Failure> {
        self.provision(|changes, ceiling| {
            let mut record = known(id, changes.snapshot(id)?)?;
            let volume = ready(source, changes.get(source)?)?;
            let lock = self.lock_source(source, &volume)?;
            if self.copies.has_lock(id) {
                return Ok((record, volume, lock));
            }
            whole_bytes(&lock, &volume)?;
            // An expansion may be recorded but not complete.
            let bytes = volume.bytes.min(lock.bytes()?);
            fits(changes, ceiling, bytes.saturating_sub(record.bytes))?;
            let written = self.data_in(&lock, source, &volume)?;
            let volume = self.note_data(changes, source, volume, written)?;
            record.cut_at(SystemTime::now());
            record.bytes = bytes;
            record.populated = volume.was_written();
            changes.put_snapshot(id, &record)?;
            self.copies.keep_lock(id, Arc::clone(&lock));
            Ok((record, volume, lock))
        })
    }
}

fn visible(id: &str, record: &SnapshotRecord) -> Result<Snapshot, Failure> {
    let snapshot = record.snapshot(id)?;
    snapshot.ok_or_else(|| Failure::bug(format!("snapshot {id}: created, but not visible")))
}

fn known(id: &str, record: Option<SnapshotRecord>) -> Result<SnapshotRecord, Failure> {
    record.ok_or_else(|| Failure::bug(format!("snapshot {id}: its record is missing")))
}

fn busy(order: &SnapshotOrder) -> Failure {
    let name = order.name.as_str();
    Failure::busy(format!(
        "name {name:?}: the snapshot is still being created or deleted"
    ))
}
