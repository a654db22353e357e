//! The backend of `local` for all nodes of a cluster: volumes are objects of the API server, and
//! the store of each node creates their files. Each change of an object is conditional on its
//! version, so that several controllers can run at once. The README of this directory describes the
//! stored data.

mod adopt;
mod cache;
mod create;
mod disks;
#[cfg(test)]
mod examples;
mod figures;
mod follow;
mod gone;
mod grow;
mod health;
mod item;
mod meaning;
mod permit;
mod place;
mod rehome;
mod remove;
mod settle;
mod shown;
mod snapshots;
mod sweep;
mod totals;
mod unclaimed;

use super::measured::{self, Verb, measured};
use super::{
    Answer, Backend, Capacity, Clones, Expansion, Health, Order, Page, Planned, Progress, Sizes,
    Snapshots, Traits, Volume,
};
use crate::backend::local::id;
use crate::http;
use crate::kubernetes::{Access, Client, LocalDisk, LocalSnapshot, LocalVolume};
use belay_contract::drivers::LOCAL;
use belay_contract::drivers::local::{
    DEFAULT_DISK, DISK, SILENT_AFTER, UNCLAIMED_AFTER, is_disk_name,
};
use belay_server::call::Failure;
use belay_server::lock::Lock;
use belay_server::request::{Context, Name, Secrets, VolumeId};
use cache::{Cache, Cached};
use follow::Waits;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The topology key of the volumes.
const KEY: &str = LOCAL.topology_key;

/// The granularity of volume sizes, in bytes.
const STEP_BYTES: u64 = 1 << 20;
/// The maximum size of a volume in bytes: the limit of the most limited filesystem, ext4.
const MAX_BYTES: u64 = 16 << 40;

/// The time that the start waits for the first lists of objects.
const FIRST_LISTS: Duration = Duration::from_secs(10);

/// The times after which the front no longer waits for a store.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time in which a store must accept an order.
    pub accept: Duration,
    /// The time that a call waits for the acceptance if the disk has an older order that is not
    /// accepted, and after which such a disk gets no further orders. Callers have few workers,
    /// which the orders for one dead node must not occupy.
    pub hold: Duration,
    /// The time in which a store must report each of its disks, and after which a disk without a
    /// LocalDisk is gone.
    pub silent: Duration,
    /// The time after which an order that no call waits for is withdrawn.
    pub idle: Duration,
    /// The time after which the disks of a deleted Node are forgotten.
    pub departed: Duration,
    /// The maximum time that a deletion waits for a store. A store claims a removal within seconds,
    /// unless it is down, and its deletions must not occupy all workers of a caller: the call is
    /// repeated, and no attempt is lost. A store may wait 5 s for the last user of the file.
    pub removal: Duration,
    /// The maximum time that any other call waits.
    pub patience: Duration,
    /// The interval of checks of disks that wait for permission, and of unclaimed objects.
    pub check: Duration,
    /// The interval of attempts to adopt files.
    pub adopt: Duration,
    /// The time after which a ready object that nothing claims is reported.
    pub unclaimed: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            accept: Duration::from_secs(30),
            hold: Duration::from_secs(5),
            silent: SILENT_AFTER,
            idle: Duration::from_secs(60),
            departed: Duration::from_secs(600),
            removal: Duration::from_secs(15),
            patience: Duration::from_secs(90),
            check: Duration::from_secs(60),
            adopt: Duration::from_secs(600),
            unclaimed: UNCLAIMED_AFTER,
        }
    }
}

/// The API server, and the name of the driver in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The access to the API server.
    pub access: Access,
    /// The name of the driver in PersistentVolumes and VolumeSnapshotContents.
    pub driver: String,
}

/// The backend for the files of all nodes. The secrets of calls are ignored.
pub struct Nodes {
    front: Arc<Front>,
    /// The tasks that keep the caches up to date and delete abandoned orders; empty before the
    /// start.
    tasks: Lock<Vec<AbortHandle>>,
}

