//! Logs go to stderr, one line an event. Panics too: one line, wherever they happen.

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

/// Begins to log, for the whole process.
///
/// # Errors
/// If something else logs already.
pub fn init(level: LogLevel) -> Result<(), TryInitError> {
    let level = level.filter();
    // The HTTP/2 stack tells each frame at debug: never wanted, and not ours to promise about.
    let ours = Targets::new()
        .with_target("belay", level)
        .with_default(level.min(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false);
    tracing_subscriber::registry()
        .with(ours)
        .with(lines)
        .try_init()?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
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
