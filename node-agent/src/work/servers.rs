//! The helper processes that ask servers, and how many of them there may be.
//!
//! Bounded, for each server and in all: a server that does not answer must neither accumulate
//! processes nor delay the calls for another server. A process beyond its deadline is killed and
//! not waited for. Unmounts and statistics have slots that mounts cannot take. Knows no verb.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belay_server::call::{Certainty, Failure, Kind};
use belay_server::lock::Lock;
use metrics::{counter, gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::pool::WORKED;
use crate::kernel::{Answer, Helper, Kernel, RemoteCall};

/// Processes that change mounts of one server at a time.
const CHANGES: usize = 8;
/// How many of them mount. The others unmount: a pod must end whatever its server does.
const MOUNTS: usize = 6;
/// Processes that read the usage of volumes of one server at a time.
const READS: usize = 2;
/// Killed processes of one server that have not exited. With so many, it is only unmounted.
const KILLED_MAX: usize = 8;
/// The same for unmounts: one pod each, which must end whatever its server does.
const KILLED_UNMOUNTS_MAX: usize = 128;
/// All processes, of all servers, without killed unmounts. Each has less than a megabyte.
const TOTAL: usize = 64;

/// How long a process may take to exit after its answer was used.
const EXIT_MAX: Duration = Duration::from_secs(5);

/// Gauge: helper processes, by `state`.
const PROCESSES: &str = "belay_helper_processes";
/// Gauge: calls that wait until a helper process may be started.
const WAITING: &str = "belay_helper_waiting";
/// Counter: helper processes that were killed since their server did not answer.
const KILLS: &str = "belay_helper_kills_total";

/// Describes the metrics of this module, and sets them to 0.
pub(super) fn announce() {
    metrics::describe_gauge!(PROCESSES, "Helper processes that ask servers, by state.");
    metrics::describe_gauge!(WAITING, "Calls that wait for a helper process.");
    let help = "Helper processes that were killed because their server did not answer.";
    metrics::describe_counter!(KILLS, help);
    counter!(KILLS).absolute(0);
}

/// The kind of a call, and thus the slots that it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Mount,
    Unmount,
    Read,
}

impl Lane {
    fn of(call: &RemoteCall) -> Self {
        match call {
            RemoteCall::Mount(_) => Lane::Mount,
            RemoteCall::Unmount(_) | RemoteCall::Detach(_) => Lane::Unmount,
            RemoteCall::Usage(_) => Lane::Read,
        }
    }

    /// How many killed processes of a server forbid such a call to it.
    fn killed_max(self) -> usize {
        match self {
            Lane::Unmount => KILLED_UNMOUNTS_MAX,
            Lane::Mount | Lane::Read => KILLED_MAX,
        }
    }
}

/// The helper processes of all drivers.
pub(crate) struct Servers {
    servers: Lock<HashMap<Box<str>, Arc<Server>>>,
    all: Arc<Semaphore>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    waiting: AtomicUsize,
    running: AtomicUsize,
    killed: AtomicUsize,
}

/// One server.
struct Server {
    changes: Arc<Semaphore>,
    mounts: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    killed: AtomicUsize,
    /// Calls that the server has not answered in time, ever.
    unanswered: AtomicUsize,
}

/// The slots of one process.
struct Slots {
    _server: [Option<OwnedSemaphorePermit>; 2],
    all: OwnedSemaphorePermit,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// For the caller.
    pub(crate) failure: Failure,
    /// The server did not answer, or refused; else this node could not ask it.
    pub(crate) by_server: bool,
}

impl Unanswered {
    /// Whether a mount whose unmount has failed so must be detached, for its pod to end: it is in
    /// use, or its server has failed. Not after a failure of this node, or of a call not begun.
    pub(crate) fn needs_detach(&self) -> bool {
        match self.failure.kind {
            Kind::Busy => true,
            Kind::Timeout => self.by_server && self.failure.certainty == Certainty::MayBeRunning,
            Kind::Unreachable => self.by_server,
            _ => false,
        }
    }

    fn by_server(failure: Failure) -> Self {
        let by_server = true;
        Unanswered { failure, by_server }
    }

    fn by_node(failure: impl Into<Failure>) -> Self {
        let (failure, by_server) = (failure.into(), false);
        Unanswered { failure, by_server }
    }

