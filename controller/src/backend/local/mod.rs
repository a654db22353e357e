//! The backend `local`: volumes are sparse files in a directory of one node, thinly provisioned.
//! This file runs the methods of [`Store`], which block, on threads outside of the async runtime.

mod copies;
mod create;
mod delete;
mod facts;
mod fault;
mod files;
mod health;
pub(in crate::backend) mod id;
mod ledger;
mod loops;
mod ordered;
pub mod orders;
mod record;
mod recover;
mod resize;
mod slots;
mod snapshot;
mod snapshot_record;
mod space;
mod state_file;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use slots::THREADS_MAX;
pub use space::{Overcommit, OvercommitError};

use crate::backend::Progress::{self, Done};
use crate::backend::measured::{self, Verb, measured};
use crate::backend::{
    Answer, Backend, Capacity, Clones, Expansion, Health, Order, Page, Planned, Sizes, Snapshot,
    SnapshotOrder, SnapshotPage, Snapshots, UnhealthyPage, Volume,
};
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::health::Conditions;
use belay_server::readiness::{Readiness, State};
use belay_server::request::{ContentSource, Context, Name, Secrets, SnapshotId, VolumeId};
use copies::Copies;
use delete::Deletion;
use slots::{AllSlots, Slot, Slots};
use state_file::unless_damaged;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use store::Store;
use tokio::time::Instant;

/// Maximum time that a deletion waits for NodeUnstageVolume, which often runs at the same time.
const UNSTAGE_PATIENCE: Duration = Duration::from_secs(5);
const UNSTAGE_POLL: Duration = Duration::from_millis(50);

/// The granularity of volume sizes, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that contains `state.redb`, `lock`, `volumes/` and `snapshots/`. The directory
    /// must exist. Missing files and subdirectories are created.
    pub state_dir: PathBuf,
    /// The topology of the node; `None` if volumes report no topology.
    pub place: Option<Topology>,
    /// The maximum ratio of provisioned space to actual space.
    pub overcommit: Overcommit,
    /// Whether the record of an interrupted creation is kept at the start.
    pub keeps_intents: bool,
    /// Whether the start fails if the directory contains no state. Set this after the first start.
    /// From then on, missing state means that the disk is not mounted.
    pub require_state: bool,
}

/// The backend for files on the controller's node.
#[derive(Debug)]
pub struct Local {
    store: Arc<Store>,
    readiness: Readiness,
    slots: AllSlots,
    last: facts::Last,
}

impl Local {
    /// Locks the state directory for this process, and recovers from an earlier crash. This
    /// function blocks, so it must be called before the server accepts calls. When it returns,
    /// `readiness` reports whether the state can be read and written.
    ///
    /// # Errors
    /// Returns `Precondition` if the directory is missing, incomplete or used by another process,
    /// and otherwise the errors of reading the directory.
    pub fn open(config: Config, readiness: Readiness) -> Result<Self, Failure> {
        describe_metrics();
        let store = Arc::new(unless_damaged(|| Store::start(config))?);
        let (copies, copied) = (Arc::clone(&store.copies), Arc::downgrade(&store));
        let told = readiness.clone();
        std::thread::Builder::new()
            .name("copier".to_owned())
            .spawn(move || copy_all(&copies, &copied, &told))
            .map_err(|error| {
                Failure::bug(format!(
                    "cannot start a thread: {error}; raise the limit of processes"
                ))
            })?;
        Ok(Self {
            store,
            readiness,
            slots: AllSlots::new(),
            last: facts::Last::default(),
        })
    }

    /// Runs a read-only method. If the caller disconnects while the method waits for a slot, the
    /// method does not start.
    fn ask<T: Send + 'static>(
        &self,
        verb: Verb,
        work: impl FnOnce(&Store) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'_, T> {
        self.run(&self.slots.questions, verb, work)
    }

    fn change<T: Send + 'static>(
        &self,
        verb: Verb,
        work: impl FnOnce(&Store) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'_, T> {
        self.run(&self.slots.changes, verb, work)
    }

    /// Runs a change that may copy data for a long time.
    fn copy<T: Send + 'static>(
        &self,
        verb: Verb,
        work: impl FnOnce(&Store) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'_, T> {
        self.run(&self.slots.copies, verb, work)
    }

    fn run<'a, T: Send + 'static>(
        &'a self,
        slots: &'a Slots,
        verb: Verb,
        work: impl FnOnce(&Store) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let slot = slots.take().await?;
            measured(verb, self.work(slot, work)).await
        })
    }

    async fn work<T: Send + 'static>(
        &self,
        slot: Slot,
        work: impl FnOnce(&Store) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (store, readiness) = (Arc::clone(&self.store), self.readiness.clone());
        let work = move || {
            let _slot = slot;
            checked(&store, &readiness, work)
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(Failure::bug(error.to_string()).may_be_running()))
    }
}

