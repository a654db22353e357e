//! An unpublish that writes the volume to its disk first, if a cloud can detach the disk.

use std::sync::Arc;
use std::time::Duration;

use belay_server::call::Failure;
use belay_server::request::Unpublish;
use belay_server::work::Ticket;
use metrics::counter;

use crate::kernel::Kernel;
use crate::operation::{self, Node};
use crate::work::{Lane, Operation, Pool, Progress};

/// How long an unpublish waits for the disk. A pod must end even if its disk does not answer.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// Counts targets that were unmounted before all of their volume was on the disk, by `reason`.
const UNFLUSHED: &str = "belay_unflushed_unpublishes_total";

/// Describes the metrics of this module. Call it once, before the first call.
pub(crate) fn announce() {
    metrics::describe_counter!(
        UNFLUSHED,
        "Volumes that were unpublished although not all of their data was on the disk."
    );
}

/// Unpublishes the volume.
///
/// # Errors
/// Those of [`operation::unpublish`].
pub(super) async fn unpublish_flushed<K: Kernel>(
    ticket: &Ticket,
    pool: &Pool,
    node: &Arc<Node<K>>,
    unpublish: Unpublish,
) -> Result<(), Failure> {
    let unpublish = Arc::new(unpublish);
    if node.may_lose_devices() {
        flush(ticket, pool, node, &unpublish).await?;
    }
    let node = Arc::clone(node);
    let work = move |progress: &Progress| {
        operation::run(&node, progress, Operation::Unpublish, |cx| {
            operation::unpublish(cx, &unpublish)
        })
    };
    pool.run(ticket, Lane::Change, work).await
}

async fn flush<K: Kernel>(
    ticket: &Ticket,
    pool: &Pool,
    node: &Arc<Node<K>>,
    unpublish: &Arc<Unpublish>,
) -> Result<(), Failure> {
    let (node, request) = (Arc::clone(node), Arc::clone(unpublish));
    let work = move |progress: &Progress| {
        Ok(operation::run(
            &node,
            progress,
            Operation::Unpublish,
            |cx| operation::flush(cx, &request),
        ))
    };
    let flushed = pool
        .run_for(ticket, (Lane::Change, FLUSH_MAX), work)
        .await?;
    let (reason, why) = match flushed {
        Some(Ok(())) => return Ok(()),
        Some(Err(failure)) => ("failed", failure.to_string()),
        None => ("slow", format!("not done after {} s", FLUSH_MAX.as_secs())),
    };
    counter!(UNFLUSHED, "reason" => reason).increment(1);
    let (id, path) = (unpublish.id.as_str(), unpublish.target.display());
    tracing::warn!(
        id,
        "unmounting {path} before all data is on the disk; it is lost if the disk is detached \
         now: {why}"
    );
    Ok(())
}
