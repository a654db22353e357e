//! The worker processes, and how many of them there may be.
//!
//! A call that a server must answer is made by a separate process, with a deadline: after it, the
//! process is killed, and not waited for, since it may remain until its server answers. Bounded for
//! each server and in all, so that a server that does not answer delays no calls for another one.

use super::call::{Call, Done, Fault, Mount, Work};
use super::worker::ARGUMENT;
use belay_server::call::{Failure, Kind};
use metrics::{counter, gauge};
use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// This program, also if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// Processes of one server at a time.
const OF_SERVER: usize = 8;
/// Killed processes of one server that have not exited. With so many, it is asked no more.
const KILLED_MAX: usize = 8;
/// All processes, of all servers.
const TOTAL: usize = 64;
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
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
}

struct Server {
    slots: Arc<Semaphore>,
    killed: AtomicUsize,
}

/// A process with its slots. Dropped, it is seen to its end by a task.
struct Running(Option<Process>);

struct Process {
    child: Child,
    slots: [OwnedSemaphorePermit; 2],
    server: Arc<Server>,
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
        }
    }

    /// Has a worker process do it, within that time, which includes the wait for a slot.
    ///
    /// # Errors
    /// The failure of the call; `Unreachable` at once if too many processes hang on the server;
    /// `Timeout` if it does not answer in time: the call may then still have an effect.
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
        let slots = timeout_at(end, self.slots(&server)).await.map_err(|_| {
            Failure::timeout(format!(
                "server {name}: no answer to earlier calls within {} s; this call was not begun; \
                 retry",
                within.as_secs()
            ))
        })??;
        // It may have happened during the wait.
        server.refuse_hung(&name)?;
        let call = Call {
            parent: std::process::id(),
            mount,
            work,
        };
        let changes = !matches!(call.work, Work::Look(_));
        let text = serde_json::to_vec(&call).map_err(|error| Failure::bug(error.to_string()))?;
        let mut running = Running::start(slots, server)?;
        let answer = match timeout_at(end, running.answer(&text)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::timeout(format!(
                "server {name}: no answer within {} s; the call was cancelled; retry",
                within.as_secs()
            ))
            .may_be_running()),
        };
        match changes {
            true => answer,
            false => answer.map_err(Failure::nothing_happened),
        }
    }

    async fn slots(&self, server: &Server) -> Result<[OwnedSemaphorePermit; 2], Failure> {
        Ok([permit(&server.slots).await?, permit(&self.all).await?])
    }

    fn of(&self, name: &str) -> Arc<Server> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        // Those with a process, or a call that waits for one, are held elsewhere.
        servers.retain(|_, server| Arc::strong_count(server) > 1);
        let found = servers.entry(name.to_owned()).or_insert_with(|| {
            Arc::new(Server {
                slots: Arc::new(Semaphore::new(OF_SERVER)),
                killed: AtomicUsize::new(0),
            })
        });
        Arc::clone(found)
    }
}

