//! Opens a disk, and reports its state in its `LocalDisk`.

use super::super::{Config, Local, Verb, id};
use super::health::Health;
use super::identity::{Expected, Identity, missing, refuse_other_holder};
use super::kind::Kept as _;
use super::unlisted::Found;
use super::{Orders, Served};
use crate::kubernetes::{
    Change, DiskSpec, DiskStatus, LocalDisk, LocalSnapshot, LocalVolume, Object, Parsed, Written,
    rfc3339,
};
use belay_contract::drivers::local::home;
use belay_server::call::{Failure, Kind};
use belay_server::readiness::{Readiness, State};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The pause before another attempt to open a disk.
const OPEN_RETRY: Duration = Duration::from_secs(2);
/// The interval of measurements.
const MEASURE: Duration = Duration::from_secs(10);

/// A configured disk.
pub(super) struct Disk {
    name: String,
    dir: PathBuf,
    readiness: Readiness,
    served: OnceLock<Served>,
}

impl Disk {
    pub(super) fn new(name: &str, dir: &Path, readiness: &Readiness) -> Self {
        Self {
            name: name.to_owned(),
            dir: dir.to_owned(),
            // A disk that is not mounted must not prevent an update of the other nodes' stores.
            readiness: readiness.part(State::Ready),
            served: OnceLock::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the disk if it is served.
    pub(super) fn served(&self) -> Option<&Served> {
        self.served.get()
    }
}

/// Opens the disk as soon as it can be served, and reports its state. Never returns.
pub(super) async fn serve(orders: Arc<Orders>, at: usize) {
    let disk = &orders.disks[at];
    let mut reporter = Reporter {
        orders: &orders,
        disk,
        last: None,
    };
    let (mut last, mut health) = (None, Health::default());
    let served = loop {
        reporter.wait_for_disk().await;
        match reporter.open().await {
            Ok(served) => break served,
            Err(failure) => {
                reporter.tell_problem(&failure).await;
                orders.log(&mut last, failure);
                tokio::time::sleep(OPEN_RETRY).await;
            }
        }
    };
    let served = disk.served.get_or_init(|| served);
    tracing::info!(disk = disk.name, dir = %disk.dir.display(), "serving the disk");
    orders.start_all();
    let mut last = None;
    loop {
        let told = match reporter.measured(served).await {
            Ok(status) => match reporter.tell_if_new(status).await {
                Ok(()) => health.tell(&orders, &disk.name, &served.local).await,
                failed => failed,
            },
            // The queue is full.
            Err(failure) if failure.kind == Kind::Busy => Err(failure),
            Err(failure) => {
                reporter.tell_problem(&failure).await;
                Err(failure)
            }
        };
        match told {
            Ok(()) => last = None,
            Err(failure) => {
                orders.log(&mut last, failure);
                tokio::time::sleep(OPEN_RETRY).await;
                continue;
            }
        }
        // A measurement follows each removal, since its object may have left a file.
        let changed = timeout(MEASURE, served.changed.notified()).await;
        if changed.is_ok() {
            tokio::time::sleep(OPEN_RETRY).await;
        }
    }
}

struct Reporter<'a> {
    orders: &'a Orders,
    disk: &'a Disk,
    /// The last report, and its time.
    last: Option<(DiskStatus, Instant)>,
}

impl Reporter<'_> {
    fn name(&self) -> String {
        format!("{}.{}", self.orders.config.node, self.disk.name)
    }

    /// Waits while the node does not have the disk: its directory does not exist, and no object
    /// remembers it. Another node may have the disk, so this is not a problem to report.
    async fn wait_for_disk(&self) {
        let (mut last, mut next_look) = (None, Instant::now());
        while !self.has_directory().await {
            if next_look <= Instant::now() {
                next_look += self.orders.config.report_interval;
                match self.orders.client.get::<LocalDisk>(&self.name()).await {
                    Ok(Some(_)) => return,
                    Ok(None) => {
                        let why = "does not exist, so this node does not have the disk";
                        let why = format!("{}: {why}", self.disk.dir.display());
                        self.orders.log(&mut last, Failure::precondition(why));
                    }
                    Err(failure) => self.orders.log(&mut last, failure),
                }
            }
            tokio::time::sleep(OPEN_RETRY).await;
        }
    }

