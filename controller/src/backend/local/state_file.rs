//! `state.redb` as a file: where it is, how it is opened, that it has room on disk, and that nobody
//! put another one in its place. Must not know what is in it.

use super::fault::{at, os};
use super::files::Inode;
use belay_server::call::{Failure, Kind};
use redb::Database;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

/// Pages kept in memory; the default of 1 GiB is for databases, not for a list of volumes.
const CACHE_BYTES: usize = 16 << 20;

/// Least room on disk that the file is given, so that a full disk does not stop a small change.
const RESERVE_BYTES: u64 = 4 << 20;

/// The file that this process works with.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// Open for as long as this is in use, so that the kernel gives its number to no other file.
    file: File,
}

impl StateFile {
    /// Finds it in that directory.
    ///
    /// # Errors
    /// `Unreachable`, naming the path.
    pub(super) fn find(dir: &Path) -> Result<Self, Failure> {
        let path = path_in(dir);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| at("open", &path, &error))?;
        Ok(Self { path, file })
    }

    /// Opens what is in it. An empty file is an error: what was in it was lost.
    pub(super) fn open(&self) -> Result<Database, Failure> {
        self.reserve()?;
        let database = builder().open(&self.path).map_err(failed)?;
        self.refuse_replaced()?;
        Ok(database)
    }

    /// Refuses to go on with a file that has lost its name: the next start would know nothing of
    /// what is written into it.
    ///
    /// # Errors
    /// `Unreachable`.
    pub(super) fn refuse_replaced(&self) -> Result<(), Failure> {
        let opened = rustix::fs::fstat(&self.file);
        let opened = opened.map_err(|errno| os("fstat", &self.path, errno))?;
        match rustix::fs::stat(&self.path) {
            Ok(named) if Inode::from(named) == Inode::from(opened) => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(replaced(&self.path)),
            Err(errno) => Err(os("stat", &self.path, errno)),
        }
    }

    /// Takes the blocks of the file, and as many again for its growth, while there are some.
    fn reserve(&self) -> Result<(), Failure> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| at("stat", &self.path, &error))?;
        let bytes = metadata.len().saturating_mul(2).max(RESERVE_BYTES);
        let keep_size = FallocateFlags::KEEP_SIZE;
        if let Err(errno) = rustix::fs::fallocate(&self.file, keep_size, 0, bytes) {
            // Not needed as long as the disk is not full.
            tracing::warn!("{}", os("fallocate", &self.path, errno));
        }
        Ok(())
    }
}

/// How redb is used.
pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Where it is in the state directory.
pub(super) fn path_in(dir: &Path) -> PathBuf {
    dir.join("state.redb")
}

/// Puts the names in the state directory on disk.
///
/// # Errors
/// `Unreachable`, naming the directory.
pub(super) fn sync_names(dir: &Path) -> Result<(), Failure> {
    let opened = File::open(dir).map_err(|error| at("open", dir, &error))?;
    rustix::fs::fsync(&opened).map_err(|errno| os("fsync", dir, errno))
}

/// An error of redb, and what to do about it.
pub(super) fn failed(error: impl Into<redb::Error>) -> Failure {
    let error = error.into();
    Failure::new(
        Kind::Unreachable,
        format!(
            "state.redb: {error}; free or mend the disk of the state directory, and repeat the call"
        ),
    )
}

/// What the file of that name knows of the object of the call, the next start tells: no code must
/// say that nothing is left of it.
fn replaced(path: &Path) -> Failure {
    let failure = Failure::new(
        Kind::Unreachable,
        format!(
            "{}: was replaced or removed beneath the running controller, so no call is \
             acknowledged; make sure that the state directory is complete, and restart the \
             controller",
            path.display()
        ),
    );
    failure.may_be_running()
}
