//! Tells of files in a folder whose attributes somebody changed: by events of the kernel
//! (inotify(7)), never by looking again and again. Knows nothing of what they mean.

use crate::inotify::Inotify;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use std::io;
use std::path::Path;

/// A watch on all files of a folder.
#[derive(Debug)]
pub struct AttributeWatch {
    inotify: Inotify,
}

impl AttributeWatch {
    /// Begins. The folder must be there; another one that takes its name is not watched.
    ///
    /// # Errors
    /// The kernel's, for want of inotify instances most likely.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let inotify = Inotify::new()?;
        inotify.add(folder, WatchFlags::ONLYDIR | WatchFlags::ATTRIB)?;
        Ok(Self { inotify })
    }

    /// The names of files whose attributes were changed since the last time, in order, when there
    /// are any. Names that are no UTF-8 are left out; when too much happened at once, some are.
    ///
    /// # Errors
    /// The kernel's, or that the folder is gone: the watch is of no use any more.
    pub async fn changed(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        let mut is_gone = false;
        while names.is_empty() && !is_gone {
            let seen = self.inotify.next(|event| {
                is_gone |= event.events().contains(ReadFlags::IGNORED);
                let name = event.file_name().and_then(|name| name.to_str().ok());
                // What has no name happened to the folder.
                if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
                    names.push(name.to_owned());
                }
            });
            seen.await?;
        }
        match is_gone {
            true => Err(io::Error::other("the folder is gone")),
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
