//! The worker processes, and how many of them there may be.
//!
//! A call that a server must answer is made by a separate process, with a deadline: after it, the
//! process is killed, and not waited for, since it may remain until its server answers. Bounded for
//! each server and in all, so that a server that does not answer delays no calls for another one.
//!
//! Two processes never change one directory at a time, whichever volumes the calls are for.

mod copies;
mod running;
mod turns;

use super::call::{Done, Mount, Work};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use copies::Copies;
use metrics::{counter, gauge};
use running::{Running, worker};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use turns::{Directories, Directory};

/// Processes of one server at a time, with those that were killed and have not exited. If these are
/// so many, it is asked no more.
const OF_SERVER: usize = 8;
/// Of these, those of deletions: they remove files for as long as their call may take, so many of
/// them would leave no slot for creations.
const DELETIONS_OF_SERVER: usize = 4;
/// All processes, of all servers, without those that were killed: servers that do not answer must
/// leave slots for others.
const TOTAL: usize = 64;

/// Gauge: worker processes, by `state`.
const PROCESSES: &str = "belay_worker_processes";
/// Counter: worker processes that were killed since their server did not answer.
const KILLS: &str = "belay_worker_kills_total";

/// The worker processes of the backend.
pub(super) struct Processes {
    servers: Lock<HashMap<String, Arc<Server>>>,
    all: Arc<Semaphore>,
    directories: Directories,
    copies: Copies,
    /// The program.
    worker: fn() -> Command,
}

/// The slots of a process.
struct Slots {
    _of_deletions: Option<OwnedSemaphorePermit>,
    _of_server: OwnedSemaphorePermit,
    /// None once it was killed.
    of_all: Option<OwnedSemaphorePermit>,
}

/// Whose processes were awaited in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Deletions,
    Server,
    All,
}

struct Server {
    slots: Arc<Semaphore>,
    /// Of these, those that copies may take.
    copies: Arc<Semaphore>,
    deletions: Arc<Semaphore>,
    killed: AtomicUsize,
}

impl Processes {
    pub(super) fn new() -> Self {
        metrics::describe_gauge!(PROCESSES, "Worker processes that ask servers, by state.");
        let help = "Worker processes that were killed because their server did not answer.";
        metrics::describe_counter!(KILLS, help);
        counter!(KILLS).absolute(0);
        for state in ["running", "killed"] {
            gauge!(PROCESSES, "state" => state).set(0.0);
        }
        Self {
            servers: Lock::default(),
            all: Arc::new(Semaphore::new(TOTAL)),
            directories: Directories::default(),
            copies: Copies::default(),
            worker,
        }
    }

    /// Has a worker process do it, within that time, which includes the wait for a slot.
    ///
    /// # Errors
    /// The failure of the call; `Unreachable` at once if too many processes hang on the server;
    /// `Busy` if another process changes the directory; `Timeout` if the server does not answer in
    /// time: the call may then still have an effect if it was begun.
    pub(super) async fn ask(
        &self,
        mount: Mount,
        work: Work,
        within: Duration,
    ) -> Result<Done, Failure> {
        let end = Instant::now() + within;
        let name = mount.server.to_ascii_lowercase();
        let server = self.of(&name);
        server.refuse_hung(&name)?;
        let turn = match work.changed() {
            Some(dir) => Some(self.directories.turn(Directory::of(&mount, dir))?),
            None => None,
        };
        let slots = self.slots(&server, &work, end).await;
        let slots = slots.map_err(|awaited| awaited.failure(&name, within))?;
        // It may have happened during the wait.
        server.refuse_hung(&name)?;
        let changes = work.changed().is_some();
        let mut running = Running::start((self.worker)(), slots, server, turn)?;
        let left = end.saturating_duration_since(Instant::now());
        let answer = match timeout_at(end, running.answer(mount, work, left)).await {
            Ok(answer) => answer,
            Err(_) => Err(running.unanswered(&name, within)),
        };
        match changes {
            true => answer,
            false => answer.map_err(Failure::nothing_happened),
        }
    }

    async fn slots(&self, server: &Server, work: &Work, end: Instant) -> Result<Slots, Awaited> {
        let of_deletions = match work {
            Work::Delete(_) => Some(permit(&server.deletions, end, Awaited::Deletions).await?),
            _ => None,
        };
        let of_server = permit(&server.slots, end, Awaited::Server).await?;
        let of_all = permit(&self.all, end, Awaited::All).await?;
        Ok(Slots {
            _of_deletions: of_deletions,
            _of_server: of_server,
            of_all: Some(of_all),
        })
    }

    fn of(&self, name: &str) -> Arc<Server> {
        let mut servers = self.servers.lock();
        // Those with a process, or a call that waits for one, are held elsewhere.
        servers.retain(|_, server| Arc::strong_count(server) > 1);
        let found = servers.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Server {
                slots: Arc::new(Semaphore::new(OF_SERVER)),
                copies: Arc::new(Semaphore::new(copies::OF_SERVER)),
                deletions: Arc::new(Semaphore::new(DELETIONS_OF_SERVER)),
                killed: AtomicUsize::new(0),
            })
        });
        Arc::clone(found)
    }
}

impl Server {
    fn refuse_hung(&self, name: &str) -> Result<(), Failure> {
        let killed = self.killed.load(Ordering::Relaxed);
        if killed < OF_SERVER {
            return Ok(());
        }
        let message = format!(
            "server {name}: {killed} killed processes have not exited, since the server does not \
             answer; they exit when it does"
        );
        Err(Failure::new(Kind::Unreachable, message))
    }
}

impl Awaited {
    fn failure(self, server: &str, within: Duration) -> Failure {
        let (seconds, why) = (within.as_secs(), "this call was not begun; retry");
        Failure::timeout(match self {
            Self::Deletions => format!(
                "server {server}: {DELETIONS_OF_SERVER} workers of it delete other volumes, or \
                 were killed since it did not answer; none was free within {seconds} s; {why}"
            ),
            Self::Server => format!(
                "server {server}: none of {OF_SERVER} worker processes for it was free within \
                 {seconds} s; if it answers, other calls take long; {why}"
            ),
            Self::All => format!(
                "server {server}: none of {TOTAL} worker processes was free within {seconds} s, \
                 since other servers do not answer; {why}"
            ),
        })
    }
}

/// A slot before `end`. They are never closed.
async fn permit(
    slots: &Arc<Semaphore>,
    end: Instant,
    awaited: Awaited,
) -> Result<OwnedSemaphorePermit, Awaited> {
    let permit = timeout_at(end, Arc::clone(slots).acquire_owned()).await;
    permit.ok().and_then(Result::ok).ok_or(awaited)
}

#[cfg(test)]
mod tests;
