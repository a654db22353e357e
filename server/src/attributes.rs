//! Tells of files in a folder whose attributes somebody changed: by events of the kernel
//! (inotify(7)), never by looking again and again. Knows nothing of what they mean.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::unix::AsyncFd;

/// Room for events, in bytes: one of the longest names takes 272.
const EVENTS_BYTES: usize = 2048;

/// A watch on all files of a folder.
#[derive(Debug)]
pub struct AttributeWatch {
    inotify: AsyncFd<OwnedFd>,
}

impl AttributeWatch {
    /// Begins. The folder must be there; another one that takes its name is not watched.
    ///
    /// # Errors
    /// The kernel's, for want of inotify instances most likely.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, folder, WatchFlags::ONLYDIR | WatchFlags::ATTRIB)?;
        #[expect(
            deprecated,
            reason = "what replaced it is unsafe, for the sake of types that may give another \
                      descriptor the next time; an OwnedFd never does"
        )]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Self { inotify })
    }

    /// The names of files whose attributes were changed since the last time, in order, when there
    /// are any. Names that are no UTF-8 are left out; when too much happened at once, some are.
    ///
    /// # Errors
    /// The kernel's: the watch is of no use any more.
    pub async fn changed(&self) -> io::Result<Vec<String>> {
        loop {
            let mut ready = self.inotify.readable().await?;
            match ready.try_io(|inotify| read(inotify.get_ref())) {
                Ok(Ok(names)) if names.is_empty() => {}
                Ok(names) => return names,
                Err(_) => {}
            }
        }
    }
}

/// Takes a few events.
fn read(inotify: &OwnedFd) -> io::Result<Vec<String>> {
    let mut room = [MaybeUninit::uninit(); EVENTS_BYTES];
    let mut events = Reader::new(inotify, &mut room);
    let mut names: Vec<String> = Vec::new();
    loop {
        let event = events.next()?;
        if event.events().contains(ReadFlags::IGNORED) {
            return Err(io::Error::other("the folder is gone"));
        }
        let name = event.file_name().and_then(|name| name.to_str().ok());
        // What has no name happened to the folder.
        if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
            names.push(name.to_owned());
        }
        if events.is_buffer_empty() {
            return Ok(names);
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
    async fn attributes_are_told_of_and_contents_are_not() {
        let folder = TempDir::new().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        fs::write(&other, "").unwrap();
        let watch = AttributeWatch::new(folder.path()).unwrap();
        fs::write(&one, "new").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(watch.changed().await.unwrap(), ["other"]);
        for _ in 0..2 {
            // The same value again is an event as well.
            setxattr(&one, "user.belay.test", b"1", XattrFlags::empty()).unwrap();
            assert_eq!(watch.changed().await.unwrap(), ["one"]);
        }
        folder.close().unwrap();
        let gone = async { while watch.changed().await.is_ok() {} };
        gone.await;
    }
}
