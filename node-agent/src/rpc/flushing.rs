//! An unpublish that writes the volume to its disk first, if a cloud can detach the disk.

use std::sync::Arc;

use belay_server::call::{Failure, Kind, Rpc};
use belay_server::request::{Unpublish, VolumeId};
use belay_server::work::{Key, Ticket};
use metrics::counter;

use super::jobs::{Done, Table};
use crate::kernel::Kernel;
use crate::operation::{self, Node};
use crate::work::{Class, Lane, Operation, Pool, Progress};

/// Counts targets that were unmounted before all of their volume was on the disk, by `reason`.
const UNFLUSHED: &str = "belay_unflushed_unpublishes_total";

/// Describes the metrics of this module. Call it once, before the first call.
pub(super) fn announce() {
    metrics::describe_counter!(
        UNFLUSHED,
        "Volumes that were unpublished although not all of their data was on the disk."
    );
}

/// Why not all of a volume is on its disk: the label `reason`, and the error.
type Unflushed = (&'static str, Failure);

/// What the calls of a driver share.
pub(super) struct Shared<K: Kernel> {
    pub(super) jobs: Table,
    pub(super) pool: Arc<Pool>,
    pub(super) node: Arc<Node<K>>,
}

/// Unpublishes the volume.
///
/// # Errors
/// Those of [`operation::unpublish`].
pub(super) async fn unpublish_flushed<K: Kernel>(
    ticket: &Ticket,
    shared: Shared<K>,
    unpublish: Unpublish,
) -> Result<(), Failure> {
    let unpublish = Arc::new(unpublish);
    let unflushed = match shared.node.may_lose_devices() {
        true => flush(&shared, &unpublish).await.err(),
        false => None,
    };
    let (node, request) = (shared.node, Arc::clone(&unpublish));
    let work = move |progress: &Progress| {
        operation::run(&node, progress, Operation::Unpublish, |cx| {
            operation::unpublish(cx, &request)
        })
    };
    shared.pool.run(ticket, Lane::Change, work).await?;
    if let Some((reason, why)) = unflushed {
        counter!(UNFLUSHED, "reason" => reason).increment(1);
        let (id, path) = (unpublish.id.as_str(), unpublish.target.display());
        tracing::warn!(
            id,
            "{path} was unmounted before all data was on the disk; it is lost if the disk is \
             detached now: {why}"
        );
    }
    Ok(())
}

/// Refuses to unstage a volume that is still being written to its disk.
///
/// # Errors
/// `ABORTED` then.
pub(super) fn refuse_flushing(jobs: &Table, id: &VolumeId) -> Result<(), Failure> {
    match jobs.view(&key(id)) {
        None => Ok(()),
        Some(flush) => Err(Failure::busy(format!(
            "{id}: its data is still being written to its disk: {flush}; retry later"
        ))),
    }
}

/// The key of the flush of a volume: at most one at a time, however often it is unpublished.
fn key(id: &VolumeId) -> Key<Class> {
    Key::new(Class::Flush, id.as_str())
}

/// A separate job, since it may outlive the unpublish.
async fn flush<K: Kernel>(shared: &Shared<K>, unpublish: &Arc<Unpublish>) -> Result<(), Unflushed> {
    let key = key(&unpublish.id);
    if let Some(earlier) = shared.jobs.view(&key) {
        return Err(("slow", Failure::busy(earlier.to_string())));
    }
    let (node, pool) = (Arc::clone(&shared.node), Arc::clone(&shared.pool));
    let request = Arc::clone(unpublish);
    let job = |ticket: Ticket| async move {
        let work = move |progress: &Progress| {
            operation::run(&node, progress, Operation::Unpublish, |cx| {
                operation::flush(cx, &request)
            })
        };
        pool.run(&ticket, Lane::Change, work).await?;
        Ok(Done::Changed)
    };
    let flushed = shared.jobs.run(key, Rpc::NodeUnpublishVolume, 0, job);
    match flushed.await {
        Ok(_) => Ok(()),
        Err(failure) if failure.kind == Kind::Timeout => Err(("slow", failure)),
        Err(failure) => Err(("failed", failure)),
    }
}
