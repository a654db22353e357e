//! The terminal: confirmation, progress, and signals that end a wait. Calls no server.

use std::io::{self, IsTerminal as _};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::render::{Answer, Output, Rows};

/// The interval in which a wait reads an object.
const INTERVAL: Duration = Duration::from_millis(500);
/// The maximum time that a command waits for a store.
const PATIENCE: Duration = Duration::from_secs(90);
/// The interval of progress messages.
const PROGRESS: Duration = Duration::from_secs(10);

/// Shows the rows and `warning`, and asks for confirmation.
///
/// # Errors
/// Fails if the user refuses, or if no user can be asked.
pub(super) fn confirm(rows: &Rows, warning: &str) -> Result<(), Failure> {
    eprint!("{}", Answer::Rows(rows.clone()).text(Output::Table));
    if !io::stdin().is_terminal() {
        let why = format!("{warning}; confirm by --yes, since standard input is not a terminal");
        return Err(Failure::Usage(why));
    }
    eprint!("{warning}. Continue? [y/N] ");
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    match line.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Refused(
            "not confirmed; nothing was changed".to_owned(),
        )),
    }
}

/// The reason for which a wait ended without a result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The time is over.
    Late,
    /// The user has interrupted the command.
    Interrupted,
}

impl Ended {
    /// Returns a phrase for an error message.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Late => "no result in time",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A wait for a store, which SIGINT and SIGTERM end.
pub(super) struct Wait {
    signals: [Signal; 2],
    began: Instant,
    patience: Duration,
    /// The last progress message, and its time.
    shown: Option<(String, Instant)>,
}

impl Wait {
    /// Begins to wait, for at most `seconds`. From now on, the signals do not end the process.
    ///
    /// # Errors
    /// Fails if the signals cannot be handled.
    pub(super) fn new(seconds: u64) -> io::Result<Self> {
        Ok(Self {
            signals: [
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            ],
            began: Instant::now(),
            patience: PATIENCE.min(Duration::from_secs(seconds)),
            shown: None,
        })
    }

    /// Shows the progress, and returns when the object may have changed.
    ///
    /// # Errors
    /// Returns the reason for which the wait must end.
    pub(super) async fn next(&mut self, progress: &str) -> Result<(), Ended> {
        let elapsed = self.began.elapsed();
        let shown = self.shown.as_ref();
        if shown.is_none_or(|(last, at)| last != progress || at.elapsed() >= PROGRESS) {
            eprintln!("{progress} ({} s)", elapsed.as_secs());
            self.shown = Some((progress.to_owned(), Instant::now()));
        }
        let signals = &mut self.signals;
        let signal = std::future::poll_fn(|context| {
            // Both are polled, so that both wake this task.
            let ready = signals
                .each_mut()
                .map(|it| it.poll_recv(context).is_ready());
            match ready.contains(&true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        match timeout(INTERVAL, signal).await {
            Ok(()) => Err(Ended::Interrupted),
            Err(_elapsed) if elapsed >= self.patience => Err(Ended::Late),
            Err(_elapsed) => Ok(()),
        }
    }
}
