//! Copies in progress: clones, restored volumes and archives of volumes. A copy may outlast the RPC
//! that requested it. The worker process then continues, and a repeated RPC finds the copy in the
//! records of this module. When the controller exits, the process exits too, and the next RPC
//! starts the copy again.

use super::super::super::NameRecorder;
use super::super::call::{Call, Copied, Done, Mount, Said, Task, Work};
use super::running::overdue;
use super::turns::{Directory, Turn};
use super::{COPY, Processes};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use belay_server::size::Rounded;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Maximum time without a message from a process; the controller then kills the process. This time
/// is longer than the time after which a soft mount reports that a server does not respond.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// Maximum time for which a copy waits for a slot.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Time between two log lines about the progress of a copy.
const LOG: Duration = Duration::from_secs(60);
/// The reasons why a copy has not begun, for error messages.
const OTHERS: &str = "waits for other copies of that server";
const MOUNT: &str = "waits until its share is mounted";
/// Time for which the error of a failed copy is kept for the next call.
const FAILURE_MAX: Duration = Duration::from_secs(3600);

/// The copies that are in progress or have recently failed, by the directory that they change.
#[derive(Default)]
pub(super) struct Copies(Lock<HashMap<Directory, Copy>>);

/// A copy that a call has begun.
struct Copy {
    of: Task,
    state: watch::Receiver<State>,
}

#[derive(Clone, Debug)]
enum State {
    /// The copy has not begun. Contains the reason.
    Waiting(&'static str),
    Running(Copied),
    /// The copy ended at this time, with this result.
    Ended(Instant, Result<Done, Failure>),
}

impl Processes {
    /// Copies, archives or restores a volume in a worker process, or waits for a process that is
    /// already doing so.
    ///
    /// # Errors
    /// Returns the errors of [`Self::ask`], and `Busy` if the copy is not complete after `within`.
    /// After `Busy`, the copy continues. `begun` contains the copy until the copy has ended, or
    /// longer if the copy has left files behind.
    pub(in super::super) async fn copy(
        self: &Arc<Self>,
        (mount, work): (Mount, Work),
        within: Duration,
        begun: NameRecorder,
    ) -> Result<Done, Failure> {
        let (Some(task), Some(dir)) = (work.task(), work.changed()) else {
            return Err(Failure::bug("a call that takes no time is no copy"));
        };
        let directory = Directory::of(&mount, dir);
        let mut state = self.joined(&directory, task.clone(), (mount, work), begun)?;
        let ended = state.wait_for(|state| matches!(state, State::Ended(..)));
        // The state shows whether the copy has ended in time.
        let is_closed = matches!(timeout(within, ended).await, Ok(Err(_)));
        let state = state.borrow().clone();
        match state {
            State::Ended(_, result) => {
                // The result is returned to this caller, so the result need not be stored.
                self.copies.forget(&directory);
                result
            }
            _ if is_closed => {
                self.copies.forget(&directory);
                Err(Failure::bug("a copy has ended without a result").may_be_running())
            }
            state => Err(unfinished(&directory, &task, &state)),
        }
    }

    /// Returns the copy in progress for the directory, or starts a copy.
    fn joined(
        self: &Arc<Self>,
        directory: &Directory,
        of: Task,
        call: (Mount, Work),
        begun: NameRecorder,
    ) -> Result<watch::Receiver<State>, Failure> {
        let mut all = self.copies.0.lock();
        all.retain(|_, copy| !copy.is_forgotten());
        if let Some(copy) = all.get(directory)
            && copy.of == of
        {
            return Ok(copy.state.clone());
        }
        self.helpers.refuse_hung(&directory.server, &COPY)?;
        // Returns `Busy` while another copy or call changes the directory.
        let turn = self.directories.turn(directory.clone())?;
        let (sender, state) = watch::channel(State::Waiting(OTHERS));
        let copy = Copy {
            of: of.clone(),
            state: state.clone(),
        };
        all.insert(directory.clone(), copy);
        let (processes, directory) = (Arc::clone(self), directory.clone());
        // Record the copy now, since its callers may disconnect while the copy is still waiting for
        // a slot.
        let begun = begun.start();
        tokio::spawn(async move {
            let copied = processes.copied(turn, (&of, call), &sender);
            let result = copied.await;
            log(&directory, &of, &result);
            let is_made = result.is_ok();
            begun.end(&result);
            sender.send_replace(State::Ended(Instant::now(), result));
            if is_made {
                // The volume or snapshot exists on the server now, so later calls find it on the
                // server.
                processes.copies.forget(&directory);
            }
        });
        Ok(state)
    }

