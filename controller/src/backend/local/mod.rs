//! The embedded backend: volumes are sparse files in one directory of one node, thinly provisioned.
//! This file moves the verbs of [`Store`], which block, off the runtime's threads.

mod attach;
mod create;
mod delete;
mod fault;
mod files;
mod id;
mod ledger;
mod record;
mod recover;
mod resize;
mod space;
mod state_file;
mod store;
#[cfg(test)]
mod tests;

pub use space::{Overcommit, OvercommitError};

use crate::backend::{
    Answer, AttachOrder, Attachment, Backend, Capacity, Order, Page, Sizes, Volume,
};
use belay_server::failure::{Failure, Kind};
use belay_server::readiness::{Readiness, State};
use belay_server::request::{Name, NodeId, VolumeId};
use std::path::PathBuf;
use std::sync::Arc;
use store::Store;

/// Sizes are multiples of this, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// What `local` must be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where `state.redb`, `lock` and `volumes/` are. It must exist; they are made if missing.
    pub state_dir: PathBuf,
    /// The node that this controller runs on, and the only one its volumes can be attached to.
    pub node: NodeId,
    /// How many times over the room may be promised.
    pub overcommit: Overcommit,
}

/// The backend.
#[derive(Debug)]
pub struct Local {
    store: Arc<Store>,
    readiness: Readiness,
}

impl Local {
    /// Takes the state directory for this process, and mends what an earlier one left half done.
    /// Blocks; call it before the runtime serves. From then on `readiness` tells whether the state
    /// can be read and written.
    ///
    /// # Errors
    /// `Precondition` if the directory is missing, not whole, or another process has it, else what
    /// is wrong with it.
    pub fn open(config: Config, readiness: Readiness) -> Result<Self, Failure> {
        describe_metrics();
        let store = Store::open(config)?;
        store.recover()?;
        Ok(Self {
            store: Arc::new(store),
            readiness,
        })
    }

    fn run<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Store) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'_, T> {
        let (store, readiness) = (Arc::clone(&self.store), self.readiness.clone());
        let checked = move || {
            if readiness.state() != State::Ready {
                mend(&store, &readiness);
            }
            let result = verb(&store);
            if matches!(&result, Err(failure) if failure.kind == Kind::Unreachable) {
                mend(&store, &readiness);
            }
            result
        };
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(checked).await;
            done.unwrap_or_else(|error| Err(Failure::bug(error.to_string()).may_be_running()))
        })
    }
}

/// One failed read or write must not stop all later ones.
fn mend(store: &Store, readiness: &Readiness) {
    let before = readiness.state();
    match store.ledger.mend() {
        Ok(()) if before == State::Ready => {}
        Ok(()) => {
            tracing::info!("the state can be written again");
            readiness.set(State::Ready);
        }
        Err(failure) => {
            if before == State::Ready {
                tracing::error!("{failure}");
            }
            readiness.set(State::Unhealthy(failure.message));
        }
    }
}

fn describe_metrics() {
    use metrics::{Unit, describe_gauge};
    describe_gauge!("belay_controller_volumes", "Volumes that are ready.");
    describe_gauge!(
        "belay_controller_provisioned_bytes",
        Unit::Bytes,
        "What is promised to all volumes together."
    );
    describe_gauge!(
        "belay_controller_capacity_bytes",
        Unit::Bytes,
        "What may be promised to all volumes together."
    );
}

impl Backend for Local {
    fn sizes(&self) -> Sizes {
        let largest = self.store.largest_file_bytes;
        Sizes {
            step: STEP_BYTES,
            min: STEP_BYTES,
            max: largest - largest % STEP_BYTES,
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    fn create(&self, order: Order) -> Answer<'_, Volume> {
        self.run(move |store| store.create(&order))
    }

    fn delete(&self, id: VolumeId) -> Answer<'_, ()> {
        self.run(move |store| store.delete(id.as_str()))
    }

    fn find(&self, name: Name) -> Answer<'_, Option<Volume>> {
        self.run(move |store| store.find(&name))
    }

    fn get(&self, id: VolumeId) -> Answer<'_, Option<Volume>> {
        self.run(move |store| store.get(&id))
    }

    fn list(&self, after: Option<String>, limit: usize) -> Answer<'_, Page> {
        self.run(move |store| store.list(after.as_deref(), limit))
    }

    fn attach(&self, order: AttachOrder) -> Answer<'_, Attachment> {
        self.run(move |store| store.attach(&order))
    }

    fn detach(&self, id: VolumeId, node: NodeId) -> Answer<'_, ()> {
        self.run(move |store| store.detach(id.as_str(), &node))
    }

    fn resize(&self, id: VolumeId, bytes: u64) -> Answer<'_, u64> {
        self.run(move |store| store.resize(id.as_str(), bytes))
    }

    fn capacity(&self) -> Option<&dyn Capacity> {
        Some(self)
    }
}

impl Capacity for Local {
    fn available_bytes(&self) -> Answer<'_, u64> {
        self.run(Store::available_bytes)
    }
}