    async fn has_directory(&self) -> bool {
        let dir = self.disk.dir.clone();
        blocking(move || Ok(dir.is_dir())).await.unwrap_or(false)
    }

    /// Opens the disk and reports the identity of its state.
    async fn open(&mut self) -> Result<Served, Failure> {
        let object = self.object().await?;
        let newer = |part: &str, why: &str| {
            let name = &object.metadata.name;
            let why = format!("LocalDisk {name}: {part}: {why}; run the release that wrote it");
            Failure::precondition(why)
        };
        let remembered = match &object.status {
            None => {
                // The object was deleted, and with it the identity of the state.
                self.last = None;
                None
            }
            Some(Parsed::Known(status)) => status.uuid.clone(),
            Some(Parsed::Unknown(why)) => return Err(newer("status", why)),
        };
        let spec = match &object.spec {
            Parsed::Known(spec) => spec,
            Parsed::Unknown(why) => return Err(newer("spec", why)),
        };
        let expected = Expected {
            node: self.orders.config.node.clone(),
            disk: self.disk.name.clone(),
            place: spec.place.clone(),
            remembered,
            may_begin: spec.begin.as_ref() == Some(&object.metadata.uid),
        };
        let dir = self.disk.dir.clone();
        refuse_other_holder(self.orders, &spec.place).await?;
        let identity = blocking(move || expected.find(&dir)).await?;
        let local = self.opened(&identity).await?;
        let home = home(&self.orders.config.node, &identity.place);
        local
            .change(Verb::LogIn, move |store| store.files.set_home(&home))
            .await?;
        // No order is accepted before the identity of the state is stored in the API server.
        let status = DiskStatus {
            uuid: Some(identity.uuid),
            ..DiskStatus::default()
        };
        let mut last = None;
        while let Err(failure) = self.tell(status.clone()).await {
            self.orders.log(&mut last, failure);
            tokio::time::sleep(OPEN_RETRY).await;
        }
        Ok(Served {
            local,
            place: identity.place,
            changed: Notify::new(),
        })
    }

    /// Opens the state with this identity.
    async fn opened(&self, identity: &Identity) -> Result<Arc<Local>, Failure> {
        let config = Config {
            state_dir: self.disk.dir.clone(),
            place: None,
            overcommit: self.orders.config.overcommit,
            keeps_intents: true,
            require_state: false,
        };
        let (readiness, expected) = (self.disk.readiness.clone(), identity.clone());
        let opened = move || {
            let dir = config.state_dir.clone();
            let local = Local::open(config, readiness)?;
            // The directory was not locked before. Its disk may have been mounted meanwhile.
            match Identity::read(&dir)? == Some(expected) {
                true => Ok(Arc::new(local)),
                false => Err(Failure::busy(format!(
                    "{}: disk.json has changed while the disk was opened",
                    dir.display()
                ))),
            }
        };
        blocking(opened).await
    }

    /// Returns the object of the disk, and creates it if necessary. A new object has the name of
    /// the node as its place, so none is created for a disk that is served at another place.
    async fn object(&self) -> Result<Object<LocalDisk>, Failure> {
        let (client, node) = (&self.orders.client, &self.orders.config.node);
        if let Some(object) = client.get::<LocalDisk>(&self.name()).await? {
            return Ok(object);
        }
        if !self.has_directory().await {
            return Err(missing(&self.disk.dir));
        }
        if let Some(Served { place, .. }) = self.disk.served() {
            if place != node {
                return Err(Failure::precondition(format!(
                    "LocalDisk {}: was deleted; `belayctl local rehome {place} {node}` creates it",
                    self.name()
                )));
            }
            refuse_other_holder(self.orders, place).await?;
        }
        let spec = DiskSpec {
            node: node.clone(),
            place: node.clone(),
            disk: self.disk.name.clone(),
            begin: None,
        };
        match client.create::<LocalDisk>(&self.name(), &spec).await? {
            Written::Done(object) => Ok(object),
            Written::Conflict | Written::Missing => Err(Failure::busy(format!(
                "LocalDisk {}: was created by another process",
                self.name()
            ))),
        }
    }

