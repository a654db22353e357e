//! Creates a volume. One transaction looks up the name and records the intent to create the volume.
//! This module then creates the volume's file, copies the data of the source (if the request names
//! one) into the file, and records that the volume is ready.

use super::fault::unread;
use super::files::Backing;
use super::id;
use super::record::{Record, State};
use super::store::{Store, fits};
use crate::backend::{Order, Volume};
use belay_server::call::Failure;
use belay_server::request::ContentSource;

/// The result of looking up the name of a new volume.
pub(super) enum Intent {
    /// A ready volume has this name.
    Exists(Volume),
    /// No volume had this name. A record with the state `Creating` and this ID now reserves it.
    Made(String),
    /// The volume with this name is incomplete: an earlier creation or deletion has begun but not
    /// ended.
    Remains(String, Record),
}

impl Store {
    pub(super) fn create(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
    ) -> Result<Volume, Failure> {
        let name = order.name.as_str();
        let _in_progress = self.in_progress.begin(name).ok_or_else(|| busy(order))?;
        let id = match self.intended(order, source).map_err(unread)? {
            Intent::Exists(volume) => return Ok(volume),
            Intent::Made(id) => id,
            Intent::Remains(..) => return Err(busy(order)),
        };
        match self.files.begin(&id) {
            Ok(file) => match self.make(&id, &file, order.bytes, source) {
                Ok(()) => self.complete(&id),
                Err(failure) => Err(give_up(failure, self.give_up(&id))),
            },
            // The volume's file was not created, so only the record must be removed.
            Err(failure) => Err(give_up(
                failure,
                self.ledger.change(|changes| changes.forget(&id)),
            )),
        }
    }

    /// Looks up the name. If no volume has the name, records the intent to create the volume. If an
    /// earlier call has failed, first completes or removes the volume of that call.
    fn intended(&self, order: &Order, source: Option<&ContentSource>) -> Result<Intent, Failure> {
        let intent = self.intend(order, source)?;
        let Intent::Remains(old, record) = intent else {
            return Ok(intent);
        };
        if let Some(volume) = self.complete_whole(&old, &record)? {
            return Ok(Intent::Exists(volume));
        }
        self.clear(&old, &record)?;
        self.intend(order, source)
    }

    /// Copies the data of the source (if the request names one) into the file, and enlarges the
    /// file to the requested size.
    pub(super) fn make(
        &self,
        id: &str,
        file: &Backing,
        bytes: u64,
        source: Option<&ContentSource>,
    ) -> Result<(), Failure> {
        let is_new = match source {
            None => true,
            Some(source) => self.fill(id, file, bytes, source)?,
        };
        if is_new {
            file.mark_new()?;
        }
        if source.is_some() {
            file.grow(bytes)?;
        } else {
            // An empty file has no data that must be on disk before the recorded size, so one sync
            // at the end suffices.
            file.enlarge(bytes)?;
            file.record_bytes(bytes)?;
            file.sync()?;
        }
        self.files.sync()
    }

    /// Looks up the name. If no volume has the name, records the intent to create a volume.
    pub(super) fn intend(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
    ) -> Result<Intent, Failure> {
        let name = order.name.as_str();
        // Check the topology before the transaction: if the transaction returned `Quota`,
        // `provision` would scan all files and repeat it.
        if let Err(refusal) = self.refuse_elsewhere(order)
            && self.ledger.find(name)?.is_none()
        {
            return Err(refusal);
        }
        self.provision(|changes, limit| {
            if let Some(id) = changes.id_of(name)? {
                let record = changes.get(&id)?.ok_or_else(|| {
                    Failure::bug(format!("state.redb: name {name:?} refers to no volume"))
                        .may_be_running()
                })?;
                return match record.state {
                    State::Ready => Ok(Intent::Exists(self.volume(&id, &record)?)),
                    // The call that began the creation has ended, since only one thread at a time
                    // works on a name. A deletion may still be running; the deletion holds the lock
                    // of the file.
                    State::Creating | State::Deleting => Ok(Intent::Remains(id, record)),
                };
            }
            self.refuse_elsewhere(order)?;
            fits(changes, limit, order.bytes)?;
            let id = id::fresh(id::VOLUME)?;
            let record = Record::creating(name, order.bytes, &order.usage, source);
            changes.put(&id, &record)?;
            Ok(Intent::Made(id))
        })
    }

    /// Refuses a new volume that must only be reachable from other topologies.
    ///
    /// # Errors
    /// Returns `Quota`, so that the Kubernetes scheduler selects a different node.
    fn refuse_elsewhere(&self, order: &Order) -> Result<(), Failure> {
        match (&self.place, &order.topology) {
            (Some(here), Some(asked)) if !here.satisfies(asked) => Err(Failure::quota(format!(
                "accessibility_requirements: volumes can only be at {}",
                here.describe()
            ))),
            _ => Ok(()),
        }
    }

    /// Records that the volume is ready. If the change of the record fails, the record and the file
    /// remain.
    pub(super) fn complete(&self, id: &str) -> Result<Volume, Failure> {
        let completed = self.ledger.change(|changes| {
            let mut record = changes
                .get(id)?
                .ok_or_else(|| Failure::bug(format!("volume {id}: its record is missing")))?;
            record.state = State::Ready;
            let volume = self.volume(id, &record)?;
            changes.put(id, &record)?;
            Ok(volume)
        });
        completed.map_err(Failure::may_be_running)
    }

    /// Completes a volume whose file is complete although its record is not. The record is out of
    /// date if a crash followed the completion of the file, or if state.redb was restored from an
    /// older backup. Returns `None` if the file has no recorded size, since it may then be
    /// incomplete.
    pub(super) fn complete_whole(
        &self,
        id: &str,
        record: &Record,
    ) -> Result<Option<Volume>, Failure> {
        if record.state != State::Creating || record.source.is_none() {
            return Ok(None);
        }
        let Some(file) = self.files.find(id)? else {
            return Ok(None);
        };
        if file.recorded_bytes()?.is_none() {
            return Ok(None);
        }
        file.refuse_truncated(record.bytes)?;
        self.complete(id).map(Some)
    }

    /// Removes the file and the record of a failed creation. If the removal fails, too, the volume
    /// remains marked for deletion. The next call with the volume's name, or the next start of the
    /// controller, deletes the volume.
    fn give_up(&self, id: &str) -> Result<(), Failure> {
        self.begin_delete(id)?;
        self.finish_delete(id)
    }
}

/// Adds the failure of a cleanup to the failure that made it necessary.
pub(super) fn give_up(failure: Failure, cleaned: Result<(), Failure>) -> Failure {
    match cleaned {
        Ok(()) => failure.rolled_back(),
        Err(also) => Failure {
            message: format!("{failure}; the cleanup failed too: {also}"),
            ..failure.may_be_running()
        },
    }
}

fn busy(order: &Order) -> Failure {
    let name = order.name.as_str();
    Failure::busy(format!(
        "name {name:?}: the volume is still being created or deleted"
    ))
}
