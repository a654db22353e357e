//! The helper processes that make calls to storage servers, and their limits. Unmounts and
//! statistics have slots that mounts cannot take. Must not know a CSI call.

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
/// The limit for mounts that run at the same time, within [`CHANGES`]. The remaining slots are for
/// unmounts, since a pod must terminate even if its server does not answer.
const MOUNTS: Group = Group::new(6, "its mounts");
const READS: Group = Group::new(2, "its statistics");

static MOUNT: Lane = Lane::new(&[MOUNTS, CHANGES], KILLED_MAX);
static UNMOUNT: Lane = Lane::new(&[CHANGES], KILLED_UNMOUNTS_MAX);
static READ: Lane = Lane::new(&[READS], KILLED_MAX);

/// Maximum number of helper processes of one server that were killed and have not exited. At that
/// number, the server's volumes can still be unmounted, but neither mounted nor measured.
const KILLED_MAX: usize = 8;
/// Maximum number of killed unmounts of one server that have not exited. It is higher than
/// [`KILLED_MAX`], since each unmount is for a pod that must terminate even if its server does not
/// answer.
const KILLED_UNMOUNTS_MAX: usize = 128;

fn lane(call: &RemoteCall) -> &'static Lane {
    match call {
        RemoteCall::Mount(_) => &MOUNT,
        RemoteCall::Unmount(_) | RemoteCall::Detach(_) => &UNMOUNT,
        RemoteCall::Usage(_) => &READ,
    }
}

/// The helper processes of all drivers, and their limits.
pub(crate) struct Servers(Helpers);

/// The answer of a helper process. When this is dropped, the process exits and closes its
/// descriptor of the mount.
pub(crate) struct Replied<K: Kernel> {
    /// The content of the answer.
    pub(crate) answer: Answer<K::Fd>,
    _running: Running<K::Helper>,
}

impl Servers {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Servers(Helpers::new(&HELPER)))
    }

    /// Makes the call to the server in a helper process. The deadline `within` includes the wait
    /// for a slot.
    ///
    /// # Errors
    /// Returns the failure of the call. Returns `Unreachable` at once if too many killed processes
    /// of this server have not exited. Returns `Timeout` if the server does not answer in time; the
    /// call may then still have an effect, unless it was a mount, which is not visible at any path.
    ///
    /// Returns `Timeout` with `by_server` unset if processes of other servers held all slots until
    /// the deadline, or for most of the time until then.
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

/// Marks a failure of a process that has answered, or that could not be started. The server is the
/// cause only if it is unreachable.
fn by_helper(failure: Failure) -> Unanswered {
    let by_server = failure.kind == Kind::Unreachable;
    Unanswered { failure, by_server }
}

/// Whether a mount must be detached after this failure of its unmount, so that its pod can
/// terminate. This is so if the mount is in use, or if its server does not answer; not if this node
/// has failed, or if the unmount was never started.
pub(crate) fn needs_detach(Unanswered { failure, by_server }: &Unanswered) -> bool {
    match failure.kind {
        Kind::Busy => true,
        Kind::Timeout => *by_server && failure.certainty == Certainty::MayBeRunning,
        Kind::Unreachable => *by_server,
        _ => false,
    }
}
