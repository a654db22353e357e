//! Logs go to stderr, one line an event. Panics too: one line, wherever they happen. Nobody waits
//! for the log: a line that cannot be written at once is dropped, and counted.

mod sink;

use std::io;
use std::panic::PanicHookInfo;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    /// Faults of ours.
    Error,
    /// And calls that failed.
    Warn,
    /// And calls that changed something.
    Info,
    /// And calls that only read, and what goes on within a call.
    Debug,
    /// And everything else of ours.
    Trace,
}

impl LogLevel {
    const fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// Counter: lines that were dropped.
const DROPPED: &str = "belay_log_lines_dropped_total";

/// The log of the process. When dropped, at the end, it waits a little for the last lines.
#[derive(Debug)]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        sink::flush();
    }
}

/// Begins to log, for the whole process.
///
/// # Errors
/// If something else logs already.
pub fn init(level: LogLevel) -> Result<Log, TryInitError> {
    let level = level.filter();
    // The HTTP/2 stack tells each frame at debug: never wanted, and not ours to promise about.
    let ours = Targets::new()
        .with_target("belay", level)
        .with_default(level.min(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| OneLine(Stderr))
        .log_internal_errors(false)
        .with_target(false);
    tracing_subscriber::registry()
        .with(ours)
        .with(lines)
        .try_init()?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(Log(()))
}

/// Writes to stderr before there is a log, or instead of one; without waiting, either.
pub fn write(text: &str) {
    sink::write_line(text.as_bytes());
}

/// To be called when there is something to serve that must not wait for the log, and privileges
/// were given up: where stderr is a file or a terminal, a thread writes from now on.
pub(crate) fn serving() {
    if let Err(error) = sink::leave_waiting_to_a_thread() {
        tracing::warn!(%error, "no thread for the log: calls wait for its file");
    }
}

pub(crate) fn describe() {
    metrics::describe_counter!(DROPPED, "Log lines that nobody took in time.");
}

/// Sets the counter.
pub(crate) fn measure() {
    metrics::counter!(DROPPED).absolute(sink::dropped());
}

/// Standard error, without waiting.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        sink::write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes each event as one line, whatever came from outside: a line end within it becomes `\n`.
/// The layer above hands over one whole event a write.
struct OneLine<W>(W);

impl<W: io::Write> io::Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if text.contains(&b'\n') {
            let mut line = text
                .split(|byte| *byte == b'\n')
                .collect::<Vec<_>>()
                .join(&b"\\n"[..]);
            line.push(b'\n');
            self.0.write_all(&line)?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let payload = panic.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    tracing::error!(place, "panic: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::Write as _;

    #[test]
    fn an_event_with_line_ends_within_stays_one_line() {
        for (event, line) in [
            ("INFO plain\n", "INFO plain\n"),
            ("WARN one\ntwo\n\nthree\n", "WARN one\\ntwo\\n\\nthree\n"),
        ] {
            let mut written = OneLine(Vec::new());
            written.write_all(event.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written.0).unwrap(), line);
        }
    }
}
