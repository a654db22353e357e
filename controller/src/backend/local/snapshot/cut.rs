//! Takes ("cuts") a snapshot: records the intent, shares the blocks of the volume's file with the
//! snapshot's file, and records that the snapshot is ready. If the filesystem cannot share blocks,
//! the volume is locked against writes, and a background thread (the copier) copies the data of
//! that moment.

use super::fill::{refuse_growing, torn};
use super::{SnapshotRecord, SnapshotState};
use crate::backend::local::fault::unread;
use crate::backend::local::files::{Backing, Copied};
use crate::backend::local::id;
use crate::backend::local::record::Record;
use crate::backend::local::store::{Store, fits, ready, whole_bytes};
use crate::backend::{Snapshot, SnapshotOrder};
use belay_contract::drivers::local::Claim;
use belay_server::call::Failure;
use std::sync::Arc;
use std::time::SystemTime;

/// The result of looking up the name of a new snapshot.
pub(in crate::backend::local) enum Intent {
    /// A snapshot with this name was taken before.
    Exists(Snapshot),
    /// No snapshot had this name. A record with the state `Cutting` and this ID now reserves it.
    Made(String),
    /// The snapshot with this name is incomplete: an earlier creation or deletion has begun but not
    /// ended.
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
                return match self.copies.failure(snapshot.id.as_str()) {
                    None if snapshot.ready => Ok(snapshot),
                    None => {
                        // The call that took the snapshot may have failed before it queued the
                        // copy.
                        let (id, source) = (snapshot.id.as_str(), snapshot.source.as_str());
                        self.copies.resume(id, source);
                        Ok(snapshot)
                    }
                    Some(failure) => match self.complete_whole_snapshot(snapshot.id.as_str())? {
                        // The copy is complete; only the final update of the ledger has failed.
                        Some(snapshot) => {
                            self.copies.end(snapshot.id.as_str());
                            Ok(snapshot)
                        }
                        // The snapshot was taken, so the caller must not conclude that nothing has
                        // happened.
                        None => Err(failure.may_be_running()),
                    },
                };
            }
        };
        self.fill_or_discard(&id, order.source.as_str())
    }

    /// Looks up the name. If no snapshot has the name, records the intent to take the snapshot. If
    /// an earlier call has failed, first completes or removes the snapshot of that call.
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

    /// Takes the snapshot with this new ID. If the snapshot cannot be taken, removes its file and
    /// record.
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

    /// Looks up the name. If no snapshot has the name, records the intent to take a snapshot.
    pub(in crate::backend::local) fn intend_snapshot(
        &self,
        order: &SnapshotOrder,
    ) -> Result<Intent, Failure> {
        let (name, source) = (order.name.as_str(), order.source.as_str());
        self.provision(|changes, limit| {
            if let Some(id) = changes.snapshot_named(name)? {
                let record = changes.snapshot(&id).map_err(Failure::may_be_running)?;
                let record = record.ok_or_else(|| {
                    Failure::bug(format!("state.redb: name {name:?} refers to no snapshot"))
                        .may_be_running()
                })?;
                return Ok(match record.snapshot(&id)? {
                    Some(snapshot) => Intent::Exists(snapshot),
                    // The call that began to take the snapshot has ended, since only one thread at
                    // a time works on a name.
                    None => Intent::Remains(id),
                });
            }
            let volume = ready(source, changes.get(source)?)?;
            fits(changes, limit, volume.bytes)?;
            let id = id::fresh(id::SNAPSHOT)?;
            let record = SnapshotRecord::cutting(name, source, &volume);
            changes.put_snapshot(&id, &record)?;
            Ok(Intent::Made(id))
        })
    }

    pub(in crate::backend::local) fn fill_snapshot(
        &self,
        id: &str,
        source: &str,
    ) -> Result<Snapshot, Failure> {
        // Volumes do not shrink, so the current minimum size of the file also applies when the
        // blocks are shared.
        let volume = ready(source, self.ledger.get(source)?)?;
        let from = self.backing_for_reading(source)?;
        let least_bytes = whole_bytes(&from, &volume)?;
        self.refuse_replaced(source, &from, false)?;
        // FICLONE locks the file while it writes dirty data to disk, which blocks pods that use the
        // volume. Write most of the dirty data before FICLONE, so that the lock is held only
        // briefly.
        from.sync()?;
        let file = self.snapshots.begin(id)?;
        if !file.share(&from, least_bytes)? {
            return self.leave_to_copier(id, source, &from);
        }
        let cut_at = SystemTime::now();
        self.finish_file(&file, &from, &volume)?;
        self.complete_snapshot(id, &file, cut_at)
    }

    /// Marks the complete file of a snapshot as never used, if the volume was never used, and
    /// records its size.
    fn finish_file(&self, file: &Backing, from: &Backing, volume: &Record) -> Result<(), Failure> {
        if self.is_new(from, file, volume)? {
            file.mark_new()?;
        }
        file.grow(file.bytes()?)?;
        self.snapshots.sync()
    }

    /// Records that the snapshot is ready, and the size of its file.
    pub(in crate::backend::local) fn complete_snapshot(
        &self,
        id: &str,
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
            changes.put_snapshot(id, &record)?;
            Ok(snapshot)
        })
    }

    /// Completes a snapshot whose file is complete although its record is not. The record is out of
    /// date if a crash followed the completion of the file, or if state.redb was restored from an
    /// older backup. Returns `None` if the file has no recorded size, since it may then be
    /// incomplete.
    pub(in crate::backend::local) fn complete_whole_snapshot(
        &self,
        id: &str,
    ) -> Result<Option<Snapshot>, Failure> {
        let Some(record) = self.ledger.snapshot(id)? else {
            // Another call has deleted the snapshot since the name was looked up.
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
        if file.recorded_bytes()?.is_none() {
            return Ok(None);
        }
        // The time of the snapshot is not recorded yet. The mtime of the file is the best
        // approximation of this time.
        let (bytes, modified) = (file.bytes()?, file.modified()?);
        let completed = self.ledger.change(|changes| {
            let mut record = known(id, changes.snapshot(id)?)?;
            if !is_copied {
                record.cut_at(modified);
            }
            record.bytes = bytes;
            record.state = SnapshotState::Ready;
            let snapshot = visible(id, &record)?;
            changes.put_snapshot(id, &record)?;
            Ok(snapshot)
        });
        completed.map(Some)
    }

    /// Queues the copy of a snapshot whose blocks cannot be shared. From here on, the volume's file
    /// is locked. A claim (an extended attribute) on the file prevents the node agent from staging
    /// the volume if this process is killed.
    pub(in crate::backend::local) fn leave_to_copier(
        &self,
        id: &str,
        source: &str,
        from: &Backing,
    ) -> Result<Snapshot, Failure> {
        self.refuse_writer(source, from)?;
        let lock = self.lock_source(id, source)?;
        let claimed = lock.claim(&Claim::Copy(id.to_owned()));
        let held = claimed
            .and_then(|()| lock.sync())
            .and_then(|()| self.hold(id, source, from));
        match held {
            // Queue the copy only after the record is written, since the copier reads the record.
            Ok(_) => self.copies.queue(id, source, Some(lock)),
            Err(_) => self.copies.end(id),
        }
        held
    }

    /// Records that the snapshot was taken and is being copied from the locked volume.
    fn hold(&self, id: &str, source: &str, from: &Backing) -> Result<Snapshot, Failure> {
        self.ledger.change(|changes| {
            let volume = ready(source, changes.get(source)?)?;
            whole_bytes(from, &volume)?;
            refuse_growing(source, &volume)?;
            self.is_new(from, from, &volume)?;
            let mut record = known(id, changes.snapshot(id)?)?;
            record.cut_at(SystemTime::now());
            record.state = SnapshotState::Copying;
            record.bytes = volume.bytes;
            let snapshot = visible(id, &record)?;
            changes.put_snapshot(id, &record)?;
            Ok(snapshot)
        })
    }

    /// Copies the data of a snapshot. Called by the copier.
    pub(in crate::backend::local) fn copy_snapshot(&self, id: &str) -> Result<(), Failure> {
        match self.try_copy_snapshot(id) {
            Ok(Copied::Whole) => {
                let ended = self.end_copy(id);
                self.copies.end(id);
                ended
            }
            // The claim remains on the volume's file, so that the next start resumes the copy.
            Ok(Copied::Stopped) => {
                let failure = Failure::busy(format!("snapshot {id}: copy cancelled"));
                self.copies.fail(id, failure);
                Ok(())
            }
            Err(failure) => {
                let told = Failure::precondition(format!(
                    "snapshot {id}: the copy failed: {failure}; the volume may have changed since, \
                     so delete the snapshot and create another"
                ));
                if let Err(also) = self.end_copy(id) {
                    tracing::error!(snapshot = id, "the claim of its copy is left: {also}");
                }
                self.copies.fail(id, told);
                Err(failure)
            }
        }
    }

    /// Removes the claim of a copy that has ended, through the open file if possible. The removal
    /// of the claim is on disk when this method returns. If a power failure restored the claim, the
    /// next start would resume a copy that has failed.
    fn end_copy(&self, id: &str) -> Result<(), Failure> {
        match self.copies.lock(id) {
            Some(source) => {
                source.end_claim(&Claim::Copy(id.to_owned()))?;
                source.sync()
            }
            None => self.end_claim(id),
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
        let lock = match self.copies.lock(id) {
            Some(lock) => lock,
            None => self.lock_again(id, source)?,
        };
        let volume = ready(source, self.ledger.get(source)?)?;
        let file = match self.snapshots.find(id)? {
            Some(file) => file,
            None => self.snapshots.begin(id)?,
        };
        let copied = file.copy(&lock, record.bytes, || self.copies.wanted(id))?;
        if copied == Copied::Stopped {
            return Ok(copied);
        }
        self.finish_file(&file, &lock, &volume)?;
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
    /// Locks a volume whose copy was begun before this process started. Fails if the claim is
    /// missing, since the volume may have changed after the snapshot was taken.
    fn lock_again(&self, id: &str, source: &str) -> Result<Arc<Backing>, Failure> {
        self.refuse_writer(source, &self.files.get_for_reading(source)?)?;
        let backing = self.backing(source)?;
        if !backing.lock_soon()? {
            return Err(torn(source, "bound to a loop device of this node"));
        }
        if backing.claimed()? != Some(Claim::Copy(id.to_owned())) {
            return Err(Failure::precondition(format!(
                "snapshot {id}: its copy was interrupted, and volume {source} may have changed \
                 since"
            )));
        }
        let lock = Arc::new(backing);
        self.copies.keep_lock(id, Arc::clone(&lock));
        Ok(lock)
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