    /// Measures the disk, and removes the records of intents that have no object.
    async fn measured(&self, served: &Served) -> Result<DiskStatus, Failure> {
        let (volumes, snapshots) = (&self.orders.volumes, &self.orders.snapshots);
        let listed = || Some(volumes.ids()?.into_iter().chain(snapshots.ids()?).collect());
        let listed: Option<HashSet<String>> = listed();
        let is_listed = listed.is_some();
        let local = &served.local;
        let found = match listed {
            Some(ids) => {
                local
                    .ask(Verb::List, move |store| store.unlisted(&ids))
                    .await?
            }
            None => Found::default(),
        };
        if let (Some(volumes), Some(snapshots)) = (volumes.ids(), snapshots.ids()) {
            for id in &found.intents {
                // An order that has arrived since has recorded its intent.
                if !volumes.contains(id)
                    && !snapshots.contains(id)
                    && let Err(failure) = abandon(local, id.clone()).await
                {
                    tracing::error!(id, "an interrupted creation without an object: {failure}");
                }
            }
        }
        let room = local
            .ask(Verb::Available, |store| store.promisable())
            .await?;
        let uuid = self.last.as_ref().and_then(|(last, _)| last.uuid.clone());
        Ok(DiskStatus {
            uuid,
            bytes: Some(room.total),
            promisable: Some(room.limit.saturating_sub(found.bytes)),
            foreign: Some(room.foreign),
            read_only: Some(room.is_read_only),
            problem: None,
            reported: None,
            unlisted: is_listed.then_some(found.files),
        })
    }

    /// Reports a measurement if it has changed or the last report is old.
    async fn tell_if_new(&mut self, next: DiskStatus) -> Result<(), Failure> {
        let is_recent = self.last.as_ref().is_some_and(|(last, at)| {
            at.elapsed() < self.orders.config.report_interval && !is_news(last, &next)
        });
        match is_recent {
            true => Ok(()),
            false => self.tell(next).await,
        }
    }

    /// Reports why the disk is not served. Keeps the other fields of the last report.
    async fn tell_problem(&mut self, failure: &Failure) {
        let last = self.last.as_ref().filter(|(last, at)| {
            last.problem.as_ref() == Some(&failure.message)
                && at.elapsed() < self.orders.config.report_interval
        });
        if last.is_some() {
            return;
        }
        let status = DiskStatus {
            problem: Some(failure.message.clone()),
            ..self
                .last
                .as_ref()
                .map(|(last, _)| last.clone())
                .unwrap_or_default()
        };
        if let Err(failure) = self.tell(status).await {
            tracing::warn!(disk = self.disk.name, "cannot report the disk: {failure}");
        }
    }

    /// Writes a report.
    async fn tell(&mut self, status: DiskStatus) -> Result<(), Failure> {
        let object = self.object().await?;
        let known = object.known_status();
        let status = DiskStatus {
            // The identity and the files of a missing disk must not be forgotten.
            uuid: status
                .uuid
                .or_else(|| known.and_then(|known| known.uuid.clone())),
            unlisted: status
                .unlisted
                .or_else(|| known.and_then(|known| known.unlisted.clone())),
            reported: Some(rfc3339(SystemTime::now())),
            ..status
        };
        let change = Change::<LocalDisk>::Status(&status);
        match self.orders.client.patch(&object.metadata, change).await? {
            Written::Done(_) => {
                self.last = Some((status, Instant::now()));
                Ok(())
            }
            Written::Conflict | Written::Missing => Err(Failure::busy(format!(
                "LocalDisk {}: was changed by another process at the same time",
                self.name()
            ))),
        }
    }
}

/// Whether a report must not wait.
fn is_news(last: &DiskStatus, next: &DiskStatus) -> bool {
    last.problem != next.problem
        || last.read_only != next.read_only
        || last.bytes != next.bytes
        || last.unlisted != next.unlisted
}

/// Removes the record of an intent that has no object.
async fn abandon(local: &Local, id: String) -> Result<(), Failure> {
    let abandon = move |store: &_| match id::is_ours(id::VOLUME, &id) {
        true => LocalVolume::abandon(store, &id),
        false => LocalSnapshot::abandon(store, &id),
    };
    local.change(Verb::Delete, abandon).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Failure::bug(error.to_string())))
}
