//! Limits the number of helper processes, for each server and in total, and follows each process
//! until it has exited. If a storage server does not respond, the number of its processes must not
//! grow without limit, and calls for other servers must not be delayed. A process that exceeds its
//! deadline is killed. No call waits for the exit of that process, since the process may remain
//! until its server responds.

use super::lane::{Group, Lane, More, Spec};
use crate::call::{Failure, Kind};
use crate::lock::Lock;
use metrics::{counter, gauge};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum number of processes of a [`Spec`] for all servers together, without killed processes.
pub const TOTAL: usize = 64;
/// Maximum time for a process to exit after its connection was closed.
pub(super) const EXIT_MAX: Duration = Duration::from_secs(5);

/// A process that can be killed.
pub trait Process: Send + 'static {
    /// Closes the connection. A process that has sent its result exits when its connection is
    /// closed.
    fn close(&mut self);
    /// Sends SIGKILL. The process may remain until its server responds.
    fn kill(&mut self);
    /// Waits until the process has exited, and reaps it.
    fn exited(&mut self) -> impl Future<Output = ()> + Send;
}

/// The failure of a call that has no result.
#[derive(Debug)]
pub struct Unanswered {
    /// The failure, for the caller.
    pub failure: Failure,
    /// Whether the server is to blame, since it did not respond to this call or to earlier calls.
    /// If false, this host had no free process, or no time, to query the server.
    pub by_server: bool,
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        unanswered.failure
    }
}

/// The helper processes of a program.
pub struct Helpers {
    spec: &'static Spec,
    pub(super) servers: Lock<HashMap<Box<str>, Arc<Server>>>,
    pub(super) all: Arc<Semaphore>,
}

pub(super) struct Server {
    name: Box<str>,
    groups: Lock<HashMap<&'static str, Arc<Semaphore>>>,
    /// Number of killed processes that have not exited.
    pub(super) killed: AtomicUsize,
    /// Number of calls so far to which the server has not responded in time.
    unanswered: AtomicUsize,
}

/// The right to start a process.
pub struct Slot {
    spec: &'static Spec,
    server: Arc<Server>,
    /// The permits of the lane's groups. The flag states whether a killed process keeps the permit.
    groups: Vec<(bool, OwnedSemaphorePermit)>,
    all: OwnedSemaphorePermit,
    granted: Instant,
    /// The value of [`Server::unanswered`] when the call began to wait for the slot.
    unanswered_before: usize,
}

/// A running process with its slot. When this value is dropped, the connection is closed, and a
/// task waits for the exit of the process.
pub struct Running<P: Process>(Option<Followed<P>>);

struct Followed<P> {
    process: P,
    slot: Slot,
    running: More,
    /// Whether the process has sent its result. If the process has sent no result, it is killed at
    /// once when this value is dropped.
    has_answered: bool,
}

impl Helpers {
    /// Creates the limits of a program that runs no helper process yet. Registers the help texts of
    /// the metrics, and sets the metrics to 0.
    #[must_use]
    pub fn new(spec: &'static Spec) -> Self {
        metrics::describe_gauge!(spec.processes, "Processes that ask servers, by state.");
        let help = "Processes that were killed because their server did not answer.";
        metrics::describe_counter!(spec.kills, help);
        counter!(spec.kills).absolute(0);
        for state in ["running", "killed"] {
            gauge!(spec.processes, "state" => state).set(0.0);
        }
        if let Some(waiting) = spec.waiting {
            metrics::describe_gauge!(waiting, "Calls that wait for a process.");
            gauge!(waiting).set(0.0);
        }
        Self {
            spec,
            servers: Lock::default(),
            all: Arc::new(Semaphore::new(TOTAL)),
        }
    }

