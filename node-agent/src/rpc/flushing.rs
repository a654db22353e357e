//! Unpublishes a volume. If the volume is a disk that a cloud can detach, writes the volume's data
//! to the disk first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use belay_server::call::{Failure, Kind, Rpc};
use belay_server::request::{Unpublish, VolumeId};
use belay_server::work::{Key, Ticket};
use metrics::counter;

use super::jobs::{Done, Table};
use super::unsynced::{Flush, Unsynced};
use crate::kernel::Kernel;
use crate::operation::{self, Flushed, Node};
use crate::work::{Class, Lane, Operation, Pool, Progress};

/// Counter: target paths that were unmounted before all data of their volume was on the disk, by
/// `reason`.
const UNFLUSHED: &str = "belay_unflushed_unpublishes_total";

/// Registers the descriptions of this module's metrics. Call it once, before the first CSI call.
pub(super) fn announce() {
    metrics::describe_counter!(
        UNFLUSHED,
        "Volumes that were unpublished although not all of their data was on the disk."
    );
}

/// The reason why some data of a volume may not be on its disk.
enum Unflushed {
    /// A flush has not completed before its deadline.
    Slow(Failure),
    Failed(Failure),
}

/// State of a driver that NodeUnpublishVolume shares with other calls.
pub(super) struct Shared<K: Kernel> {
    pub(super) jobs: Table,
    pub(super) pool: Arc<Pool>,
    pub(super) node: Arc<Node<K>>,
    pub(super) unsynced: Arc<Unsynced>,
}

/// Writes the volume's data to its disk if a cloud can detach the disk, and then unpublishes the
/// volume, even if the write has failed.
///
/// # Errors
/// Returns the errors of [`operation::unpublish`].
pub(super) async fn unpublish_flushed<K: Kernel>(
    ticket: &Ticket,
    shared: Shared<K>,
    unpublish: Unpublish,
) -> Result<(), Failure> {
    let unpublish = Arc::new(unpublish);
    let was_unmounted = Arc::new(AtomicBool::default());
    if !shared.node.may_lose_devices() {
        return unmount(ticket, &shared, &unpublish, &was_unmounted).await;
    }
    let begun = shared.unsynced.begin();
    let flushed = flush(&shared, &unpublish, &begun).await;
    let unmounted = unmount(ticket, &shared, &unpublish, &was_unmounted).await;
    if let (Err(unflushed), true) = (flushed, was_unmounted.load(Ordering::Relaxed)) {
        report(&shared.unsynced, &unpublish, &begun, unflushed);
    }
    unmounted
}

/// Logs and counts that a target was unmounted although its volume was not completely written to
/// the disk.
fn report(unsynced: &Unsynced, unpublish: &Unpublish, begun: &Flush, unflushed: Unflushed) {
    let id = &unpublish.id;
    let (reason, why) = match unflushed {
        Unflushed::Slow(why) => match unsynced.unmounted(id, begun, why.to_string()) {
            true => ("slow", why),
            // The flush has missed its deadline, but has succeeded meanwhile.
            false => return,
        },
        Unflushed::Failed(why) => {
            unsynced.failed(id, why.to_string());
            ("failed", why)
        }
    };
    counter!(UNFLUSHED, "reason" => reason).increment(1);
    let (id, path) = (id.as_str(), unpublish.target.display());
    tracing::warn!(
        id,
        "{path} was unmounted before all data was on the disk; this data may be lost: {why}"
    );
}

async fn unmount<K: Kernel>(
    ticket: &Ticket,
    shared: &Shared<K>,
    unpublish: &Arc<Unpublish>,
    was_unmounted: &Arc<AtomicBool>,
) -> Result<(), Failure> {
    let (node, request) = (Arc::clone(&shared.node), Arc::clone(unpublish));
    let was_unmounted = Arc::clone(was_unmounted);
    let work = move |progress: &Progress| {
        operation::run(&node, progress, Operation::Unpublish, |cx| {
            operation::unpublish(cx, &request, &was_unmounted)
        })
    };
    shared.pool.run(ticket, Lane::Change, work).await
}

/// Checks that no flush of the volume is in progress. Call it before the volume is unstaged.
///
/// # Errors
/// Returns `ABORTED` while a flush of the volume is in progress.
pub(super) fn refuse_flushing(jobs: &Table, id: &VolumeId) -> Result<(), Failure> {
    match jobs.view(&key(id)) {
        None => Ok(()),
        Some(flush) => Err(Failure::busy(format!(
            "{id}: its data is still being written to its disk: {flush}; retry later"
        ))),
    }
}

/// Returns the job key of a flush of the volume. All flushes of a volume have the same key, so at
/// most one flush of a volume is in progress.
fn key(id: &VolumeId) -> Key<Class> {
    Key::new(Class::Flush, id.as_str())
}

/// Flushes the volume in a separate job, because the flush may continue after NodeUnpublishVolume
/// has stopped waiting for it.
async fn flush<K: Kernel>(
    shared: &Shared<K>,
    unpublish: &Arc<Unpublish>,
    begun: &Flush,
) -> Result<(), Unflushed> {
    let key = key(&unpublish.id);
    if let Some(earlier) = shared.jobs.view(&key) {
        return Err(Unflushed::Slow(Failure::busy(earlier.to_string())));
    }
    let (node, pool) = (Arc::clone(&shared.node), Arc::clone(&shared.pool));
    let (request, unsynced) = (Arc::clone(unpublish), Arc::clone(&shared.unsynced));
    let begun = begun.clone();
    let job = |ticket: Ticket| async move {
        let id = request.id.clone();
        let work = move |progress: &Progress| {
            operation::run(&node, progress, Operation::Unpublish, |cx| {
                operation::flush(cx, &request)
            })
        };
        match pool.run(&ticket, Lane::Change, work).await? {
            Flushed::Nothing => {}
            Flushed::Done => unsynced.flushed(&id, &begun),
            // Record the error now: the kernel drops data that it cannot write, so the next flush
            // would succeed without this data.
            Flushed::Failed(error) => {
                unsynced.failed(&id, error.to_string());
                let id = id.as_str();
                tracing::error!(
                    id,
                    "data of the volume could not be written to its disk, and may be lost: {error}"
                );
                return Err(error.into());
            }
        }
        Ok(Done::Changed)
    };
    let flushed = shared.jobs.run(key, Rpc::NodeUnpublishVolume, 0, job);
    match flushed.await {
        Ok(_) => Ok(()),
        Err(failure) if failure.kind == Kind::Timeout => Err(Unflushed::Slow(failure)),
        Err(failure) => Err(Unflushed::Failed(failure)),
    }
}
