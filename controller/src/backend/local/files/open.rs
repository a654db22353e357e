//! Opens backing files. Refuses an object that has the name of a backing file but is not a regular
//! file, e.g. a directory.

#[cfg(test)]
use super::journal::{self, Call};
use super::{Backing, Files, names_of, patiently};
use crate::backend::local::fault::os;
use belay_server::call::Failure;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

impl Files {
    /// Opens the file with this ID; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Precondition` if the object with this name is not a regular file, and `Busy` if
    /// another program holds a lease on the file for more than a second.
    pub(in crate::backend::local) fn find(&self, id: &str) -> Result<Option<Backing>, Failure> {
        self.find_for(id, OFlags::RDWR)
    }

    /// Opens the file with this ID read-only; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`Self::find`].
    pub(in crate::backend::local) fn find_for_reading(
        &self,
        id: &str,
    ) -> Result<Option<Backing>, Failure> {
        self.find_for(id, OFlags::RDONLY)
    }

    /// Opens the file with this ID read-only.
    ///
    /// # Errors
    /// Returns `Precondition` if the file does not exist, and the errors of [`Self::find`].
    pub(in crate::backend::local) fn get_for_reading(&self, id: &str) -> Result<Backing, Failure> {
        self.find_for_reading(id)?
            .ok_or_else(|| Failure::precondition(missing(&self.path_of(id))))
    }

    fn find_for(&self, id: &str, access: OFlags) -> Result<Option<Backing>, Failure> {
        let path = self.path_of(id);
        // With `O_NONBLOCK`, open(2) fails at once if another process holds a lease. Without
        // `O_NONBLOCK`, open(2) waits for up to 45 s.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut opened = Err(Errno::WOULDBLOCK);
        #[cfg(test)]
        journal::note(Call::Open(path.clone()));
        patiently(|| {
            opened = rustix::fs::openat(&self.dir, id, flags, Mode::empty());
            matches!(opened, Err(Errno::WOULDBLOCK))
        });
        match opened {
            Ok(file) => {
                let mut file = Backing {
                    file: file.into(),
                    path,
                    names: 1,
                };
                let stat = file.stat()?;
                file.names = names_of(&stat);
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::RegularFile => Ok(Some(file)),
                    _ => Err(Failure::precondition(foreign(&file.path))),
                }
            }
            Err(Errno::NOENT) => Ok(None),
            // Per open(2), these errors mean a symbolic link with `O_NOFOLLOW`, a directory opened
            // for writing, and a socket.
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                Err(Failure::precondition(foreign(&path)))
            }
            Err(Errno::WOULDBLOCK) => Err(Failure::busy(format!(
                "open {}: another program holds a lease on it; repeat the call",
                path.display()
            ))),
            Err(errno) => Err(os("open", &path, errno)),
        }
    }

    /// Opens the file with this ID.
    ///
    /// # Errors
    /// Returns `Precondition` if the file does not exist, and the errors of [`Self::find`].
    pub(in crate::backend::local) fn get(&self, id: &str) -> Result<Backing, Failure> {
        self.find(id)?
            .ok_or_else(|| Failure::precondition(missing(&self.path_of(id))))
    }
}

/// Returns the message for a missing backing file.
pub(in crate::backend::local) fn missing(path: &Path) -> String {
    format!(
        "{}: the file is missing; mount the filesystem that holds it, or restore it (to abandon \
         its data, create an empty file there and delete the volume or snapshot)",
        path.display()
    )
}

/// Returns the message for a directory, link or device with the name of a backing file.
pub(in crate::backend::local) fn foreign(path: &Path) -> String {
    format!(
        "{}: is not a regular file; move it away and restore the file",
        path.display()
    )
}
