//! The worker processes, and how many of them there may be.
//!
//! A call that a server must answer is made by a separate process, with a deadline: after it, the
//! process is killed, and not waited for, since it may remain until its server answers. Bounded for
//! each server and in all, so that a server that does not answer delays no calls for another one.
//!
//! Two processes never change one directory at a time, whichever volumes the calls are for.

mod copies;
mod turns;

use super::call::{Call, Done, Fault, Mount, Said, Work};
use super::worker::ARGUMENT;
use belay_server::call::{Failure, Kind};
use copies::Copies;
use metrics::{counter, gauge};
use std::collections::HashMap;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use turns::{Directories, Directory, Turn};

/// This program, also if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// Processes of one server at a time, with those that were killed and have not exited. If these are
/// so many, it is asked no more.
const OF_SERVER: usize = 8;
/// Of these, those of deletions: they remove files for as long as their call may take, so many of
/// them would leave no slot for creations.
const DELETIONS_OF_SERVER: usize = 4;
/// All processes, of all servers, without those that were killed: servers that do not answer must
/// leave slots for others.
const TOTAL: usize = 64;
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// As much is read of what a process says that has not answered, in bytes.
const ERROR_BYTES_MAX: u64 = 4 << 10;
/// How long a process may take to exit after its answer.
const EXIT_MAX: Duration = Duration::from_secs(5);

/// Gauge: worker processes, by `state`.
const PROCESSES: &str = "belay_worker_processes";
/// Counter: worker processes that were killed since their server did not answer.
const KILLS: &str = "belay_worker_kills_total";

