//! Runs the calls of a driver as jobs on the pool, in one table of jobs.

use std::sync::Arc;

use belay_server::call::{Failure, Rpc};
use belay_server::facts::Space;
use belay_server::health::Conditions;
use belay_server::request::VolumeId;
use belay_server::work::{JobView, Jobs, Key, Ticket};

use super::NodeService;
use crate::kernel::Kernel;
use crate::operation::{self, Context, Node, StorageCondition, Thread, VolumeStats};
use crate::work::{Class, Operation, Progress};

/// The table of a driver's jobs that are in progress.
pub(super) type Table = Jobs<Class, Done>;

/// The result of a job. Concurrent equal calls share a job and its result, so each kind of call has
/// a separate variant.
#[derive(Clone, Debug)]
pub(super) enum Done {
    /// The volume was changed; there is no other result.
    Changed,
    /// The size of the device after growth, in bytes.
    Grown(u64),
    /// Whether the job freed a device, or unmounted a filesystem whose disk was removed.
    Freed(bool),
    /// The usage and the health of a volume.
    Stats(VolumeStats),
    Health(Conditions),
    /// Whether the controller is deleting the volume, and waits until the volume is unstaged.
    Wanted(bool),
    Storage(Vec<StorageCondition>),
    Space(Option<Space>),
}

/// Returns the error for a call that received the result of a different kind of call. Such a mix-up
/// is a bug: the fingerprints of both calls were equal.
pub(super) fn mixed_up() -> Failure {
    Failure::bug("the job has another call's result")
}

/// Returns the key for jobs that change the volume.
pub(super) fn change(id: &VolumeId) -> Key<Class> {
    Key::new(Class::Change, id.as_str())
}

impl<K: Kernel> NodeService<K> {
    /// Runs an operation on the pool, as the job `key`.
    ///
    /// # Errors
    /// Returns the errors of the operation, of [`Jobs::run`] and of [`crate::work::Pool::run`].
    pub(super) async fn run(
        &self,
        key: Key<Class>,
        call: (Rpc, u64),
        operation: Operation,
        work: impl FnOnce(&Context<'_, K>) -> Result<Done, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let work = move |node: &Node<K>, progress: &Progress| {
            operation::run(node, progress, operation, work)
        };
        self.on_pool(key, call, work).await
    }

    /// Runs a query on the pool, as the job `key`. Does not record the phases of the query.
    ///
    /// # Errors
    /// Returns the same errors as [`NodeService::run`].
    pub(super) async fn query(
        &self,
        key: Key<Class>,
        call: (Rpc, u64),
        work: impl FnOnce(&Node<K>) -> Result<Done, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let work = move |node: &Node<K>, _: &Progress| work(node);
        self.on_pool(key, call, work).await
    }

    /// Runs an operation as the job `key`, first on the event loop, which is cheaper than a thread.
    /// If `work` returns `None` there, because it might block on a disk, runs `work` again on the
    /// pool.
    ///
    /// # Errors
    /// Returns the same errors as [`NodeService::run`].
    pub(super) async fn run_in_place(
        &self,
        key: Key<Class>,
        (rpc, fingerprint): (Rpc, u64),
        operation: Operation,
        work: impl Fn(&Context<'_, K>, Thread) -> Result<Option<Done>, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let lane = key.class.lane();
        let job = |ticket: Ticket| async move {
            let run = move |progress: &Progress, thread| {
                operation::run(&node, progress, operation, |cx| work(cx, thread))
            };
            if let Some(done) = run(&Progress::default(), Thread::Only)? {
                return Ok(done);
            }
            let work = move |progress: &Progress| run(progress, Thread::Pool);
            let done = pool.run(&ticket, lane, work).await?;
            done.ok_or_else(|| Failure::bug("on the pool, an operation wants the pool"))
        };
        self.jobs.run(key, rpc, fingerprint, job).await
    }

    async fn on_pool(
        &self,
        key: Key<Class>,
        (rpc, fingerprint): (Rpc, u64),
        work: impl FnOnce(&Node<K>, &Progress) -> Result<Done, Failure> + Send + 'static,
    ) -> Result<Done, Failure> {
        let (node, pool) = (self.node()?, Arc::clone(&self.pool));
        let lane = key.class.lane();
        let job = |ticket: Ticket| async move {
            let work = move |progress: &Progress| work(&node, progress);
            pool.run(&ticket, lane, work).await
        };
        self.jobs.run(key, rpc, fingerprint, job).await
    }

    /// Returns the hung job of this volume, if any. If a change and a read hang, returns the
    /// change. Makes no system call.
    pub(super) fn hung(&self, id: &VolumeId) -> Option<JobView> {
        let of = |class| {
            let is_its = |key: &Key<Class>| key.class == class && *key.id == *id.as_str();
            self.jobs.hung(is_its)
        };
        [Class::Change, Class::Flush, Class::Stats, Class::Health]
            .into_iter()
            .find_map(of)
    }
}
