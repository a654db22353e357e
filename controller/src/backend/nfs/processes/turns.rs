//! Locks on directories: at most one worker process changes a directory at a time.

use super::super::call::Mount;
use super::super::path::Dir;
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::HashSet;
use std::sync::{Arc, MutexGuard};

/// The directories that worker processes may currently be changing.
#[derive(Clone, Default)]
pub(super) struct Directories(Arc<Lock<HashSet<Directory>>>);

/// A directory on a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Directory {
    /// The server, in lower case.
    pub(super) server: String,
    share: String,
    pub(super) dir: String,
}

/// The exclusive right to change a directory. The right ends when the value is dropped.
pub(super) struct Turn {
    all: Directories,
    of: Directory,
}

impl Directory {
    pub(super) fn of(mount: &Mount, dir: &Dir) -> Self {
        Self {
            server: mount.server.to_ascii_lowercase(),
            share: mount.share.clone(),
            dir: dir.to_string(),
        }
    }
}

impl Directories {
    /// Returns the exclusive right to change a directory.
    ///
    /// # Errors
    /// Returns `Busy` if another process may still be changing the directory.
    pub(super) fn turn(&self, of: Directory) -> Result<Turn, Failure> {
        if !self.all().insert(of.clone()) {
            return Err(Failure::busy(format!(
                "directory {} of server {}: another call is changing it, or was killed and has not \
                 exited, since the server does not answer; repeat the call",
                of.dir, of.server
            )));
        }
        let all = self.clone();
        Ok(Turn { all, of })
    }

    pub(super) fn all(&self) -> MutexGuard<'_, HashSet<Directory>> {
        self.0.lock()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.all().remove(&self.of);
    }
}
