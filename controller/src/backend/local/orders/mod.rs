//! Executes the objects of Kubernetes for the disks of a node: the store. The controller writes
//! what is wanted into the spec of an object. The store accepts the object by a finalizer, executes
//! it on the disk, and reports in the status.
//!
//! Two records exist for each file. The ledger states the content of the file, and the object
//! states what is wanted and what was reported. The store therefore never creates again a file that
//! was complete, and never deletes a file because its object is gone.

mod decide;
mod disk;
mod entries;
mod execute;
mod health;
mod identity;
mod kind;
mod unlisted;
mod work;
mod writes;

use super::{Local, Overcommit};
use crate::kubernetes::{Client, LocalSnapshot, LocalVolume, Selector, Watch};
use belay_server::call::Failure;
use belay_server::readiness::Readiness;
use disk::Disk;
use entries::Entries;
use kind::Kept;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the Node.
    pub node: String,
    /// The disks: the name and the directory of each.
    pub disks: Vec<(String, PathBuf)>,
    /// The maximum ratio of provisioned space to actual space.
    pub overcommit: Overcommit,
    /// The maximum time between two reports of a disk.
    pub report_interval: Duration,
}

/// The store of a node.
pub struct Orders {
    client: Arc<Client>,
    config: Config,
    volumes: Arc<Entries<LocalVolume>>,
    snapshots: Arc<Entries<LocalSnapshot>>,
    disks: Vec<Disk>,
    /// Notified when a step was executed.
    worked: &'static Notify,
}

/// A disk that is served.
pub(super) struct Served {
    local: Arc<Local>,
    /// The topology value of the disk.
    place: String,
    /// Notified when an object was removed, so that files without an object are reported.
    changed: Notify,
}

impl Served {
    fn notify(&self) {
        self.changed.notify_one();
    }
}

impl Orders {
    /// Creates a store. [`Self::run`] begins to serve.
    #[must_use]
    pub fn new(client: Arc<Client>, config: Config, readiness: &Readiness) -> Arc<Self> {
        let disks = config
            .disks
            .iter()
            .map(|(name, dir)| Disk::new(name, dir, readiness));
        Arc::new(Self {
            client,
            disks: disks.collect(),
            config,
            volumes: Arc::default(),
            snapshots: Arc::default(),
            worked: Box::leak(Box::default()),
        })
    }

    /// Returns the notifier of steps that were executed, after which free memory can be returned to
    /// the kernel.
    #[must_use]
    pub fn worked(&self) -> &'static Notify {
        self.worked
    }

    /// Serves the disks. Never returns.
    pub async fn run(self: Arc<Self>) {
        for at in 0..self.disks.len() {
            tokio::spawn(disk::serve(Arc::clone(&self), at));
        }
        tokio::join!(
            Arc::clone(&self).follow(Arc::clone(&self.volumes)),
            Arc::clone(&self).follow(Arc::clone(&self.snapshots)),
        );
    }

    /// Returns the disk with this name; `None` if it is not served.
    fn served(&self, disk: &str) -> Option<&Served> {
        self.disks.iter().find(|it| it.name() == disk)?.served()
    }

    /// Follows the objects of a kind. Never returns.
    async fn follow<K: Kept>(self: Arc<Self>, entries: Arc<Entries<K>>) {
        let selector = Selector::node(&self.config.node);
        let mut watch = Watch::<K>::new(Arc::clone(&self.client), selector);
        let mut last = None;
        loop {
            match watch.next().await {
                Ok(event) => {
                    last = None;
                    self.start(&entries, entries.apply(event));
                }
                Err(failure) => self.log(&mut last, failure),
            }
        }
    }

    /// Starts a task for each of these objects.
    fn start<K: Kept>(self: &Arc<Self>, entries: &Arc<Entries<K>>, names: Vec<String>) {
        for name in names {
            tokio::spawn(work::work(Arc::clone(self), Arc::clone(entries), name));
        }
    }

    /// Starts a task for each object, after a disk began to be served.
    fn start_all(self: &Arc<Self>) {
        self.start(&self.volumes, self.volumes.start_all());
        self.start(&self.snapshots, self.snapshots.start_all());
    }

    /// Logs a failure once.
    fn log(&self, last: &mut Option<String>, failure: Failure) {
        if last.as_ref() != Some(&failure.message) {
            tracing::warn!(node = self.config.node, "{failure}");
            *last = Some(failure.message);
        }
    }
}