/// Runs `verb`. If necessary, reopens the database before or after `verb`, so that one failed read
/// or write does not make all later reads and writes fail.
fn checked<T>(
    store: &Store,
    readiness: &Readiness,
    verb: impl FnOnce(&Store) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if readiness.state() != State::Ready {
        mend(store, readiness);
    }
    let result = verb(store);
    if matches!(&result, Err(failure) if failure.kind == Kind::Unreachable) {
        mend(store, readiness);
    }
    result
}

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

/// Makes the queued copies in the background. Makes one copy at a time, because all copies share a
/// disk.
fn copy_all(copies: &Copies, store: &Weak<Store>, readiness: &Readiness) {
    while let Some(snapshot) = copies.next() {
        let Some(store) = store.upgrade() else { return };
        let copied = checked(&store, readiness, |store| store.copy_snapshot(&snapshot));
        if let Err(failure) = copied {
            tracing::error!(snapshot, "copy: {failure}");
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.store.copies.close();
    }
}

fn describe_metrics() {
    use metrics::{Unit, describe_counter, describe_gauge};
    measured::describe();
    describe_gauge!(
        copies::COPIES,
        "Copies that fill snapshots and volumes, by state."
    );
    describe_counter!(
        files::COPIED_BYTES,
        Unit::Bytes,
        "Data copied where files cannot share blocks."
    );
    describe_counter!(
        files::UNCHECKED,
        "Copies made although the filesystem does not report a file's other writers."
    );
    for counter in [files::COPIED_BYTES, files::UNCHECKED] {
        metrics::counter!(counter).increment(0);
    }
    describe_gauge!("belay_controller_volumes", "Volumes that are ready.");
    describe_gauge!("belay_controller_snapshots", "Snapshots that are ready.");
    describe_gauge!(
        "belay_controller_provisioned_bytes",
        Unit::Bytes,
        "Bytes provisioned for all volumes and snapshots."
    );
    describe_gauge!(
        "belay_controller_capacity_bytes",
        Unit::Bytes,
        "Bytes that may be provisioned for all volumes and snapshots."
    );
}

impl Backend for Local {
    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        Ok(self.store.sizes())
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        self.change(Verb::Create, move |store| store.create(&order, None))
    }

    fn delete(&self, id: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        Box::pin(measured(Verb::Delete, async move {
            let deadline = Instant::now() + UNSTAGE_PATIENCE;
            loop {
                let volume = id.clone();
                let attempt = move |store: &Store| store.try_delete(volume.as_str());
                match self.work(self.slots.changes.take().await?, attempt).await? {
                    Deletion::Done => return Ok(Done(())),
                    // The kernel sends no event when another process closes the file, so poll.
                    Deletion::InUse if Instant::now() < deadline => {
                        tokio::time::sleep(UNSTAGE_POLL).await;
                    }
                    Deletion::InUse => {
                        let refuse = move |store: &Store| Err(store.refuse_used(id.as_str()));
                        return self.work(self.slots.changes.take().await?, refuse).await;
                    }
                }
            }
        }))
    }

    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        self.ask(Verb::Find, move |store| {
            Ok(store.find(&name)?.into_iter().collect())
        })
    }

    fn get(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        self.ask(Verb::Get, move |store| store.get(&id))
    }

    fn list(&self, after: Option<String>, limit: usize, _: Secrets) -> Answer<'_, Page> {
        self.ask(Verb::List, move |store| store.list(after.as_deref(), limit))
    }

    supports! {
        expansion: Expansion, capacity: Capacity, snapshots: Snapshots,
        clones: Clones, health: Health
    }
}

impl Expansion for Local {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        self.store.sizes()
    }

    fn resize(&self, id: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        self.change(Verb::Resize, move |store| {
            store.resize(id.as_str(), bytes).map(Done)
        })
    }
}

impl Health for Local {
    fn health(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Conditions>> {
        self.ask(Verb::Health, move |store| store.health(&id))
    }

    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>> {
        self.ask(Verb::Conditions, move |store| store.conditions(&volumes))
    }

    fn list_unhealthy(
        &self,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, UnhealthyPage> {
        self.ask(Verb::ListUnhealthy, move |store| {
            store.list_unhealthy(after.as_deref(), limit)
        })
    }
}

impl Snapshots for Local {
    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        self.copy(Verb::Cut, move |store| store.settled(store.cut(&order)?))
    }

    fn discard(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        self.change(Verb::Discard, move |store| {
            store.discard(id.as_str()).map(Done)
        })
    }

    fn snapshot(&self, id: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        self.ask(Verb::Snapshot, move |store| store.snapshot(&id))
    }

    fn list_snapshots(
        &self,
        of: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        self.ask(Verb::ListSnapshots, move |store| {
            store.list_snapshots(of.as_ref(), after.as_deref(), limit)
        })
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        let source = ContentSource::Snapshot(from);
        self.copy(Verb::Restore, move |store| {
            store.create(&order, Some(&source))
        })
    }
}

impl Clones for Local {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        let source = ContentSource::Volume(from);
        self.copy(Verb::Clone, move |store| {
            store.create(&order, Some(&source))
        })
    }
}

impl Capacity for Local {
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        self.ask(Verb::Available, move |store| {
            store.available_bytes(planned.topology.as_ref())
        })
    }
}
