//! Polling with a time limit, for conditions without an event. For tests: it panics.

#![expect(clippy::panic, reason = "a test fails when it times out")]

use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::io::Errno;

/// The time limit, far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until the condition holds.
///
/// # Panics
/// Panics if the condition does not hold within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "timed out after {PATIENCE:?}: {what}");
        pause();
    }
}

/// Sleeps for a moment.
///
/// # Panics
/// Panics if poll(2) fails.
pub fn pause() {
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // Without descriptors, only the timeout or a signal ends the poll.
    match poll(&mut [], Some(&moment)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => panic!("poll: {errno}"),
    }
}
