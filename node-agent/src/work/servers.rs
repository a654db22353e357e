//! The helper processes that ask servers, and how many of them there may be. Unmounts and
//! statistics have slots that mounts cannot take. Knows no verb.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use belay_server::call::{Certainty, Failure, Kind};
use belay_server::helper::{Group, Helpers, Lane, Running, Spec, Unanswered};
use tokio::time::timeout;

use super::pool::WORKED;
use crate::kernel::{Answer, Helper as _, Kernel, RemoteCall};

static HELPER: Spec = Spec {
    name: "helper",
    processes: "belay_helper_processes",
    waiting: Some("belay_helper_waiting"),
    kills: "belay_helper_kills_total",
};

const CHANGES: Group = Group::new(8, "its mounts and unmounts");
/// Maximum number of mounts at a time. The other slots unmount: a pod must end regardless of its
/// server.
const MOUNTS: Group = Group::new(6, "its mounts");
const READS: Group = Group::new(2, "its statistics");

static MOUNT: Lane = Lane::new(&[MOUNTS, CHANGES], KILLED_MAX);
static UNMOUNT: Lane = Lane::new(&[CHANGES], KILLED_UNMOUNTS_MAX);
static READ: Lane = Lane::new(&[READS], KILLED_MAX);

/// Maximum number of killed processes of one server that have not exited. At that number, the
/// server's volumes are only unmounted.
const KILLED_MAX: usize = 8;
/// Maximum number of killed unmounts of one server: each is for a pod, which must end regardless of
/// its server.
const KILLED_UNMOUNTS_MAX: usize = 128;

fn lane(call: &RemoteCall) -> &'static Lane {
    match call {
        RemoteCall::Mount(_) => &MOUNT,
        RemoteCall::Unmount(_) | RemoteCall::Detach(_) => &UNMOUNT,
        RemoteCall::Usage(_) => &READ,
    }
}

/// The helper processes of all drivers.
pub(crate) struct Servers(Helpers);

/// An answer. Its process exits when this is dropped, and closes its mount.
pub(crate) struct Replied<K: Kernel> {
    /// The answer.
    pub(crate) answer: Answer<K::Fd>,
    _running: Running<K::Helper>,
}

impl Servers {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Servers(Helpers::new(&HELPER)))
    }

    /// Has a helper process make the call to that server, within that time, which includes the wait
    /// for a slot.
    ///
    /// # Errors
    /// Returns the failure of the call; `Unreachable` at once if too many processes hang on the
    /// server; `Timeout` if the server does not answer in time: the call may then still have an
    /// effect, unless it was a mount, which is visible nowhere. Returns `Timeout` as well, but not
    /// by the server, if the processes of other servers have all slots, or had them for most of
    /// that time.
    pub(crate) async fn ask<K: Kernel>(
        &self,
        kernel: &K,
        server: &str,
        call: &RemoteCall,
        within: Duration,
    ) -> Result<Replied<K>, Unanswered> {
        let (begun, lane) = (tokio::time::Instant::now(), lane(call));
        let slot = self.0.slot(server, lane, within).await?;
        WORKED.notify_one();
        let helper = kernel.start_helper(call);
        let mut running = slot.run(helper.map_err(|error| by_helper(error.into()))?);
        let process = running.process().map_err(by_helper)?;
        let left = within.saturating_sub(begun.elapsed());
        match timeout(left, process.answer()).await {
            Ok(answer) => {
                running.answered();
                Ok(Replied {
                    answer: answer.map_err(by_helper)?,
                    _running: running,
                })
            }
            Err(_) => {
                let mut overdue = running.overdue(within);
                if lane == &UNMOUNT {
                    overdue.failure = overdue.failure.may_be_running();
                }
                Err(overdue)
            }
        }
    }
}

/// The failure of a process that has answered, or could not be started. Only servers are
/// unreachable.
fn by_helper(failure: Failure) -> Unanswered {
    let by_server = failure.kind == Kind::Unreachable;
    Unanswered { failure, by_server }
}

/// Whether a mount whose unmount has failed so must be detached, for its pod to end: it is in use,
/// or its server has failed. Not after a failure of this node, or of a call not begun.
pub(crate) fn needs_detach(Unanswered { failure, by_server }: &Unanswered) -> bool {
    match failure.kind {
        Kind::Busy => true,
        Kind::Timeout => *by_server && failure.certainty == Certainty::MayBeRunning,
        Kind::Unreachable => *by_server,
        _ => false,
    }
}