impl Server {
    fn refuse_hung(&self, name: &str) -> Result<(), Failure> {
        let killed = self.killed.load(Ordering::Relaxed);
        if killed < KILLED_MAX {
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
    fn start(slots: [OwnedSemaphorePermit; 2], server: Arc<Server>) -> Result<Self, Failure> {
        let child = Command::new(PROGRAM)
            .arg(ARGUMENT)
            .env_clear()
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
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
            has_answered: false,
        })))
    }

    async fn answer(&mut self, call: &[u8]) -> Result<Done, Failure> {
        let process = self.0.as_mut();
        let process = process.ok_or_else(|| Failure::bug("a process that has ended was asked"))?;
        let broken = |why: &dyn std::fmt::Display| {
            let message = format!("the worker process that asked the server has failed: {why}");
            Failure::new(Kind::System, message).may_be_running()
        };
        let (input, output) = (process.child.stdin.take(), process.child.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(Failure::bug("a process without pipes"));
        };
        let written = input.write_all(call).await;
        written.map_err(|error| broken(&error))?;
        // Its end is the end of the call.
        drop(input);
        let mut answer = Vec::new();
        let mut output = output.take(ANSWER_BYTES_MAX);
        let read = output.read_to_end(&mut answer).await;
        read.map_err(|error| broken(&error))?;
        process.has_answered = true;
        let answer: Result<Result<Done, Fault>, _> = serde_json::from_slice(&answer);
        match answer {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => Err(broken(&"it has ended without an answer")),
        }
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
    /// Waits until it has exited, and kills it if it does not: it holds its slots until then, and
    /// counts as killed after that.
    async fn see_to_its_end(mut self) {
        let exits = self.has_answered && timeout(EXIT_MAX, self.child.wait()).await.is_ok();
        gauge!(PROCESSES, "state" => "running").decrement(1.0);
        if exits {
            return;
        }
        counter!(KILLS).increment(1);
        // It may have exited.
        self.child.start_kill().ok();
        let [of_server, _of_all] = self.slots;
        self.server.killed.fetch_add(1, Ordering::Relaxed);
        gauge!(PROCESSES, "state" => "killed").increment(1.0);
        drop(of_server);
        // An error of the runtime, which is being shut down.
        self.child.wait().await.ok();
        self.server.killed.fetch_sub(1, Ordering::Relaxed);
        gauge!(PROCESSES, "state" => "killed").decrement(1.0);
    }
}

async fn permit(slots: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    let permit = Arc::clone(slots).acquire_owned().await;
    permit.map_err(|_| Failure::bug("the slots of a server were closed"))
}

#[cfg(test)]
mod tests {
    use super::super::call::Owned;
    use super::super::path::Dir;
    use super::*;
    use belay_server::call::Certainty;

    fn owned() -> Owned {
        Owned {
            dir: Dir::read("data").unwrap().unwrap(),
            name: "pvc-1".to_owned(),
        }
    }

    fn mount() -> Mount {
        Mount {
            server: "Filer".to_owned(),
            share: "share".to_owned(),
            options: Vec::new(),
        }
    }

    #[test]
    fn a_server_with_too_many_hung_processes_is_asked_no_more() {
        let processes = Processes::new();
        let server = processes.of("filer");
        server.killed.store(KILLED_MAX - 1, Ordering::Relaxed);
        server.refuse_hung("filer").unwrap();
        server.killed.store(KILLED_MAX, Ordering::Relaxed);
        let failure = server.refuse_hung("filer").unwrap_err();
        assert_eq!(failure.kind, Kind::Unreachable);
        let expected = "server filer: 8 killed processes have not exited";
        assert!(failure.message.starts_with(expected), "{failure}");
    }

    #[test]
    fn a_server_is_known_while_a_call_has_it() {
        let processes = Processes::new();
        let server = processes.of("filer");
        assert!(Arc::ptr_eq(&server, &processes.of("filer")));
        assert!(!Arc::ptr_eq(&server, &processes.of("other")));
        drop(server);
        drop(processes.of("third"));
        let known = processes.servers.lock().unwrap();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["third"]);
    }

    #[tokio::test]
    async fn a_call_that_is_refused_starts_no_process_whatever_the_case_of_the_servers_name() {
        let processes = Processes::new();
        let server = processes.of("filer");
        server.killed.store(KILLED_MAX, Ordering::Relaxed);
        let asked = processes.ask(mount(), Work::Look(owned()), Duration::from_secs(60));
        assert_eq!(asked.await.unwrap_err().kind, Kind::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_slot_ends_in_time_and_was_not_begun() {
        let processes = Processes::new();
        let server = processes.of("filer");
        let slots = u32::try_from(OF_SERVER).unwrap();
        let _all = Arc::clone(&server.slots).acquire_many_owned(slots).await;
        let begun = Instant::now();
        let asked = processes.ask(mount(), Work::Look(owned()), Duration::from_secs(7));
        let failure = asked.await.unwrap_err();
        assert!(begun.elapsed() >= Duration::from_secs(7));
        let state = (failure.kind, failure.certainty);
        assert_eq!(state, (Kind::Timeout, Certainty::NothingHappened));
        assert!(
            failure
                .message
                .contains("within 7 s; this call was not begun")
        );
    }
}