/// The state that calls and tasks share.
struct Front {
    client: Arc<Client>,
    driver: String,
    limits: Limits,
    volumes: Arc<Cache<LocalVolume>>,
    snapshots: Arc<Cache<LocalSnapshot>>,
    disks: Arc<Cache<LocalDisk>>,
    waits: Waits,
    /// The times at which orders were withdrawn, by the name of their LocalDisk.
    withdrawn: Lock<HashMap<String, Instant>>,
}

impl Nodes {
    /// Creates a backend that uses the API server. The backend makes no call before
    /// [`Backend::inspect`]. This function blocks while it reads a file.
    ///
    /// # Errors
    /// Returns `Precondition` if the file of the certificate authority cannot be used.
    pub fn open(config: Config) -> Result<Self, Failure> {
        http::describe();
        measured::describe();
        figures::describe();
        let client = Arc::new(Client::new(config.access)?);
        Ok(Self::new(client, &config.driver, Limits::default()))
    }

    /// Creates a backend for this driver with these limits, like [`Self::open`].
    #[must_use]
    pub fn new(client: Arc<Client>, driver: &str, limits: Limits) -> Self {
        let front = Front {
            client,
            driver: driver.to_owned(),
            limits,
            volumes: Arc::new(Cache::new()),
            snapshots: Arc::new(Cache::new()),
            disks: Arc::new(Cache::new()),
            waits: Waits::default(),
            withdrawn: Lock::default(),
        };
        Self {
            front: Arc::new(front),
            tasks: Lock::default(),
        }
    }

    /// Starts the tasks, unless they run.
    fn start(&self) {
        let mut tasks = self.tasks.lock();
        if tasks.is_empty() {
            let front = &self.front;
            let client = || Arc::clone(&front.client);
            *tasks = vec![
                tokio::spawn(Arc::clone(&front.volumes).follow(client())).abort_handle(),
                tokio::spawn(Arc::clone(&front.snapshots).follow(client())).abort_handle(),
                tokio::spawn(Arc::clone(&front.disks).follow(client())).abort_handle(),
                tokio::spawn(Arc::clone(front).sweep()).abort_handle(),
                tokio::spawn(Arc::clone(front).permit()).abort_handle(),
                tokio::spawn(Arc::clone(front).adopt()).abort_handle(),
                tokio::spawn(Arc::clone(front).report_unclaimed()).abort_handle(),
                tokio::spawn(Arc::clone(front).forget_departed()).abort_handle(),
                tokio::spawn(Arc::clone(front).rehome()).abort_handle(),
                tokio::spawn(Arc::clone(front).show_figures()).abort_handle(),
            ];
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for task in &*self.tasks.lock() {
            task.abort();
        }
    }
}

/// Waits until the objects of a kind are listed.
///
/// # Errors
/// Returns `Unreachable` at the time `until`.
async fn listed<R: Cached>(cache: &Cache<R>, until: Instant) -> Result<(), Failure> {
    let mut changes = cache.changes();
    loop {
        changes.borrow_and_update();
        let current = cache.current();
        if current.is_ok()
            || tokio::time::timeout_at(until, changes.changed())
                .await
                .is_err()
        {
            return current;
        }
    }
}

impl Front {
    /// Returns the time until which a call that begins now waits.
    fn until(&self) -> Instant {
        Instant::now() + self.limits.patience
    }
}

/// Returns the disk that the parameters name.
///
/// # Errors
/// Returns `Invalid` for a text that cannot be the name of a disk.
fn disk(parameters: &Context) -> Result<&str, Failure> {
    match parameters.get(DISK) {
        None => Ok(DEFAULT_DISK),
        Some(disk) if is_disk_name(disk) => Ok(disk),
        Some(disk) => {
            let why = "is not the name of a disk; use 1 to 63 lowercase letters, digits and '-'";
            Err(Failure::invalid(
                "parameters[disk]",
                format_args!("{disk:?} {why}"),
            ))
        }
    }
}

/// Returns a page of a list, ordered by ID, and the token of the next page: the last ID of the
/// page.
///
/// # Errors
/// Returns `BadToken` for a token that is not an ID with this prefix.
fn page<T>(
    mut all: Vec<T>,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
    id: impl Fn(&T) -> String,
) -> Result<(Vec<T>, Option<String>), Failure> {
    if let Some(after) = after {
        if !id::is_ours(prefix, after) {
            let message = format!("starting_token {after:?}: was not given out here");
            return Err(Failure::new(belay_server::call::Kind::BadToken, message));
        }
        all.retain(|it| id(it).as_str() > after);
    }
    all.sort_by_cached_key(&id);
    let has_more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| has_more).map(id);
    Ok((all, next))
}

