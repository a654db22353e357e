//! inotify(7) events as futures, and a watch on the attributes of the files of a directory. This
//! module does not depend on the meaning of the attributes.

use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Size of the buffer for events, in bytes. An event with the longest name takes 272 bytes.
const EVENTS_BYTES: usize = 2048;

/// An inotify instance. The kernel limits the number of inotify instances per user.
#[derive(Debug)]
pub(crate) struct Inotify(AsyncFd<OwnedFd>);

impl Inotify {
    /// Creates an instance that watches nothing yet.
    ///
    /// # Errors
    /// Returns the kernel's error, most likely a lack of instances.
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

    /// Adds a watch. Returns the watch descriptor, which each event of the watch contains.
    pub(crate) fn add(&self, path: &Path, flags: WatchFlags) -> rustix::io::Result<i32> {
        inotify::add_watch(self.0.get_ref(), path, flags)
    }

    /// Waits until events are available, and passes at least one event to `see`.
    ///
    /// # Errors
    /// Returns the kernel's error. After an error, the instance must not be used again.
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

/// Watches the attributes of all files in a directory.
#[derive(Debug)]
pub struct AttributeWatch {
    inotify: Inotify,
}

impl AttributeWatch {
    /// Starts to watch. The directory must exist; a directory that replaces it is not watched.
    ///
    /// # Errors
    /// Returns the kernel's error, most likely a lack of inotify instances.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::new()?;
        inotify.add(directory, WatchFlags::ONLYDIR | WatchFlags::ATTRIB)?;
        Ok(Self { inotify })
    }

    /// Waits for changes. Returns the names of the files whose attributes have changed since the
    /// last call, in order. Omits names that are not UTF-8, and some other names if the event queue
    /// overflows.
    ///
    /// # Errors
    /// Returns the kernel's error, or an error if the directory was removed. After an error, the
    /// watch must not be used again.
    pub async fn changed(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        let mut is_gone = false;
        while names.is_empty() && !is_gone {
            let seen = self.inotify.next(|event| {
                is_gone |= event.events().contains(ReadFlags::IGNORED);
                let name = event.file_name().and_then(|name| name.to_str().ok());
                // An event without a file name concerns the directory itself.
                if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
                    names.push(name.to_owned());
                }
            });
            seen.await?;
        }
        match is_gone {
            true => Err(io::Error::other("the directory was removed")),
            false => Ok(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{XattrFlags, setxattr};
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use tempfile::TempDir;

    #[tokio::test]
    async fn changed_attributes_are_reported_and_contents_are_not() {
        let directory = TempDir::new().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&other, "").unwrap();
        let watch = AttributeWatch::new(directory.path()).unwrap();
        fs::write(&one, "new").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(watch.changed().await.unwrap(), ["other"]);
        for _ in 0..2 {
            // Setting an attribute to the same value again also causes an event.
            setxattr(&one, "user.belay.test", b"1", XattrFlags::empty()).unwrap();
            assert_eq!(watch.changed().await.unwrap(), ["one"]);
        }
        directory.close().unwrap();
        let gone = async { while watch.changed().await.is_ok() {} };
        gone.await;
    }
}
