//! inotify(7) events as futures. Does not know what they mean.

use rustix::fs::inotify::{self, CreateFlags, Event, Reader, WatchFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Buffer for events, in bytes: an event with the longest name takes 272.
const EVENTS_BYTES: usize = 2048;

/// One instance; their number per user is limited.
#[derive(Debug)]
pub(crate) struct Inotify(AsyncFd<OwnedFd>);

impl Inotify {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// That of the kernel, most likely a lack of instances.
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, for types that may return another \
                      descriptor the next time; an OwnedFd never does"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self(inotify))
    }

    /// Adds a watch. Returns its number, which events carry.
    pub(crate) fn add(&self, path: &Path, flags: WatchFlags) -> rustix::io::Result<i32> {
        inotify::add_watch(self.0.get_ref(), path, flags)
    }

    /// Waits for events, and passes some of them to `see`.
    ///
    /// # Errors
    /// That of the kernel: the instance is of no further use.
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
