//! Worker processes, and the limits on their number. At most one process changes a directory at a
//! time, even if two calls for different volumes refer to the same directory.

mod copies;
mod running;
mod turns;

use super::call::{Call, Done, Mount, Work};
use super::worker::ARGUMENT;
use belay_server::call::{Failure, Kind};
use belay_server::helper::{Child, Group, Helpers, Lane, Spec, program};
use copies::Copies;
use running::{Worker, overdue};
use std::process::Command;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use turns::{Directories, Directory, Turn};

static WORKER: Spec = Spec {
    name: "worker",
    processes: "belay_worker_processes",
    waiting: None,
    kills: "belay_worker_kills_total",
};

const OF_SERVER: Group = Group::new(8, "it").kept();
/// The limit on deletions. A deletion may remove files until its deadline, so without this limit,
/// deletions could occupy all slots of a server.
const DELETIONS: Group = Group::new(4, "its deletions").kept();
const COPIES: Group = Group::new(2, "its copies");

static DELETION: Lane = Lane::new(&[DELETIONS, OF_SERVER], OF_SERVER.slots);
static COPY: Lane = Lane::new(&[COPIES, OF_SERVER], OF_SERVER.slots);
static OTHER: Lane = Lane::new(&[OF_SERVER], OF_SERVER.slots);

/// The worker processes of the backend.
pub(super) struct Processes {
    helpers: Helpers,
    directories: Directories,
    copies: Copies,
    /// Returns the command that starts a worker process. Tests replace this function.
    worker: fn() -> Command,
}

impl Processes {
    pub(super) fn new() -> Self {
        Self {
            helpers: Helpers::new(&WORKER),
            directories: Directories::default(),
            copies: Copies::default(),
            worker: || program(ARGUMENT),
        }
    }

    /// Performs the work in a worker process. `within` includes the wait for a slot.
    ///
    /// # Errors
    /// Returns the error of the call; `Unreachable` immediately if too many processes hang on the
    /// server; `Busy` if another process changes the directory; `Timeout` if the server does not
    /// respond in time. After a timeout, the call may still take effect if its work had begun.
    pub(super) async fn ask(
        &self,
        mount: Mount,
        work: Work,
        within: Duration,
    ) -> Result<Done, Failure> {
        let end = Instant::now() + within;
        let name = mount.server.to_ascii_lowercase();
        let lane = match work {
            Work::Delete(_) => &DELETION,
            _ => &OTHER,
        };
        self.helpers.refuse_hung(&name, lane)?;
        let changed = work.changed();
        let turn = changed.map(|dir| self.directories.turn(Directory::of(&mount, dir)));
        let (turn, changes) = (turn.transpose()?, changed.is_some());
        let slot = self.helpers.slot(&name, lane, within).await?;
        let call = Call {
            mount,
            work,
            within: end.saturating_duration_since(Instant::now()),
        };
        let mut running = slot.run(self.start(&call, turn)?);
        let answer = match timeout_at(end, running.process()?.answer()).await {
            Ok(answer) => {
                running.answered();
                answer
            }
            Err(_) => Err(overdue(&mut running, &name, within)),
        };
        match changes {
            true => answer,
            false => answer.map_err(Failure::nothing_happened),
        }
    }

    fn start(&self, call: &Call, turn: Option<Turn>) -> Result<Worker, Failure> {
        let child = Child::start(WORKER.name, (self.worker)(), call);
        let child = child.map_err(|error| {
            Failure::new(Kind::System, format!("exec of a worker process: {error}"))
        })?;
        Ok(Worker::new(child, turn))
    }
}

#[cfg(test)]
mod tests;
