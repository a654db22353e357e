//! Waiting for what no event announces, with an end to it. For tests: it panics.

#![expect(clippy::panic, reason = "a test ends when it waits in vain")]

use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::io::Errno;

/// Far more than anything here takes; whatever takes longer is a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until it is so.
///
/// # Panics
/// When it is still not so after [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} in vain: {what}");
        pause();
    }
}

/// Lets others run for a moment.
///
/// # Panics
/// Where poll(2) fails.
pub fn pause() {
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // With nothing to poll for, only the time can end it, or a signal; either will do.
    match poll(&mut [], Some(&moment)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => panic!("poll: {errno}"),
    }
}