impl Backend for Nodes {
    fn traits(&self) -> Traits {
        Traits {
            poll_interval: Duration::from_millis(25),
            ..Traits::default()
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &[DISK]
    }

    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        disk(parameters)?;
        Ok(SIZES)
    }

    /// Starts the watches, and waits for the first lists.
    fn inspect(&self) -> Answer<'_, ()> {
        measured(Verb::LogIn, async {
            self.start();
            let until = Instant::now() + FIRST_LISTS;
            listed(&self.front.volumes, until).await?;
            listed(&self.front.snapshots, until).await?;
            listed(&self.front.disks, until).await
        })
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        measured(Verb::Create, async move {
            self.front.created(&order, None).await
        })
    }

    fn delete(&self, id: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Delete, async move {
            if self.is_volume_id(&id) {
                let deleted = self.front.delete_identified::<LocalVolume>(id.as_str());
                deleted.await?;
            }
            Ok(Progress::Done(()))
        })
    }

    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        measured(Verb::Find, async move {
            let found = self.front.found(&name).await?;
            Ok(found.into_iter().collect())
        })
    }

    fn get(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        measured(Verb::Get, async move {
            if !self.is_volume_id(&id) {
                return Ok(None);
            }
            let front = &self.front;
            let object = front.identified::<LocalVolume>(id.as_str()).await?;
            object.map(|object| shown::volume(&object)).transpose()
        })
    }

    fn is_volume_id(&self, id: &VolumeId) -> bool {
        id::is_ours(id::VOLUME, id.as_str())
    }

    fn list(&self, after: Option<String>, limit: usize, _: Secrets) -> Answer<'_, Page> {
        measured(Verb::List, async move {
            let all = self.front.shown(shown::volume).await?;
            let id = |volume: &Volume| volume.id.as_str().to_owned();
            let (volumes, next) = page(all, id::VOLUME, after.as_deref(), limit, id)?;
            Ok(Page { volumes, next })
        })
    }

    supports! {
        expansion: Expansion, capacity: Capacity, snapshots: Snapshots, clones: Clones,
        health: Health
    }
}

/// The sizes of volumes. A store refuses a size that its filesystem does not support.
const SIZES: Sizes = Sizes {
    step: STEP_BYTES,
    min: STEP_BYTES,
    max: MAX_BYTES,
};

impl Expansion for Nodes {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        SIZES
    }

    fn resize(&self, id: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        measured(Verb::Resize, async move {
            self.front.grow(&id, bytes).await.map(Progress::Done)
        })
    }
}

impl Capacity for Nodes {
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64> {
        measured(Verb::Available, async move {
            let disk = disk(&planned.parameters)?;
            self.front.volumes.ready().await?;
            self.front.snapshots.ready().await?;
            self.front.disks.ready().await?;
            let place = planned.topology.as_ref().and_then(|it| it.get(KEY));
            let offers = self.front.offers(disk).into_iter();
            let here = offers.filter(|offer| place.is_none_or(|place| offer.place == *place));
            Ok(here.filter_map(|offer| offer.room.ok()).sum())
        })
    }
}
