//! Implements the calls of the CSI controller once for all backends: idempotency, comparison with
//! existing volumes, sizes and topology. This module does not depend on gRPC or on the API of a
//! particular cloud.

mod attach;
mod capacity;
mod change;
mod clouds;
mod create;
mod engine;
mod health;
mod lookup;
mod modify;
mod size;
mod snapshot;
mod support;
mod survey;
#[cfg(test)]
mod tests;
mod validate;

pub use capacity::Room;
pub use survey::Survey;
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
    /// The key under which the driver that Belay replaces stores the name of a disk in the publish
    /// context. `None` if the publish context does not contain the name.
    pub disk_name_key: Option<String>,
    /// The keys from which the secrets of the format marks on disks are derived.
    pub mark_keys: MarkKeys,
}

/// The operations on one backend, or on the backends of several clouds. Concurrent identical calls
/// share one job. At most one job runs for a volume at a time; only snapshots of the volume are
/// created in parallel. The backend must be correct without these jobs, since the jobs do not
/// exclude calls to a second controller.
pub struct Operations {
    clouds: Arc<Clouds>,
    rules: Rules,
    jobs: Jobs<Subject, Done>,
}

/// The kind of object that a job works on, as part of the job's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// A volume to create, identified by its name.
    NewVolume,
    /// An existing volume, identified by its ID, for attach, detach, expand, modify and delete.
    Volume,
    /// A snapshot to create, identified by its name. The job also shares the key of the source
    /// volume with other snapshot jobs.
    NewSnapshot,
    /// An existing snapshot, identified by its ID.
    Snapshot,
}

impl Class for Subject {
    fn deadline(self) -> Duration {
        CHANGE_DEADLINE
    }
}

/// The result of a job. The result contains a value of the type that the call returns.
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

    /// Logs in to the cloud with this index, counted from 0, and logs problems that an operator
    /// must correct.
    ///
    /// # Errors
    /// Fails if the cloud does not respond or refuses the credentials.
    pub async fn inspect(&self, cloud: usize) -> Result<(), Failure> {
        self.clouds.inspect(cloud).await
    }

    /// Returns the number of clouds; 1 if the backend does not use a cloud.
    #[must_use]
    pub fn cloud_count(&self) -> usize {
        self.clouds.count()
    }

    /// Returns the backend of the first cloud. Constants and optional features are the same for all
    /// clouds.
    fn backend(&self) -> &dyn Backend {
        self.clouds.first.backend.as_ref()
    }

    /// Returns the cloud that the secrets of a call select, and adds the name of the cloud to the
    /// call's log line. Every call with secrets must call this function first.
    ///
    /// # Errors
    /// Returns `Invalid` if the secrets name a cloud that this controller does not have.
    fn cloud(&self, secrets: &Secrets) -> Result<&Cloud, Failure> {
        let cloud = self.clouds.chosen(secrets)?;
        if let Some(label) = cloud.label() {
            call::in_cloud(label);
        }
        Ok(cloud)
    }

    /// Runs `job` for this cloud, or awaits the running job of an identical call. The returned
    /// future does not contain the job, so that it uses little memory while a caller waits.
    fn run<T: Any + Clone + Send + Sync>(
        &self,
        cloud: &Cloud,
        (subject, name, rpc, same): (Subject, &str, Rpc, u64),
        job: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> impl Future<Output = Result<T, Failure>> {
        // Unboxed, the job would be in the block twice: as captured, and as awaited.
        let job = Box::pin(job);
        let job = async { job.await.map(|done| Arc::new(done) as Done) };
        let done = self.jobs.run(Key::new(subject, name), rpc, same, |_| job);
        async move {
            let done = done.await.map_err(|failure| cloud.failed(failure))?;
            // Two different calls may have the same fingerprint, since the fingerprint is a hash.
            let done = done.downcast_ref::<T>().cloned();
            done.ok_or_else(|| Failure::bug("the job has another call's result"))
        }
    }

    /// Returns the secrets for the format mark on the volume's disk, one for each key.
    pub async fn marks(&self, volume: &VolumeId) -> Vec<MarkSecret> {
        self.rules.mark_keys.secrets(volume).await
    }

    /// Returns [`Rules::disk_name_key`], the key under which the publish context contains the name
    /// of a disk.
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

    /// Whether read-only attachments are supported. The storage then records whether an attachment
    /// is read-only, so that a later request with the opposite access is refused.
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

    /// Whether the calls to create and delete snapshots are supported.
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

    /// Whether the calls for the health of volumes are supported.
    #[must_use]
    pub fn knows_health(&self) -> bool {
        self.backend().health().is_some() || self.backend().traits().reports_status
    }

    /// Whether [`Self::create`] accepts an existing volume as the source.
    #[must_use]
    pub fn makes_clones(&self) -> bool {
        self.backend().clones().is_some()
    }
}