/// The worker processes of the backend.
pub(super) struct Processes {
    servers: Mutex<HashMap<String, Arc<Server>>>,
    all: Arc<Semaphore>,
    directories: Directories,
    copies: Copies,
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

/// A process with its slots. Dropped, it is seen to its end by a task.
struct Running(Option<Process>);

struct Process {
    child: Child,
    slots: Slots,
    server: Arc<Server>,
    /// What it may still change.
    turn: Option<Turn>,
    /// It has answered, and is given time to exit.
    has_answered: bool,
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
            servers: Mutex::default(),
            all: Arc::new(Semaphore::new(TOTAL)),
            directories: Directories::default(),
            copies: Copies::default(),
        }
    }

    /// Has a worker process do it, within that time, which includes the wait for a slot.
    ///
    /// # Errors
    /// The failure of the call; `Unreachable` at once if too many processes hang on the server;
    /// `Busy` if another process changes the directory; `Timeout` if the server does not answer in
    /// time: the call may then still have an effect.
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
        let mut running = Running::start(slots, server, turn)?;
        let left = end.saturating_duration_since(Instant::now());
        let answer = match timeout_at(end, running.answer(mount, work, left)).await {
            Ok(answer) => answer,
            Err(_) => Err(unanswered(&name, within)),
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
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Running {
    fn start(slots: Slots, server: Arc<Server>, turn: Option<Turn>) -> Result<Self, Failure> {
        let child = Command::new(PROGRAM)
            .arg(ARGUMENT)
            .env_clear()
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let child = child.map_err(|error| {
            Failure::new(Kind::System, format!("exec of a worker process: {error}"))
        })?;
        gauge!(PROCESSES, "state" => "running").increment(1.0);
        Ok(Self(Some(Process {
            child,
            slots,
            server,
            turn,
            has_answered: false,
        })))
    }

    async fn answer(
        &mut self,
        mount: Mount,
        work: Work,
        within: Duration,
    ) -> Result<Done, Failure> {
        let mut output = self.call(mount, work, within).await?;
        loop {
            if let Said::Answer(answer) = self.next(&mut output).await? {
                return answer.map_err(Failure::from);
            }
        }
    }

    fn process(&mut self) -> Result<&mut Process, Failure> {
        let process = self.0.as_mut();
        process.ok_or_else(|| Failure::bug("a process that has ended was asked"))
    }

    /// Gives it its call; returns what it says.
    async fn call(
        &mut self,
        mount: Mount,
        work: Work,
        within: Duration,
    ) -> Result<BufReader<ChildStdout>, Failure> {
        let call = Call {
            parent: std::process::id(),
            mount,
            work,
            within,
        };
        let text = serde_json::to_vec(&call).map_err(|error| Failure::bug(error.to_string()))?;
        let process = self.process()?;
        let (input, output) = (process.child.stdin.take(), process.child.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(Failure::bug("a process without pipes"));
        };
        let written = input.write_all(&text).await;
        written.map_err(|error| broken(&error))?;
        // The end of its input is the end of the call.
        Ok(BufReader::new(output))
    }

    /// What it says next; the answer is the last.
    async fn next(&mut self, output: &mut BufReader<ChildStdout>) -> Result<Said, Failure> {
        let process = self.process()?;
        let mut line = Vec::new();
        let mut output = output.take(ANSWER_BYTES_MAX);
        let read = output.read_until(b'\n', &mut line).await;
        read.map_err(|error| broken(&error))?;
        let said = serde_json::from_slice(&line);
        if let Ok(Said::Copied(copied)) = said {
            return Ok(Said::Copied(copied));
        }
        process.has_answered = true;
        let Ok(said) = said else {
            let ending = process.ending().await;
            return Err(broken(&ending));
        };
        if matches!(&said, Said::Answer(answer) if is_settled(answer)) {
            process.turn = None;
        }
        Ok(said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = self.0.take()
            // Without a runtime, the process is killed with this one.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn(process.see_to_its_end()));
        }
    }
}

impl Process {
    /// Why there was no answer, as far as that is known within the time of an exit.
    async fn ending(&mut self) -> String {
        let mut errors = Vec::new();
        if let Some(output) = self.child.stderr.take() {
            let mut output = output.take(ERROR_BYTES_MAX);
            // What was read so far is shown.
            drop(timeout(EXIT_MAX, output.read_to_end(&mut errors)).await);
        }
        let status = timeout(EXIT_MAX, self.child.wait()).await;
        ending(status.ok().and_then(Result::ok), &errors)
    }

    /// Waits until it has exited, and kills it if it does not. It holds the slot of its server
    /// until it has exited, and that of all servers until it is killed.
    async fn see_to_its_end(mut self) {
        let exits = self.has_answered && timeout(EXIT_MAX, self.child.wait()).await.is_ok();
        gauge!(PROCESSES, "state" => "running").decrement(1.0);
        if exits {
            return;
        }
        counter!(KILLS).increment(1);
        // It may have exited.
        self.child.start_kill().ok();
        self.slots.of_all = None;
        self.server.killed.fetch_add(1, Ordering::Relaxed);
        gauge!(PROCESSES, "state" => "killed").increment(1.0);
        // An error of the runtime, which is being shut down.
        self.child.wait().await.ok();
        self.server.killed.fetch_sub(1, Ordering::Relaxed);
        gauge!(PROCESSES, "state" => "killed").decrement(1.0);
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

fn broken(why: &dyn std::fmt::Display) -> Failure {
    let message = format!("the worker process that asked the server has failed: {why}");
    Failure::new(Kind::System, message).may_be_running()
}

fn unanswered(server: &str, within: Duration) -> Failure {
    let seconds = within.as_secs();
    Failure::timeout(format!(
        "server {server}: no answer within {seconds} s; the call was cancelled; retry"
    ))
    .may_be_running()
}

/// Whether a process changes nothing more, and the server executes no request of it, once it has
/// answered so.
fn is_settled(answer: &Result<Done, Fault>) -> bool {
    !matches!(answer, Err(fault) if fault.may_be_running())
}

/// How a process has ended that has not answered: its status, and the last line that it has
/// written, without what follows a panic's message.
fn ending(status: Option<ExitStatus>, errors: &[u8]) -> String {
    let status = status.map_or_else(|| "it has not exited".to_owned(), |it| it.to_string());
    let errors = String::from_utf8_lossy(errors);
    let mut lines = errors.lines().map(str::trim);
    match lines.rfind(|line| !line.is_empty() && !line.starts_with("note: ")) {
        Some(line) => format!("no answer; {status}: {line}"),
        None => format!("no answer; {status}"),
    }
}

#[cfg(test)]
mod tests;
