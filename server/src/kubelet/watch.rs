//! Tells when something may have happened to one file of a folder, or to the folder. By events of
//! the kernel (inotify(7)), never by looking again and again. Knows nothing of sockets.

use crate::inotify::Inotify;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A watch on one file and its folder. A folder that is made anew wants a new watch.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Inotify,
    watched: Vec<Watched>,
}

/// A folder, and the one name in it that matters.
#[derive(Debug)]
struct Watched {
    descriptor: i32,
    name: OsString,
}

impl Watch {
    /// Begins. The folder need not be there: then it is noticed when it is made.
    ///
    /// # Errors
    /// The kernel's, for want of inotify instances most likely, or if the folder above is not there
    /// either.
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
            (Some(folder), Some(name)) => {
                let descriptor = inotify.add(folder, flags)?;
                let name = name.to_owned();
                watched.push(Watched { descriptor, name });
                Ok(())
            }
            _ => Ok(()),
        };
        // Nothing is made in the place of the file but by whoever is told that it is gone.
        match add(file, of_both) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(folder) = file.parent() {
            add(folder, of_both | WatchFlags::CREATE)?;
        }
        Ok(Self { inotify, watched })
    }

    /// Returns when something may have happened since the last time.
    ///
    /// # Errors
    /// The kernel's: the watch is of no use any more.
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

    /// What has no name happened to the folder itself.
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

    /// Whether the watch tells of what `act` does: inotify has it at once.
    async fn tells(watch: &Watch, act: impl FnOnce()) -> bool {
        act();
        // The runtime must have looked for events since.
        tokio::task::yield_now().await;
        let told = tokio::time::timeout(std::time::Duration::ZERO, watch.changed()).await;
        while watch.changed().now_or_never().is_some() {}
        told.is_ok()
    }

    #[tokio::test]
    async fn only_what_happens_to_the_file_and_its_folder_is_told() {
        let top = TempDir::new().unwrap();
        let (folder, aside) = (top.path().join("folder"), top.path().join("aside"));
        let (file, other) = (folder.join("file"), folder.join("other"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "").unwrap();
        let watch = Watch::new(&file).unwrap();
        assert!(!tells(&watch, || fs::write(&other, "").unwrap()).await);
        assert!(!tells(&watch, || fs::write(&file, "more").unwrap()).await);
        assert!(!tells(&watch, || fs::write(&aside, "").unwrap()).await);
        assert!(tells(&watch, || fs::rename(&other, &file).unwrap()).await);
        assert!(tells(&watch, || fs::rename(&file, &other).unwrap()).await);
        assert!(!tells(&watch, || fs::remove_file(&other).unwrap()).await);
        assert!(tells(&watch, || fs::remove_dir(&folder).unwrap()).await);
        let watch = Watch::new(&file).unwrap();
        assert!(tells(&watch, || fs::create_dir(&folder).unwrap()).await);
        let watch = Watch::new(&file).unwrap();
        fs::write(&file, "").unwrap();
        assert!(tells(&watch, || fs::remove_file(&file).unwrap()).await);
        let moved = top.path().join("moved");
        assert!(tells(&watch, || fs::rename(&folder, &moved).unwrap()).await);
    }

    #[tokio::test]
    async fn a_folder_that_is_nowhere_cannot_be_watched() {
        let top = TempDir::new().unwrap();
        let error = Watch::new(&top.path().join("no/folder/file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
