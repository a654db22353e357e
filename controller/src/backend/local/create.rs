//! Making a volume: the name is looked up and the intent written in one transaction; then the file
//! is made; then the volume is ready.

use super::id;
use super::record::{Record, State};
use super::store::{Store, fits};
use crate::backend::{Order, Volume};
use belay_server::failure::Failure;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the name led to.
pub(super) enum Intent {
    /// A volume that is ready.
    Exists(Volume),
    /// Nothing: this id is now taken for it.
    Made(String),
    /// A volume whose making or removal was begun and failed.
    Remains(String, Record),
}

impl Store {
    pub(super) fn create(&self, order: &Order) -> Result<Volume, Failure> {
        let _making = Making::begin(&self.making, order)?;
        let id = match self.intend(order)? {
            Intent::Exists(volume) => return Ok(volume),
            Intent::Made(id) => id,
            Intent::Remains(old, record) => {
                self.clear(&old, &record)?;
                match self.intend(order)? {
                    Intent::Exists(volume) => return Ok(volume),
                    Intent::Made(id) => id,
                    Intent::Remains(..) => return Err(busy(order)),
                }
            }
        };
        match self.files.begin(&id) {
            Ok(backing) => {
                if let Err(failure) = backing.grow(order.bytes).and_then(|()| self.files.sync()) {
                    return Err(give_up(failure, self.give_up(&id)));
                }
            }
            // There is no file of ours, so nothing may be removed.
            Err(failure) => {
                return Err(give_up(
                    failure,
                    self.ledger.change(|changes| changes.forget(&id)),
                ));
            }
        }
        self.complete(&id)
    }

    /// The first step.
    pub(super) fn intend(&self, order: &Order) -> Result<Intent, Failure> {
        let ceiling = self.overcommit.ceiling(&self.files, &self.ledger)?;
        let name = order.name.as_str();
        self.ledger.change(|changes| {
            if let Some(id) = changes.id_of(name)? {
                let record = changes.get(&id)?.ok_or_else(|| {
                    Failure::bug(format!("state.redb: name {name:?} leads to no volume"))
                })?;
                return match record.state {
                    State::Ready => Ok(Intent::Exists(record.volume(&id)?)),
                    // Whoever began it is gone: there is one maker for a name.
                    State::Creating | State::Deleting => Ok(Intent::Remains(id, record)),
                };
            }
            fits(changes, ceiling, order.bytes)?;
            let id = id::fresh()?;
            changes.put(&id, &Record::creating(name, order.bytes, &order.usage))?;
            Ok(Intent::Made(id))
        })
    }

    /// The last step. If it fails, record and file are there all the same.
    pub(super) fn complete(&self, id: &str) -> Result<Volume, Failure> {
        let completed = self.ledger.change(|changes| {
            let mut record = changes
                .get(id)?
                .ok_or_else(|| Failure::bug(format!("volume {id}: its record is gone")))?;
            record.state = State::Ready;
            changes.put(id, &record)?;
            record.volume(id)
        });
        completed.map_err(Failure::may_be_running)
    }

    /// Removes what a failed creation left. If that fails too, the volume remains as one to be
    /// deleted, which the next call for its name, or the next start, does.
    fn give_up(&self, id: &str) -> Result<(), Failure> {
        self.begin_delete(id)?;
        self.finish_delete(id)
    }
}

/// The only maker of that name for as long as it lives.
struct Making<'s> {
    names: &'s Mutex<HashSet<String>>,
    name: &'s str,
}

impl<'s> Making<'s> {
    fn begin(names: &'s Mutex<HashSet<String>>, order: &'s Order) -> Result<Self, Failure> {
        let name = order.name.as_str();
        if !held(names).insert(name.to_owned()) {
            return Err(busy(order));
        }
        Ok(Self { names, name })
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        held(self.names).remove(self.name);
    }
}

fn held(names: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_up(failure: Failure, cleaned: Result<(), Failure>) -> Failure {
    match cleaned {
        Ok(()) => failure.rolled_back(),
        Err(also) => Failure {
            message: format!("{failure}; and cleaning up: {also}"),
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