    /// By a process that has answered, or ended. Only servers are unreachable.
    fn by_helper(failure: Failure) -> Self {
        let by_server = failure.kind == Kind::Unreachable;
        Unanswered { failure, by_server }
    }
}

/// An answer. Its process exits when this is dropped, and closes its mount.
pub(crate) struct Replied<K: Kernel> {
    /// The answer.
    pub(crate) answer: Answer<K::Fd>,
    _running: Running<K>,
}

/// A process with its slots. Dropped, it is seen to its end by a task.
struct Running<K: Kernel>(Option<Process<K>>);

struct Process<K: Kernel> {
    helper: K::Helper,
    slots: Slots,
    server: Arc<Server>,
    counts: Arc<Counts>,
    lane: Lane,
    /// It is not given time to exit.
    is_overdue: bool,
}

impl Servers {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Servers {
            servers: Lock::default(),
            all: Arc::new(Semaphore::new(TOTAL)),
            counts: Arc::default(),
        })
    }

    /// Has a helper process make the call to that server, within that time, which includes the wait
    /// for a slot.
    ///
    /// # Errors
    /// The failure of the call; `Unreachable` at once if too many processes hang on the server;
    /// `Timeout` if it does not answer in time: the call may then still have an effect, unless it
    /// was a mount, which is visible nowhere. `Timeout` as well, but not by the server, if the
    /// processes of other servers have all slots, or had them for most of that time.
    pub(crate) async fn ask<K: Kernel>(
        &self,
        kernel: &K,
        server: &str,
        call: &RemoteCall,
        within: Duration,
    ) -> Result<Replied<K>, Unanswered> {
        let end = Instant::now() + within;
        let lane = Lane::of(call);
        let of_server = self.of(server);
        of_server.refuse_hung(server, lane)?;
        let unanswered_before = of_server.unanswered.load(Ordering::Relaxed);
        let slots = {
            let _waiting = More::of(&self.counts.waiting);
            let own = timeout_at(end, of_server.slots(lane)).await;
            let _server = own.map_err(|_| match self.all.available_permits() {
                // Those before it wait for the other servers as well.
                0 => crowded(server, within),
                _ => late(server, within),
            })??;
            let all = timeout_at(end, permit(&self.all)).await;
            let all = all.map_err(|_| crowded(server, within))??;
            Slots { _server, all }
        };
        // It may have happened during the wait.
        of_server.refuse_hung(server, lane)?;
        WORKED.notify_one();
        let helper = kernel.start_helper(call).map_err(Unanswered::by_node)?;
        self.counts.running.fetch_add(1, Ordering::Relaxed);
        // It has half of the time; or the slot was that of a call that the server has not answered.
        let is_fair = end.saturating_duration_since(Instant::now()) >= within / 2
            || of_server.unanswered.load(Ordering::Relaxed) != unanswered_before;
        let by_whom = Arc::clone(&of_server);
        let mut running = Running::<K>(Some(Process {
            helper,
            slots,
            server: of_server,
            counts: Arc::clone(&self.counts),
            lane,
            is_overdue: false,
        }));
        match timeout_at(end, running.answer()).await {
            Ok(answered) => Ok(Replied {
                answer: answered.map_err(Unanswered::by_helper)?,
                _running: running,
            }),
            Err(_) => {
                running.overdue();
                Err(by_whom.overdue(server, lane, within, is_fair))
            }
        }
    }

    /// Sets the gauges.
    pub(crate) fn measure(&self) {
        let count =
            |count: &AtomicUsize| u32::try_from(count.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let processes = |state| gauge!(PROCESSES, "state" => state);
        processes("running").set(count(&self.counts.running));
        processes("killed").set(count(&self.counts.killed));
        gauge!(WAITING).set(count(&self.counts.waiting));
    }

    fn of(&self, server: &str) -> Arc<Server> {
        let mut servers = self.servers.lock();
        // Those with a process, or a call that waits for one, are held elsewhere.
        servers.retain(|_, server| Arc::strong_count(server) > 1);
        let found = servers.entry(server.into()).or_insert_with(|| {
            Arc::new(Server {
                changes: Arc::new(Semaphore::new(CHANGES)),
                mounts: Arc::new(Semaphore::new(MOUNTS)),
                reads: Arc::new(Semaphore::new(READS)),
                killed: AtomicUsize::new(0),
                unanswered: AtomicUsize::new(0),
            })
        });
        Arc::clone(found)
    }
}

