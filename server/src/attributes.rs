//! Reports files of a directory whose attributes were changed, from inotify(7) events. Does not
//! know what the attributes mean.

use crate::inotify::Inotify;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use std::io;
use std::path::Path;

/// Watches all files of a directory.
#[derive(Debug)]
pub struct AttributeWatch {
    inotify: Inotify,
}

impl AttributeWatch {
    /// Starts to watch. The directory must exist; a directory that replaces it is not watched.
    /// # Errors
    /// That of the kernel, most likely a lack of inotify instances.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::new()?;
        inotify.add(directory, WatchFlags::ONLYDIR | WatchFlags::ATTRIB)?;
        Ok(Self { inotify })
    }

    /// Waits for changes. Returns the names of the files whose attributes have changed since the
    /// last call, in order. Names that are not UTF-8 are left out, and some others if the event
    /// queue overflows.
    ///
    /// # Errors
    /// That of the kernel, or that the directory was removed. The watch is then of no further use.
    pub async fn changed(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        let mut is_gone = false;
        while names.is_empty() && !is_gone {
            let seen = self.inotify.next(|event| {
                is_gone |= event.events().contains(ReadFlags::IGNORED);
                let name = event.file_name().and_then(|name| name.to_str().ok());
                // An event without a name concerns the directory.
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
            // Setting the same value again is an event, too.
            setxattr(&one, "user.belay.test", b"1", XattrFlags::empty()).unwrap();
            assert_eq!(watch.changed().await.unwrap(), ["one"]);
        }
        directory.close().unwrap();
        let gone = async { while watch.changed().await.is_ok() {} };
        gone.await;
    }
}