    /// Waits for a slot of each group of the lane.
    ///
    /// # Errors
    /// Returns `Unreachable` at once if too many killed processes remain; `Timeout` if no slot was
    /// free in time. The failure blames the server, unless processes for other servers occupied all
    /// slots.
    pub async fn slot(
        &self,
        server: &str,
        lane: &Lane,
        within: Duration,
    ) -> Result<Slot, Unanswered> {
        let end = Instant::now() + within;
        let server = self.of(server);
        server.refuse_hung(lane)?;
        let unanswered_before = server.unanswered.load(Ordering::Relaxed);
        let waiting = self.spec.waiting.map(|name| More::of(gauge!(name)));
        let mut groups = Vec::new();
        for group in lane.groups {
            let permit = permit(server.slots(group), end).await;
            // If all slots of the program are in use, the calls that hold the server's slots may
            // themselves be waiting for a slot, so the server is not to blame.
            let of_server = self.all.available_permits() > 0;
            let blamed = of_server.then_some(group);
            let permit = permit.ok_or_else(|| self.occupied(&server, blamed, within))?;
            groups.push((group.is_kept, permit));
        }
        let all = permit(Arc::clone(&self.all), end).await;
        let all = all.ok_or_else(|| self.occupied(&server, None, within))?;
        drop(waiting);
        // Check the number of killed processes again, since processes may have been killed during
        // the wait.
        server.refuse_hung(lane)?;
        Ok(Slot {
            spec: self.spec,
            server,
            groups,
            all,
            granted: Instant::now(),
            unanswered_before,
        })
    }

    /// Refuses a call that [`Helpers::slot`] would refuse at once.
    ///
    /// # Errors
    /// Returns `Unreachable` if too many killed processes of the server have not exited.
    pub fn refuse_hung(&self, server: &str, lane: &Lane) -> Result<(), Unanswered> {
        self.of(server).refuse_hung(lane)
    }

    pub(super) fn of(&self, name: &str) -> Arc<Server> {
        let mut servers = self.servers.lock();
        // Keep only the servers that a process or a waiting call refers to.
        servers.retain(|_, server| Arc::strong_count(server) > 1);
        let found = servers.entry(name.into()).or_insert_with(|| {
            Arc::new(Server {
                name: name.into(),
                groups: Lock::default(),
                killed: AtomicUsize::new(0),
                unanswered: AtomicUsize::new(0),
            })
        });
        Arc::clone(found)
    }

    /// Returns the number of processes that are running or being started.
    #[must_use]
    pub fn running(&self) -> usize {
        TOTAL - self.all.available_permits()
    }

    /// Returns the number of processes that were killed and have not exited.
    #[must_use]
    pub fn killed(&self) -> usize {
        let servers = self.servers.lock();
        let killed = servers.values().map(|it| it.killed.load(Ordering::Relaxed));
        killed.sum()
    }

    /// Returns the failure of a call that got no slot of this group. `None` stands for the slots
    /// that all servers share.
    fn occupied(&self, server: &Server, group: Option<&Group>, within: Duration) -> Unanswered {
        let (server, name, within) = (&server.name, self.spec.name, within.as_secs());
        let which = match group {
            Some(Group { slots, purpose, .. }) => format!("{slots} {name} processes for {purpose}"),
            None => format!("{TOTAL} {name} processes"),
        };
        let why = match group {
            Some(_) => "; if it answers, other calls take long",
            None => ", since other servers do not answer",
        };
        let failure = Failure::timeout(format!(
            "server {server}: none of {which} was free within {within} s{why}; this call was not \
             begun; retry"
        ));
        let by_server = group.is_some();
        Unanswered { failure, by_server }
    }
}

impl Server {
    fn slots(&self, group: &Group) -> Arc<Semaphore> {
        let mut groups = self.groups.lock();
        let slots = groups.entry(group.purpose);
        Arc::clone(slots.or_insert_with(|| Arc::new(Semaphore::new(group.slots))))
    }

