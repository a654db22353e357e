//! Reports when a file or its directory may have been removed or replaced, from inotify(7) events.
//! This module does not depend on sockets.

use crate::inotify::Inotify;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A watch on one file and its directory. A directory that is recreated needs a new watch.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Inotify,
    watched: Vec<Watched>,
}

/// A watched directory, and the name of the file in it whose events are reported.
#[derive(Debug)]
struct Watched {
    descriptor: i32,
    name: OsString,
}

impl Watch {
    /// Starts to watch a file. If the file's directory does not exist, the watch reports the
    /// creation of the directory.
    ///
    /// # Errors
    /// Returns the kernel's error, most likely a lack of inotify instances, or an error if the
    /// parent directory does not exist either.
    pub(super) fn new(file: &Path) -> io::Result<Self> {
        let inotify = Inotify::new()?;
        let of_both = WatchFlags::ONLYDIR
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut watched = Vec::new();
        let mut add = |path: &Path, flags| match (path.parent(), path.file_name()) {
            (Some(directory), Some(name)) => {
                let descriptor = inotify.add(directory, flags)?;
                let name = name.to_owned();
                watched.push(Watched { descriptor, name });
                Ok(())
            }
            _ => Ok(()),
        };
        // The creation of the file is not watched, since only the caller recreates the file.
        match add(file, of_both) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(directory) = file.parent() {
            add(directory, of_both | WatchFlags::CREATE)?;
        }
        Ok(Self { inotify, watched })
    }

    /// Waits until the file or its directory may have changed since the last call.
    ///
    /// # Errors
    /// Returns the kernel's error. After an error, the watch must not be used again.
    pub(super) async fn changed(&self) -> io::Result<()> {
        let mut matters = false;
        while !matters {
            let seen = self.inotify.next(|event| {
                matters |= event.events().contains(ReadFlags::QUEUE_OVERFLOW)
                    || self.concerns(event.wd(), event.file_name());
            });
            seen.await?;
        }
        Ok(())
    }

    /// Whether an event concerns the watched file or its directory. An event without a name
    /// concerns the directory itself.
    fn concerns(&self, descriptor: i32, name: Option<&CStr>) -> bool {
        let name = name.map(|name| OsStr::from_bytes(name.to_bytes()));
        self.watched.iter().any(|watched| {
            watched.descriptor == descriptor && name.is_none_or(|name| name == watched.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::fs;
    use tempfile::TempDir;

    /// Whether the watch reports the change that `act` makes. inotify queues the event at once.
    async fn reports(watch: &Watch, act: impl FnOnce()) -> bool {
        act();
        // The runtime must poll for events after the change.
        tokio::task::yield_now().await;
        let reported = tokio::time::timeout(std::time::Duration::ZERO, watch.changed()).await;
        while watch.changed().now_or_never().is_some() {}
        reported.is_ok()
    }

    #[tokio::test]
    async fn only_changes_of_the_file_and_its_directory_are_reported() {
        let top = TempDir::new().unwrap();
        let (directory, aside) = (top.path().join("directory"), top.path().join("aside"));
        let (file, other) = (directory.join("file"), directory.join("other"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "").unwrap();
        let watch = Watch::new(&file).unwrap();
        assert!(!reports(&watch, || fs::write(&other, "").unwrap()).await);
        assert!(!reports(&watch, || fs::write(&file, "more").unwrap()).await);
        assert!(!reports(&watch, || fs::write(&aside, "").unwrap()).await);
        assert!(reports(&watch, || fs::rename(&other, &file).unwrap()).await);
        assert!(reports(&watch, || fs::rename(&file, &other).unwrap()).await);
        assert!(!reports(&watch, || fs::remove_file(&other).unwrap()).await);
        assert!(reports(&watch, || fs::remove_dir(&directory).unwrap()).await);
        let watch = Watch::new(&file).unwrap();
        assert!(reports(&watch, || fs::create_dir(&directory).unwrap()).await);
        let watch = Watch::new(&file).unwrap();
        fs::write(&file, "").unwrap();
        assert!(reports(&watch, || fs::remove_file(&file).unwrap()).await);
        let moved = top.path().join("moved");
        assert!(reports(&watch, || fs::rename(&directory, &moved).unwrap()).await);
    }

    #[tokio::test]
    async fn a_directory_without_a_parent_cannot_be_watched() {
        let top = TempDir::new().unwrap();
        let error = Watch::new(&top.path().join("no/directory/file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
