//! `state.redb` as a file: where it is, how it is opened, and that it has room on disk. Must not
//! know what is in it.

use super::fault::{at, os};
use belay_server::failure::{Failure, Kind};
use redb::Database;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

/// Pages kept in memory; the default of 1 GiB is for databases, not for a list of volumes.
const CACHE_BYTES: usize = 16 << 20;

/// Least room on disk that the file is given, so that a full disk does not stop a small change.
const RESERVE_BYTES: u64 = 4 << 20;

/// Opens it. An empty file is an error: what was in it was lost.
pub(super) fn open(path: &Path) -> Result<Database, Failure> {
    reserve(path)?;
    builder().open(path).map_err(failed)
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

/// Takes the blocks of the file, and as many again for its growth, while there are some.
fn reserve(path: &Path) -> Result<(), Failure> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(|error| at("open", path, &error))?;
    let length = file.metadata().map_err(|error| at("stat", path, &error))?;
    let bytes = length.len().saturating_mul(2).max(RESERVE_BYTES);
    if let Err(errno) = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        // Not needed as long as the disk is not full.
        tracing::warn!("{}", os("fallocate", path, errno));
    }
    Ok(())
}
