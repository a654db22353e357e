//! Creating a volume. One transaction looks up the name and writes the intent. Then the file is
//! created, and filled if there is a source. Then the volume becomes ready.

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
    /// A ready volume has the name.
    Exists(Volume),
    /// No volume has the name, and this ID is now reserved for it.
    Made(String),
    /// The name belongs to a volume whose creation or deletion was started and failed.
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
            // Creating the file failed, so there is no file to remove.
            Err(failure) => Err(give_up(
                failure,
                self.ledger.change(|changes| changes.forget(&id)),
            )),
        }
    }

    /// Looks up the name and writes the intent, after completing or removing the remains of a
    /// failed call.
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

    /// Fills the file from the source, if there is one, and enlarges it.
    fn make(
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
            // Without data, nothing must be on the disk before the size.
            file.enlarge(bytes)?;
            file.record_bytes(bytes)?;
            file.sync()?;
        }
        self.files.sync()
    }

    /// Looks up the name; if no volume has it, writes the intent.
    pub(super) fn intend(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
    ) -> Result<Intent, Failure> {
        let name = order.name.as_str();
        // Check the topology first: a `Quota` from the transaction would cause a scan of all files.
        if let Err(refusal) = self.refuse_elsewhere(order)
            && self.ledger.find(name)?.is_none()
        {
            return Err(refusal);
        }
        self.provision(|changes, ceiling| {
            if let Some(id) = changes.id_of(name)? {
                let record = changes.get(&id)?.ok_or_else(|| {
                    Failure::bug(format!("state.redb: name {name:?} refers to no volume"))
                        .may_be_running()
                })?;
                return match record.state {
                    State::Ready => Ok(Intent::Exists(self.volume(&id, &record)?)),
                    // The creation that began has ended, since only one at a time works on a name.
                    // A deletion may still run: it holds the lock of the file.
                    State::Creating | State::Deleting => Ok(Intent::Remains(id, record)),
                };
            }
            self.refuse_elsewhere(order)?;
            fits(changes, ceiling, order.bytes)?;
            let id = id::fresh(id::VOLUME)?;
            let record = Record::creating(name, order.bytes, &order.usage, source);
            changes.put(&id, &record)?;
            Ok(Intent::Made(id))
        })
    }

    /// Refuses a new volume that must be accessible only from other topologies.
    ///
    /// # Errors
    /// Returns `Quota`, so that the scheduler selects another node.
    fn refuse_elsewhere(&self, order: &Order) -> Result<(), Failure> {
        match (&self.place, &order.topology) {
            (Some(here), Some(asked)) if !here.satisfies(asked) => Err(Failure::quota(format!(
                "accessibility_requirements: volumes can only be at {}",
                here.describe()
            ))),
            _ => Ok(()),
        }
    }

    /// Marks the volume as ready. If that fails, the record and the file remain.
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

    /// Completes a volume whose file is complete although its record is not: a crash came in
    /// between, or state.redb was restored from an older backup. Returns `None` if the file has no
    /// recorded size.
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

    /// Removes the remains of a failed creation. If the removal fails as well, the volume remains
    /// marked for deletion, and the next call for its name, or the next start, deletes it.
    fn give_up(&self, id: &str) -> Result<(), Failure> {
        self.begin_delete(id)?;
        self.finish_delete(id)
    }
}

fn give_up(failure: Failure, cleaned: Result<(), Failure>) -> Failure {
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
