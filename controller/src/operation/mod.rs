//! The verbs of the controller, implemented once for all backends: idempotency, comparison with
//! existing volumes, sizes, topology. Independent of gRPC and of the clouds.

mod attach;
mod capacity;
mod change;
mod clouds;
mod create;
mod engine;
mod lookup;
mod modify;
mod size;
mod snapshot;
mod support;
#[cfg(test)]
mod tests;
mod validate;

pub use capacity::Room;
pub use validate::Verdict;

use crate::backend::{Backend, Backends, Snapshots};
use crate::mark_keys::MarkKeys;
use belay_contract::drivers::Profile;
use belay_contract::mark::MarkSecret;
use belay_server::call::{self, Failure, Rpc};
use belay_server::identity::PluginCapability;
use belay_server::request::{Secrets, VolumeId};
use belay_server::work::{CHANGE_DEADLINE, Class, Jobs, Key};
use clouds::{Cloud, Clouds};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// The driver's constants and the operator's settings.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The driver's constants.
    pub profile: Profile,
    /// The key of a disk's name in the publish context of the driver that this one replaces.
    pub disk_name_key: Option<String>,
    /// The keys of the format marks on disks.
    pub mark_keys: MarkKeys,
}

/// The operations on one backend, or on the backends of several clouds. Concurrent equal calls
/// share one job, and a volume has one job at a time, for any call; only its snapshots are created
/// in parallel. Correctness depends on the backend and not on the jobs, since a second controller
/// may be active.
pub struct Operations {
    clouds: Arc<Clouds>,
    rules: Rules,
    jobs: Jobs<Subject, Done>,
}

/// The object of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// A volume to create, by name.
    NewVolume,
    /// A volume, by ID: attach, detach, expand, delete.
    Volume,
    /// A snapshot to create, by name; it shares the key of its volume.
    NewSnapshot,
    /// A snapshot, by ID.
    Snapshot,
}

impl Class for Subject {
    fn deadline(self) -> Duration {
        CHANGE_DEADLINE
    }
}

/// The result of a job, of the type that its call returns.
type Done = Arc<dyn Any + Send + Sync>;

impl Operations {
    /// Creates operations that follow `rules`, on one backend.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, rules: Rules) -> Self {
        Self::on(Backends::One(backend), rules)
    }

    /// Creates operations that follow `rules`, on these backends.
    #[must_use]
    pub fn on(backends: Backends, rules: Rules) -> Self {
        Self {
            clouds: Arc::new(Clouds::new(backends)),
            rules,
            jobs: Jobs::default(),
        }
    }

    /// Logs in to a cloud, by its number from 0 on, and logs problems that an operator must
    /// correct.
    ///
    /// # Errors
    /// Fails if the cloud does not respond or refuses the credentials.
    pub async fn inspect(&self, cloud: usize) -> Result<(), Failure> {
        self.clouds.inspect(cloud).await
    }

    /// Returns the number of clouds, 1 for a backend without clouds.
    #[must_use]
    pub fn cloud_count(&self) -> usize {
        self.clouds.count()
    }

    /// Returns a backend; its constants and abilities are the same for all clouds.
    fn backend(&self) -> &dyn Backend {
        self.clouds.first.backend.as_ref()
    }

    /// Returns the cloud of a call with these secrets, and adds it to the call's log line. All
    /// calls with secrets begin with this.
    ///
    /// # Errors
    /// Returns `Invalid` if the secrets name a cloud of another controller.
    fn cloud(&self, secrets: &Secrets) -> Result<&Cloud, Failure> {
        let cloud = self.clouds.chosen(secrets)?;
        if let Some(label) = cloud.label() {
            call::in_cloud(label);
        }
        Ok(cloud)
    }

    /// Runs `job` for this cloud, or awaits the running job of an equal call. The future does not
    /// contain the job, so a waiting caller is small.
    fn run<T: Any + Clone + Send + Sync>(
        &self,
        cloud: &Cloud,
        (subject, name, rpc, same): (Subject, &str, Rpc, u64),
        job: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> impl Future<Output = Result<T, Failure>> {
        let job = async { job.await.map(|done| Arc::new(done) as Done) };
        let done = self.jobs.run(Key::new(subject, name), rpc, same, |_| job);
        async move {
            let done = done.await.map_err(|failure| cloud.failed(failure))?;
            // Another call's fingerprint may be equal.
            let done = done.downcast_ref::<T>().cloned();
            done.ok_or_else(|| Failure::bug("the job has another call's result"))
        }
    }

    /// Returns the secrets of the volume's format mark.
    #[must_use]
    pub fn marks(&self, volume: &VolumeId) -> Vec<MarkSecret> {
        self.rules.mark_keys.secrets(volume)
    }

    /// Returns [`Rules::disk_name_key`], the key of a disk's name in the publish context of the
    /// driver that this one replaces.
    #[must_use]
    pub fn disk_name_key(&self) -> Option<&str> {
        self.rules.disk_name_key.as_deref()
    }

    /// Whether volumes are attached to nodes: the driver's profile says so, and the backend
    /// supports it.
    #[must_use]
    pub fn attaches(&self) -> bool {
        self.rules.profile.attaches && self.backend().attachments().is_some()
    }

    /// Whether an attachment is either writable or read-only, so that a volume attached in one way
    /// is not attached in the other.
    #[must_use]
    pub fn attaches_read_only(&self) -> bool {
        self.attaches() && self.backend().traits().records_spec
    }

    /// Whether volumes can be expanded: the driver's profile says so, and the backend supports it.
    #[must_use]
    pub fn grows(&self) -> bool {
        let mut capabilities = self.rules.profile.capabilities.iter();
        let grows = |capability: &PluginCapability| {
            matches!(
                capability,
                PluginCapability::OnlineExpansion | PluginCapability::OfflineExpansion
            )
        };
        capabilities.any(grows) && self.backend().expansion().is_some()
    }

    /// Whether expanding a volume includes a step on the node.
    #[must_use]
    pub fn grows_on_node(&self) -> bool {
        self.rules.profile.grows_on_node
    }

    /// Whether [`Self::list`] is supported.
    #[must_use]
    pub fn lists(&self) -> bool {
        self.backend().traits().lists
    }

    /// Returns the maximum length of a volume ID, in bytes.
    #[must_use]
    pub fn id_bytes_max(&self) -> usize {
        self.rules.profile.id_bytes_max()
    }

    /// Whether [`Self::room`] is supported.
    #[must_use]
    pub fn knows_capacity(&self) -> bool {
        self.backend().capacity().is_some()
    }

    /// Whether the snapshot verbs are supported.
    #[must_use]
    pub fn makes_snapshots(&self) -> bool {
        self.backend().snapshots().is_some()
    }

    /// Whether [`Self::list_snapshots`] and [`Self::snapshot`] are supported.
    #[must_use]
    pub fn lists_snapshots(&self) -> bool {
        let snapshots = self.backend().snapshots();
        snapshots.is_some_and(Snapshots::lists_snapshots)
    }

    /// Whether the health verbs are supported.
    #[must_use]
    pub fn knows_health(&self) -> bool {
        self.backend().health().is_some()
    }

    /// Whether [`Self::create`] accepts another volume as the source.
    #[must_use]
    pub fn makes_clones(&self) -> bool {
        self.backend().clones().is_some()
    }
}
