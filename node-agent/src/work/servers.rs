//! The helper processes that make system calls which may wait for a storage server, and the limits
//! for these processes. Some slots are reserved for unmounts and statistics. This module must not
//! depend on a particular CSI call.

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
/// The limit for concurrent mounts, which also occupy slots of [`CHANGES`]. The remaining slots of
/// [`CHANGES`] are reserved for unmounts, because a pod must be able to terminate even if its
/// server does not respond.
const MOUNTS: Group = Group::new(6, "its mounts");
const READS: Group = Group::new(2, "its statistics");

static MOUNT: Lane = Lane::new(&[MOUNTS, CHANGES], KILLED_MAX);
static UNMOUNT: Lane = Lane::new(&[CHANGES], KILLED_UNMOUNTS_MAX);
static READ: Lane = Lane::new(&[READS], KILLED_MAX);

/// Maximum number of helper processes of one server that were killed and have not exited. When this
/// number is reached, no volume of the server can be mounted or measured, but its volumes can still
/// be unmounted.
const KILLED_MAX: usize = 8;
/// Maximum number of helper processes for unmounts of one server that were killed and have not
/// exited. The limit for unmounts is higher than [`KILLED_MAX`], because a pod must be able to
/// terminate even if its server does not respond.
const KILLED_UNMOUNTS_MAX: usize = 128;

fn lane(call: &RemoteCall) -> &'static Lane {
    match call {
        RemoteCall::Mount(_) => &MOUNT,
        RemoteCall::Unmount(_) | RemoteCall::Detach(_) => &UNMOUNT,
        RemoteCall::Usage(_) => &READ,
    }
}

/// The helper processes of all drivers, and the limits for these processes.
pub(crate) struct Servers(Helpers);

/// The response of a helper process. When the response is dropped, the process exits and closes its
/// descriptor of the mount.
pub(crate) struct Replied<K: Kernel> {
    /// The result of the system call.
    pub(crate) answer: Answer<K::Fd>,
    _running: Running<K::Helper>,
}

impl Servers {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Servers(Helpers::new(&HELPER)))
    }

    /// Makes a system call that may wait for the server, in a helper process. The time limit
    /// `within` includes the wait for a slot.
    ///
    /// # Errors
    /// Returns the failure of the system call. Returns `Unreachable` immediately if too many killed
    /// processes of this server have not exited. Returns `Timeout` if the server does not respond
    /// in time. An unmount may then still take effect, but a mount is never attached to a path.
    ///
    /// Returns `Timeout` with `by_server` unset if processes of other servers occupied all slots
    /// for all or most of the time.
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

/// Converts the failure of a helper process that has responded, or that could not be started. The
/// server is considered the cause only if the failure is `Unreachable`.
fn by_helper(failure: Failure) -> Unanswered {
    let by_server = failure.kind == Kind::Unreachable;
    Unanswered { failure, by_server }
}

/// Whether a mount must be detached after this failure of its unmount, so that its pod can
/// terminate. Returns `true` if the mount is in use, or if its server does not respond; `false` if
/// the cause is on this node, or if the unmount was never started.
pub(crate) fn needs_detach(Unanswered { failure, by_server }: &Unanswered) -> bool {
    match failure.kind {
        Kind::Busy => true,
        Kind::Timeout => *by_server && failure.certainty == Certainty::MayBeRunning,
        Kind::Unreachable => *by_server,
        _ => false,
    }
}
