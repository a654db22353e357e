//! Events of the kernel about files (inotify(7)), for those who wait for them in the runtime. Knows
//! nothing of what they mean.

use rustix::fs::inotify::{self, CreateFlags, Event, Reader, WatchFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Room for events, in bytes: one of the longest names takes 272.
const EVENTS_BYTES: usize = 2048;

/// One instance, of which a process may not have many.
#[derive(Debug)]
pub(crate) struct Inotify(AsyncFd<OwnedFd>);

impl Inotify {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The kernel's, for want of instances most likely.
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "what replaced it is unsafe, for the sake of types that may give another \
                      descriptor the next time; an OwnedFd never does"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self(inotify))
    }

    /// Watches that too. The number of the watch, as events have it.
    pub(crate) fn add(&self, path: &Path, flags: WatchFlags) -> rustix::io::Result<i32> {
        inotify::add_watch(self.0.get_ref(), path, flags)
    }

    /// Waits for events, and shows a few of them to `see`.
    ///
    /// # Errors
    /// The kernel's: the instance is of no use any more.
    pub(crate) async fn next(&self, mut see: impl FnMut(&Event<'_>)) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(taken) = ready.try_io(|inotify| take(inotify.get_ref(), &mut see)) {
                return taken;
            }
        }
    }
}

fn take(inotify: &OwnedFd, see: &mut impl FnMut(&Event<'_>)) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); EVENTS_BYTES];
    let mut events = Reader::new(inotify, &mut room);
    loop {
        see(&events.next()?);
        if events.is_buffer_empty() {
            return Ok(());
        }
    }
}