    fn refuse_hung(&self, lane: &Lane) -> Result<(), Unanswered> {
        let killed = self.killed.load(Ordering::Relaxed);
        if killed < lane.killed_max {
            return Ok(());
        }
        let message = format!(
            "server {}: {killed} killed processes have not exited, since the server does not \
             answer; they exit when it does",
            self.name
        );
        let (failure, by_server) = (Failure::new(Kind::Unreachable, message), true);
        Err(Unanswered { failure, by_server })
    }
}

impl Slot {
    /// Assigns the slot to the process, and tracks the process until it exits.
    pub fn run<P: Process>(self, process: P) -> Running<P> {
        Running(Some(Followed {
            process,
            running: self.spec.one_more("running"),
            slot: self,
            has_answered: false,
        }))
    }
}

impl<P: Process> Running<P> {
    /// Returns the process.
    ///
    /// # Errors
    /// Returns `Bug` if the process has ended, which happens only on drop.
    pub fn process(&mut self) -> Result<&mut P, Failure> {
        let followed = self.0.as_mut();
        let followed =
            followed.ok_or_else(|| Failure::bug("a process that has ended was asked"))?;
        Ok(&mut followed.process)
    }

    /// Records that the process has sent its result, so that the process has time to exit when this
    /// value is dropped. Otherwise, dropping this value kills the process at once, since its call
    /// is overdue or the caller has disconnected.
    pub fn answered(&mut self) {
        if let Some(followed) = &mut self.0 {
            followed.has_answered = true;
        }
    }

    /// Returns the error for a call that had no result within the time `within`. The server is
    /// blamed if the process had at least half of the time, or if the server has failed to respond
    /// to a different call since this call began to wait for a slot.
    pub fn overdue(&mut self, within: Duration) -> Unanswered {
        let Some(followed) = &self.0 else {
            let (failure, by_server) = (Failure::bug("a process has ended twice"), false);
            return Unanswered { failure, by_server };
        };
        let slot = &followed.slot;
        let Server {
            name, unanswered, ..
        } = &*slot.server;
        let by_server = slot.granted.elapsed() >= within / 2
            || unanswered.load(Ordering::Relaxed) != slot.unanswered_before;
        let within = within.as_secs();
        let why = if by_server {
            unanswered.fetch_add(1, Ordering::Relaxed);
            format!("no answer within {within} s")
        } else {
            format!("of {within} s, most passed before the call was begun")
        };
        let message = format!("server {name}: {why}; the call was cancelled; retry");
        let failure = Failure::timeout(message);
        Unanswered { failure, by_server }
    }
}

impl<P: Process> Drop for Running<P> {
    fn drop(&mut self) {
        let Some(mut followed) = self.0.take() else {
            return;
        };
        followed.process.close();
        // If there is no runtime, this program is exiting, and the helper process is killed with
        // it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(followed.until_exit()));
        }
    }
}

impl<P: Process> Followed<P> {
    /// Waits until the process has exited. Kills the process at once if it has sent no result, and
    /// after [`EXIT_MAX`] otherwise. The process holds its slot until it is killed. After the kill,
    /// the process is counted as a killed process.
    async fn until_exit(self) {
        let Self {
            mut process,
            slot,
            running,
            has_answered,
        } = self;
        let exits = has_answered && timeout(EXIT_MAX, process.exited()).await.is_ok();
        drop(running);
        if exits {
            return;
        }
        counter!(slot.spec.kills).increment(1);
        process.kill();
        // Killed processes of one server must not delay the calls for other servers.
        drop(slot.all);
        slot.server.killed.fetch_add(1, Ordering::Relaxed);
        let _killed = slot.spec.one_more("killed");
        let kept = slot.groups.into_iter().filter(|(is_kept, _)| *is_kept);
        let _kept: Vec<_> = kept.collect();
        process.exited().await;
        slot.server.killed.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for a slot; returns `None` at the time `end`. The semaphore is never closed.
async fn permit(slots: Arc<Semaphore>, end: Instant) -> Option<OwnedSemaphorePermit> {
    timeout_at(end, slots.acquire_owned()).await.ok()?.ok()
}