    async fn copied(
        &self,
        turn: Turn,
        (of, (mount, work)): (&Task, (Mount, Work)),
        state: &watch::Sender<State>,
    ) -> Result<Done, Failure> {
        let name = mount.server.to_ascii_lowercase();
        let dir = work.changed().map(ToString::to_string).unwrap_or_default();
        let Task { doing, source, .. } = of;
        let slot = self.helpers.slot(&name, &COPY, WAIT_MAX).await?;
        tracing::info!(server = name, dir, source, "{doing}");
        state.send_replace(State::Waiting(MOUNT));
        let call = Call {
            mount,
            work,
            within: SILENCE_MAX,
        };
        let mut running = slot.run(self.start(&call, Some(turn))?);
        let mut logged = Instant::now();
        loop {
            let said = timeout(SILENCE_MAX, running.process()?.next()).await;
            match said.map_err(|_| overdue(&mut running, &name, SILENCE_MAX))?? {
                Said::Mounted => {
                    state.send_replace(State::Running(Copied::default()));
                }
                Said::Answer(answer) => {
                    running.answered();
                    if let State::Running(copied) = &*state.borrow() {
                        log_end(&name, &dir, of, copied);
                    }
                    return answer;
                }
                Said::Copied(copied) => {
                    if logged.elapsed() >= LOG {
                        logged = Instant::now();
                        let Copied { files, bytes, .. } = copied;
                        tracing::info!(server = name, dir, files, bytes, "{doing}");
                    }
                    state.send_replace(State::Running(copied));
                }
            }
        }
    }
}

impl Copies {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns the number of waiting copies and the number of running copies.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let all = self.0.lock();
        let count =
            |is: fn(&State) -> bool| all.values().filter(|it| is(&it.state.borrow())).count();
        let waiting = count(|state| matches!(state, State::Waiting(_)));
        (waiting, count(|state| matches!(state, State::Running(_))))
    }

    /// Removes the record of a copy that has ended. The record of a new copy for the same directory
    /// is kept.
    fn forget(&self, directory: &Directory) {
        let mut all = self.0.lock();
        let has_ended = |copy: &Copy| {
            matches!(*copy.state.borrow(), State::Ended(..)) || copy.state.has_changed().is_err()
        };
        if all.get(directory).is_some_and(has_ended) {
            all.remove(directory);
        }
    }
}

impl Copy {
    fn is_forgotten(&self) -> bool {
        match &*self.state.borrow() {
            State::Ended(at, result) => result.is_ok() || at.elapsed() >= FAILURE_MAX,
            _ => false,
        }
    }
}

fn unfinished(directory: &Directory, of: &Task, state: &State) -> Failure {
    let Directory { server, dir, .. } = directory;
    let (how_far, is_begun) = match state {
        State::Waiting(why) => ((*why).to_owned(), false),
        State::Running(Copied { files, bytes, .. }) => {
            let size = Rounded(*bytes);
            let how_far = format!("being {}, {files} files with {size} so far", of.done);
            (how_far, true)
        }
        State::Ended(..) => ("ended".to_owned(), true),
    };
    let message = format!("directory {dir} of server {server}: {how_far}; repeat the call");
    match is_begun {
        true => Failure::busy(message).may_be_running(),
        // A waiting copy has changed nothing, so the call has no effect if the copy never begins.
        false => Failure::busy(message),
    }
}

/// Logs the end of a copy. If an earlier process has copied the files, their number is 0 and is not
/// logged again.
fn log_end(server: &str, dir: &str, of: &Task, copied: &Copied) {
    let Task { done, .. } = of;
    let Copied {
        files,
        bytes,
        changed,
        first_changed,
    } = copied;
    if *files > 0 {
        tracing::info!(server, dir, files, bytes, "{done}");
    }
    if *changed > 0 {
        let first = first_changed.as_deref().unwrap_or_default();
        tracing::warn!(
            server,
            dir,
            changed,
            first,
            "files of a volume changed while it was {done}: their copies may be of no use"
        );
    }
}

fn log(directory: &Directory, of: &Task, result: &Result<Done, Failure>) {
    let Directory { server, dir, .. } = directory;
    if let Err(failure) = result
        && failure.kind != Kind::Busy
    {
        let Task { done, .. } = of;
        tracing::warn!(server, dir, %failure, "a volume was not {done}");
    }
}
