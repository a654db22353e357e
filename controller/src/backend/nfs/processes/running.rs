//! A worker process, from its start until it has exited.

use super::super::call::{BEGIN, Call, Done, Fault, Mount, Said, Work};
use super::super::worker::ARGUMENT;
use super::turns::Turn;
use super::{KILLS, PROCESSES, Server, Slots};
use belay_server::call::{Failure, Kind};
use metrics::{counter, gauge};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// As much is read of what a process says that has not answered, in bytes.
const ERROR_BYTES_MAX: u64 = 4 << 10;
/// How long a process may take to exit after its answer.
const EXIT_MAX: Duration = Duration::from_secs(5);

/// A process with its slots. Dropped, it is seen to its end by a task.
pub(super) struct Running(Option<Process>);

struct Process {
    child: Child,
    slots: Slots,
    server: Arc<Server>,
    /// What it may still change.
    turn: Option<Turn>,
    /// None once it was allowed to begin.
    input: Option<ChildStdin>,
    /// It was allowed to begin, so it may have changed the share.
    has_begun: bool,
    /// It has answered, and is given time to exit.
    has_answered: bool,
}

impl Running {
    pub(super) fn start(
        mut worker: Command,
        slots: Slots,
        server: Arc<Server>,
        turn: Option<Turn>,
    ) -> Result<Self, Failure> {
        let child = worker
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
            input: None,
            has_begun: false,
            has_answered: false,
        })))
    }

    pub(super) async fn answer(
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
    pub(super) async fn call(
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
        let text = [&*text, b"\n"].concat();
        let process = self.process()?;
        let (input, output) = (process.child.stdin.take(), process.child.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(Failure::bug("a process without pipes"));
        };
        let written = input.write_all(&text).await;
        written.map_err(|error| process.broken(&error))?;
        process.input = Some(input);
        Ok(BufReader::new(output))
    }

    /// What it says next; the answer is the last. Once it has mounted the share, it may begin.
    pub(super) async fn next(
        &mut self,
        output: &mut BufReader<ChildStdout>,
    ) -> Result<Said, Failure> {
        let process = self.process()?;
        let mut line = Vec::new();
        let mut output = output.take(ANSWER_BYTES_MAX);
        let read = output.read_until(b'\n', &mut line).await;
        read.map_err(|error| process.broken(&error))?;
        let said = serde_json::from_slice(&line);
        match &said {
            Ok(Said::Mounted) => process.begin().await?,
            Ok(Said::Copied(_)) => {}
            Ok(Said::Answer(answer)) => {
                process.has_answered = true;
                if is_settled(answer) {
                    process.turn = None;
                }
            }
            Err(_) => process.has_answered = true,
        }
        let Ok(said) = said else {
            let ending = process.ending().await;
            return Err(process.broken(&ending));
        };
        Ok(said)
    }

    /// For a process that is killed.
    pub(super) fn unanswered(&self, server: &str, within: Duration) -> Failure {
        let seconds = within.as_secs();
        match &self.0 {
            Some(process) if !process.has_begun => Failure::timeout(format!(
                "server {server}: its share was not mounted within {seconds} s, so the call was \
                 not begun; if the server answers, check the mount options; retry"
            )),
            _ => Failure::timeout(format!(
                "server {server}: no answer within {seconds} s; the call was cancelled; retry"
            ))
            .may_be_running(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut process = self.0.take();
        if let Some(process) = &mut process
            && !process.has_begun
        {
            // It is killed, and changes nothing until then.
            process.turn = None;
        }
        if let Some(process) = process
            // Without a runtime, the process is killed with this one.
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn(process.see_to_its_end()));
        }
    }
}

impl Process {
    /// Allows it to begin.
    async fn begin(&mut self) -> Result<(), Failure> {
        let Some(mut input) = self.input.take() else {
            return Err(Failure::bug("a worker process began twice").may_be_running());
        };
        self.has_begun = true;
        let written = input.write_all(BEGIN).await;
        written.map_err(|error| self.broken(&error))
    }

    /// Its pipe is closed, or it has said nothing that it can say.
    fn broken(&self, why: &dyn std::fmt::Display) -> Failure {
        let message = format!("the worker process that asked the server has failed: {why}");
        let failure = Failure::new(Kind::System, message);
        match self.has_begun {
            true => failure.may_be_running(),
            false => failure,
        }
    }

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

/// This program, also if its file was replaced meanwhile.
pub(super) fn worker() -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg(ARGUMENT);
    program
}

/// Whether a process changes nothing more, and the server executes no request of it, once it has
/// answered so.
pub(super) fn is_settled(answer: &Result<Done, Fault>) -> bool {
    !matches!(answer, Err(fault) if fault.may_be_running())
}

/// How a process has ended that has not answered: its status, and the last line that it has
/// written, without what follows a panic's message.
pub(super) fn ending(status: Option<ExitStatus>, errors: &[u8]) -> String {
    let status = status.map_or_else(|| "it has not exited".to_owned(), |it| it.to_string());
    let errors = String::from_utf8_lossy(errors);
    let mut lines = errors.lines().map(str::trim);
    match lines.rfind(|line| !line.is_empty() && !line.starts_with("note: ")) {
        Some(line) => format!("no answer; {status}: {line}"),
        None => format!("no answer; {status}"),
    }
}
