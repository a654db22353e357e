//! Runs a NodeStageVolume call: waits until the volume's disk is attached, and waits for a slot for
//! mkfs or e2fsck if the volume must be formatted or checked, or for the slot of encrypted volumes.

use std::sync::Arc;
use std::time::Duration;

use belay_server::call::{Failure, Kind};
use belay_server::request::Stage;
use belay_server::work::Ticket;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::kernel::Kernel;
use crate::operation::{self, Node, Obstacle};
use crate::work::{Lane, Operation, Pool, Progress};

/// Maximum time that NodeStageVolume waits for the volume's disk, which is shorter than the
/// caller's deadline, so that the caller receives the error with the list of disks.
const DISK_MAX: Duration = Duration::from_secs(90);

/// Stages the volume. While the volume's disk is missing, the call occupies no thread and no slot,
/// and NodeUnstageVolume cancels the call.
///
/// # Errors
/// Returns `UNAVAILABLE` if the disk does not appear in time; otherwise the errors of
/// [`operation::stage`].
pub(super) async fn stage_when_there<K: Kernel>(
    ticket: &Ticket,
    pool: &Pool,
    node: &Arc<Node<K>>,
    stage: Stage,
) -> Result<(), Failure> {
    let stage = Arc::new(stage);
    let mut lane = Lane::Change;
    let end = Instant::now() + DISK_MAX;
    loop {
        // Subscribe to changes before the check, so that no change is missed.
        let arrivals = node.arrivals();
        let (node, stage) = (Arc::clone(node), Arc::clone(&stage));
        let work = move |progress: &Progress| {
            Ok(operation::run(&node, progress, Operation::Stage, |cx| {
                operation::stage(cx, &stage, lane)
            }))
        };
        match pool.run(ticket, lane, work).await? {
            Ok(()) => return Ok(()),
            Err(Obstacle::NoSlot(needed)) => lane = needed,
            Err(Obstacle::NoDisk(missing)) => {
                let change = tokio::time::timeout_at(end, changed(arrivals));
                if ticket.wait("the volume's disk", change).await?.is_err() {
                    let seconds = DISK_MAX.as_secs();
                    let message = format!("{missing}; waited {seconds} s");
                    return Err(Failure::new(Kind::Unreachable, message));
                }
            }
            Err(obstacle) => return Err(obstacle.into_failure()),
        }
    }
}

/// Waits until the list of the node's disks changes.
async fn changed(arrivals: Option<watch::Receiver<u64>>) {
    if let Some(mut arrivals) = arrivals
        && arrivals.changed().await.is_ok()
    {
        return;
    }
    // No further change of the disks will be reported.
    std::future::pending().await
}
