//! A stage from its beginning to its end: where its disk is not there yet, and where it must be
//! formatted first.

use std::sync::Arc;
use std::time::Duration;

use belay_server::call::{Failure, Kind};
use belay_server::request::Stage;
use belay_server::work::Ticket;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::kernel::Kernel;
use crate::operation::phase::Progress;
use crate::operation::{self, Formatting, Node, Staged};
use crate::pool::{Lane, Pool};

/// How long a stage waits for its disk. Less than a caller waits for its answer, which then says
/// which disks there are.
const DISK_MAX: Duration = Duration::from_secs(90);

/// Stages the volume. While its disk is not there, that holds no thread and no slot, and an unstage
/// ends it.
///
/// # Errors
/// Those of [`operation::stage`]; `UNAVAILABLE` when the disk does not come.
pub(super) async fn stage_when_there<K: Kernel>(
    ticket: &Ticket,
    pool: &Pool,
    node: &Arc<Node<K>>,
    stage: Stage,
) -> Result<(), Failure> {
    let stage = Arc::new(stage);
    let (mut lane, mut formatting) = (Lane::Change, Formatting::Ask);
    let end = Instant::now() + DISK_MAX;
    loop {
        // From before the look: what comes meanwhile is a change.
        let arrivals = node.arrivals();
        let (node, stage) = (Arc::clone(node), Arc::clone(&stage));
        let work = move |progress: &Progress| operation::stage(&node, progress, &stage, formatting);
        match pool.run(ticket, lane, work).await? {
            Staged::Done => return Ok(()),
            Staged::WantsFormat => (lane, formatting) = (Lane::Format, Formatting::Allowed),
            Staged::WantsDisk(missing) => {
                let change = tokio::time::timeout_at(end, changed(arrivals));
                if ticket.wait("the volume's disk", change).await?.is_err() {
                    let seconds = DISK_MAX.as_secs();
                    let message = format!("{missing}; waited for it for {seconds} s");
                    return Err(Failure::new(Kind::Unreachable, message));
                }
            }
        }
    }
}

/// Returns when the disks have changed.
async fn changed(arrivals: Option<watch::Receiver<u64>>) {
    if let Some(mut arrivals) = arrivals
        && arrivals.changed().await.is_ok()
    {
        return;
    }
    // Nothing is left that could change them.
    std::future::pending().await
}
