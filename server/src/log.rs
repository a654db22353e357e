//! Logs events and panics to stderr, one line each. Logging never blocks a call: a line that cannot
//! be written at once is dropped and counted.

mod sink;

use std::io;
use std::panic::PanicHookInfo;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// The log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    /// Internal errors
    Error,
    /// Plus failed calls
    Warn,
    /// Plus calls that change something
    Info,
    /// Plus read-only calls, and steps within calls
    Debug,
    /// Plus all other events of Belay
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

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Time, level, message, fields
    Text,
    /// One JSON object per line: timestamp, level, message, and each field by its name
    Json,
}

/// Counter: log lines that were dropped.
const DROPPED: &str = "belay_log_lines_dropped_total";

/// The log of the process. When this value is dropped, it waits briefly until the last lines are
/// written.
#[derive(Debug)]
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        sink::flush();
    }
}

/// Starts logging, for the whole process.
///
/// # Errors
/// Returns an error if another logger is installed.
pub fn init(level: LogLevel, format: LogFormat) -> Result<Log, TryInitError> {
    let level = level.filter();
    // The HTTP/2 stack logs each frame at level debug, which is never useful here.
    let ours = Targets::new()
        .with_target("belay", level)
        .with_default(level.min(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| OneLine(Stderr))
        .log_internal_errors(false)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(ours);
    match format {
        LogFormat::Text => registry.with(lines).try_init()?,
        LogFormat::Json => {
            sink::report_in_json();
            let lines = lines.json().flatten_event(true);
            let lines = lines.with_current_span(false).with_span_list(false);
            registry.with(lines).try_init()?;
        }
    }
    std::panic::set_hook(Box::new(log_panic));
    Ok(Log(()))
}

/// Writes a text to stderr without the logger. The write may block only before calls are served,
/// and only if stderr is a file or a terminal.
pub fn write(text: &str) {
    sink::write_line(text.as_bytes());
}

/// If stderr is a file or a terminal, starts a thread that writes the log from now on. Call this
/// after privileges have been dropped and before calls are served, since calls must not wait for
/// the log.
pub(crate) fn serving() {
    if let Err(error) = sink::leave_waiting_to_a_thread() {
        tracing::warn!(%error, "cannot start the log thread: calls may wait for the log file");
    }
}

pub(crate) fn describe() {
    metrics::describe_counter!(
        DROPPED,
        "Log lines dropped because stderr was not read in time."
    );
}

/// Sets the counter of dropped lines.
pub(crate) fn measure() {
    metrics::counter!(DROPPED).absolute(sink::dropped());
}

/// A writer to standard error that does not block calls.
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

/// Writes each event as one line: a line end within the event becomes `\n`. The tracing subscriber
/// passes one whole event per write.
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
