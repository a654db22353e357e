//! A worker process and its call.

use super::super::call::{BEGIN, Done, Said};
use super::turns::Turn;
use belay_server::call::{Certainty, Failure};
use belay_server::helper::{Child, Process, Running, Unanswered};
use std::time::Duration;

/// A running worker process.
pub(super) struct Worker {
    child: Child,
    /// The right to change a directory. `None` if the process can no longer change a directory.
    turn: Option<Turn>,
    /// Whether the controller has sent [`BEGIN`] to the process, which may then have changed the
    /// share.
    has_begun: bool,
}

impl Worker {
    pub(super) fn new(child: Child, turn: Option<Turn>) -> Self {
        Self {
            child,
            turn,
            has_begun: false,
        }
    }

    /// Waits for the result of the call.
    pub(super) async fn answer(&mut self) -> Result<Done, Failure> {
        loop {
            if let Said::Answer(answer) = self.next().await? {
                return answer;
            }
        }
    }

    /// Waits for the next message; the last message is the result. Sends [`BEGIN`] when the process
    /// has mounted its shares.
    pub(super) async fn next(&mut self) -> Result<Said, Failure> {
        let next = self.child.receive().await;
        let (said, _) = next.map_err(|failure| self.broken(failure))?;
        match &said {
            Said::Mounted => {
                self.has_begun = true;
                let sent = self.child.send(&BEGIN);
                sent.map_err(|failure| self.broken(failure))?;
            }
            Said::Copied(_) => {}
            Said::Answer(answer) if is_settled(answer) => self.turn = None,
            Said::Answer(_) => {}
        }
        Ok(said)
    }

    fn broken(&self, failure: Failure) -> Failure {
        match self.has_begun {
            true => failure.may_be_running(),
            false => failure,
        }
    }
}

impl Process for Worker {
    fn close(&mut self) {
        self.child.close();
        if !self.has_begun {
            // The process will never begin, so it cannot change the directory.
            self.turn = None;
        }
    }

    fn kill(&mut self) {
        self.child.kill();
    }

    async fn exited(&mut self) {
        self.child.exited().await;
    }
}

/// Returns the error of a call whose process is killed because it has sent no result in the time
/// `within`.
pub(super) fn overdue(running: &mut Running<Worker>, server: &str, within: Duration) -> Failure {
    let Unanswered { failure, by_server } = running.overdue(within);
    match running.process() {
        Ok(worker) if !worker.has_begun && !by_server => failure,
        Ok(worker) if !worker.has_begun => Failure::timeout(format!(
            "server {server}: its share was not mounted within {} s, so the call was not begun; if \
             the server answers, check the mount options; retry",
            within.as_secs()
        )),
        _ => failure.may_be_running(),
    }
}

/// Whether the call has no effect after this result: the process makes no further changes, and the
/// server will not execute a request of the process later.
pub(super) fn is_settled(answer: &Result<Done, Failure>) -> bool {
    let may_be_running = |failure: &Failure| failure.certainty == Certainty::MayBeRunning;
    !answer.as_ref().is_err_and(may_be_running)
}
