//! The directory on which a volume is mounted: checks its contents before the mount, and creates it
//! again after the unmount. NodeUnpublishVolume removes its target path, even if NodePublishVolume
//! has not created the path.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::failed;
use crate::failure::Failure;

/// The permission bits of a mode (inode(7)).
const PERMISSIONS: u32 = 0o7777;

/// A directory that existed before a volume was mounted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Place {
    /// Returns the properties of the directory at the path; `None` if the path does not exist, or
    /// is an empty file for a block device.
    ///
    /// # Errors
    /// Fails if a mount would hide existing data, such as the files of a directory. Also fails if
    /// the path is something that prevents the unmount, such as a symbolic link.
    pub(super) fn inspect(path: &Path, block: bool) -> Result<Option<Self>, Failure> {
        let refuse = |why: &str| Err(Failure::Usage(format!("{}: {why}", path.display())));
        let found = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(|error| failed(path, &error))?,
        };
        if found.is_symlink() {
            return refuse("is a symbolic link; name the path that it leads to");
        }
        match (block, found.is_dir()) {
            (true, false) if found.is_file() && found.len() == 0 => Ok(None),
            (true, _) => refuse("exists; with --block, name a file that does not"),
            (false, false) => refuse("is not a directory"),
            (false, true) => {
                let mut entries = fs::read_dir(path).map_err(|error| failed(path, &error))?;
                match entries.next() {
                    None => Ok(Some(Self::of(&found))),
                    Some(_) => refuse("is not empty; name an empty directory, or none"),
                }
            }
        }
    }

    fn of(metadata: &Metadata) -> Self {
        Self {
            mode: metadata.mode() & PERMISSIONS,
            uid: metadata.uid(),
            gid: metadata.gid(),
        }
    }

    /// Creates the directory again, with its mode and owner. Leaves an existing directory
    /// unchanged.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub(super) fn restore(&self, path: &Path) -> Result<(), Failure> {
        let made = match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // Set the owner before the mode, since chown(2) clears bits of the mode.
            made => made
                .and_then(|()| chown(path, Some(self.uid), Some(self.gid)))
                .and_then(|()| fs::set_permissions(path, Permissions::from_mode(self.mode))),
        };
        made.map_err(|error| failed(path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_empty_directory_is_the_same_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine");
        assert_eq!(Place::inspect(&path, false).unwrap(), None);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o2710)).unwrap();
        let place = Place::inspect(&path, false).unwrap().unwrap();
        fs::remove_dir(&path).unwrap();
        // Restore the directory twice: if a concurrent `umount` has already restored the directory,
        // nothing must change.
        for _ in 0..2 {
            place.restore(&path).unwrap();
            let now = Place::inspect(&path, false).unwrap();
            assert_eq!((now.as_ref(), place.mode), (Some(&place), 0o2710));
        }
    }

    #[test]
    fn what_a_mount_would_hide_or_leave_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/old"), "data").unwrap();
        symlink(at("full"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::write(at("blank"), "").unwrap();
        for (name, block, why) in [
            ("full", false, "not empty"),
            ("link", false, "symbolic link"),
            ("dangling", false, "symbolic link"),
            ("blank", false, "not a directory"),
            ("full/old", true, "exists"),
            ("empty", true, "exists"),
            ("link", true, "symbolic link"),
        ] {
            let refused = Place::inspect(&at(name), block).unwrap_err().to_string();
            let path = at(name).display().to_string();
            assert!(
                refused.contains(why) && refused.contains(&path),
                "{refused}"
            );
        }
        assert_eq!(Place::inspect(&at("blank"), true).unwrap(), None);
        assert_eq!(fs::read_to_string(at("full/old")).unwrap(), "data");
    }
}
