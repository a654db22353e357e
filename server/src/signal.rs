//! The signals that stop a server.

use futures_util::Stream;
use std::io;
use tokio::signal::unix::{SignalKind, signal};

/// Yields on every SIGTERM and SIGINT from now on; their default action is disabled for the whole
/// process.
///
/// # Errors
/// That of the kernel, if the signals cannot be caught.
pub fn terminations() -> io::Result<impl Stream<Item = ()>> {
    let signals = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    Ok(futures_util::stream::unfold(
        signals,
        async |(mut terminate, mut interrupt)| {
            tokio::select! {
                Some(()) = terminate.recv() => {}
                Some(()) = interrupt.recv() => {}
                else => return None,
            }
            Some(((), (terminate, interrupt)))
        },
    ))
}