impl Server {
    async fn slots(&self, lane: Lane) -> Result<[Option<OwnedSemaphorePermit>; 2], Unanswered> {
        Ok(match lane {
            Lane::Mount => [
                Some(permit(&self.mounts).await?),
                Some(permit(&self.changes).await?),
            ],
            Lane::Unmount => [Some(permit(&self.changes).await?), None],
            Lane::Read => [Some(permit(&self.reads).await?), None],
        })
    }

    /// A call that was begun has no answer.
    fn overdue(&self, name: &str, lane: Lane, within: Duration, is_fair: bool) -> Unanswered {
        let within = within.as_secs();
        let (by_whom, why): (fn(Failure) -> Unanswered, _) = if is_fair {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            (
                Unanswered::by_server,
                format!("no answer within {within} s"),
            )
        } else {
            let why = format!("of {within} s, most passed before this node began the call");
            (Unanswered::by_node, why)
        };
        let message = format!("server {name}: {why}; the call was cancelled; retry");
        let failure = Failure::timeout(message);
        by_whom(match lane {
            Lane::Unmount => failure.may_be_running(),
            Lane::Mount | Lane::Read => failure,
        })
    }

    fn refuse_hung(&self, name: &str, lane: Lane) -> Result<(), Unanswered> {
        let killed = self.killed.load(Ordering::Relaxed);
        if killed < lane.killed_max() {
            return Ok(());
        }
        let message = format!(
            "server {name}: {killed} killed processes have not exited, since the server does not \
             answer; they exit when it does"
        );
        Err(Unanswered::by_server(Failure::new(
            Kind::Unreachable,
            message,
        )))
    }
}

fn late(server: &str, within: Duration) -> Unanswered {
    Unanswered::by_server(Failure::timeout(format!(
        "server {server}: no answer to earlier calls within {} s; this call was not begun; retry",
        within.as_secs()
    )))
}

fn crowded(server: &str, within: Duration) -> Unanswered {
    Unanswered::by_node(Failure::timeout(format!(
        "server {server}: for {} s, all {TOTAL} helper processes of this node were waiting for \
         other servers; this call was not begun; retry",
        within.as_secs()
    )))
}

impl<K: Kernel> Running<K> {
    async fn answer(&mut self) -> Result<Answer<K::Fd>, Failure> {
        match &mut self.0 {
            Some(process) => process.helper.answer().await,
            None => Err(Failure::bug("a process that has ended was asked")),
        }
    }

    fn overdue(&mut self) {
        if let Some(process) = &mut self.0 {
            process.is_overdue = true;
        }
    }
}

impl<K: Kernel> Drop for Running<K> {
    fn drop(&mut self) {
        if let Some(process) = self.0.take()
            // Without a runtime, the process is killed with this one.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn(process.see_to_its_end()));
        }
    }
}

impl<K: Kernel> Process<K> {
    /// Waits until it has exited, and kills it if it does not: it holds its slot until then, and
    /// counts as killed after that.
    async fn see_to_its_end(mut self) {
        self.helper.close();
        let exits = !self.is_overdue && timeout(EXIT_MAX, self.helper.exited()).await.is_ok();
        self.counts.running.fetch_sub(1, Ordering::Relaxed);
        if exits {
            return;
        }
        counter!(KILLS).increment(1);
        self.helper.kill();
        let Slots { _server, all } = self.slots;
        // A killed unmount has freed its path. Those of one server must not keep others waiting.
        let _all = (self.lane != Lane::Unmount).then_some(all);
        {
            let _of_server = More::of(&self.server.killed);
            let _of_all = More::of(&self.counts.killed);
            drop(_server);
            self.helper.exited().await;
        }
    }
}

/// One more, until it is dropped.
struct More<'a>(&'a AtomicUsize);

impl<'a> More<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        More(count)
    }
}

impl Drop for More<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn permit(slots: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Unanswered> {
    let permit = Arc::clone(slots).acquire_owned().await;
    permit.map_err(|_| Unanswered::by_node(Failure::bug("the slots of a server were closed")))
}
