//! Manages the file `state.redb`: creates and opens the file, reserves its space on disk, and
//! detects that it was replaced. This module does not interpret the content of the file.

use super::fault::{at, os};
use super::files::{Inode, is_copied_on_write, set_nocow};
use belay_server::call::{Failure, Kind};
use redb::Database;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, FileType, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The size of redb's cache, in bytes. The default of 1 GiB is for larger databases than a list of
/// volumes.
const CACHE_BYTES: usize = 16 << 20;

/// Minimum space on disk that is reserved for the file, in bytes, so that small changes succeed
/// while the disk is full.
const RESERVE_BYTES: u64 = 4 << 20;

/// Whether a regular file exists at this path in the state directory. Must be called before the
/// path is opened, since opening a FIFO blocks until another process opens it, and opening a device
/// may change the device.
///
/// # Errors
/// Returns `Precondition`, with the `remedy`, if the object is neither a regular file nor a
/// symbolic link to one.
pub(super) fn is_there(path: &Path, remedy: &str) -> Result<bool, Failure> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(true),
        Ok(metadata) => Err(Failure::precondition(format!(
            "{}: is {}, not a regular file; {remedy}",
            path.display(),
            described(metadata.file_type())
        ))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(at("stat", path, &error)),
    }
}

fn described(special: FileType) -> &'static str {
    match () {
        () if special.is_dir() => "a directory",
        () if special.is_fifo() => "a FIFO",
        () if special.is_socket() => "a socket",
        () => "a device",
    }
}

/// The open file of the database.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// The open file. The file is kept open so that the kernel does not reuse its inode number.
    file: File,
}

impl StateFile {
    /// Opens `state.redb` in this directory.
    ///
    /// # Errors
    /// Returns `Unreachable`, naming the path.
    pub(super) fn find(dir: &Path) -> Result<Self, Failure> {
        let path = path_in(dir);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| at("open", &path, &error))?;
        if is_copied_on_write(&file) == Ok(true) {
            tracing::warn!(
                "{}: btrfs copies it on write, so that once the disk is full, no volume can be \
                 changed or deleted; stop the controller, and copy the file into an empty one with \
                 the attribute NOCOW (chattr +C)",
                path.display()
            );
        }
        Ok(Self { path, file })
    }

    /// Opens the database. Fails if the file is empty, since an empty file has lost its content.
    pub(super) fn open(&self) -> Result<Database, Failure> {
        self.reserve()?;
        let opened = builder().open(&self.path);
        let database = opened.map_err(|error| failed_at(&self.path, error))?;
        self.refuse_replaced()?;
        Ok(database)
    }

    /// Refuses to use a file that is no longer at its path, since the next start would not see the
    /// changes.
    ///
    /// # Errors
    /// Returns `Unreachable` if another file, or no file, is at the path.
    pub(super) fn refuse_replaced(&self) -> Result<(), Failure> {
        let opened = rustix::fs::fstat(&self.file);
        let opened = opened.map_err(|errno| os("fstat", &self.path, errno))?;
        match rustix::fs::stat(&self.path) {
            Ok(named) if Inode::from(named) == Inode::from(opened) => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(replaced(&self.path)),
            Err(errno) => Err(os("stat", &self.path, errno)),
        }
    }

    /// Allocates disk blocks for twice the size of the file, and at least [`RESERVE_BYTES`], so
    /// that the file can grow. Logs a failure.
    fn reserve(&self) -> Result<(), Failure> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| at("stat", &self.path, &error))?;
        if let Err(errno) = allocate(&self.file, metadata.len()) {
            // The reserved space is needed only when the disk is full, so ignore a failed
            // reservation.
            tracing::warn!("{}", os("fallocate", &self.path, errno));
        }
        Ok(())
    }
}

fn allocate(file: &File, bytes: u64) -> Result<(), Errno> {
    let bytes = bytes.saturating_mul(2).max(RESERVE_BYTES);
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)
}

/// Creates an empty file under a temporary name, and returns it with its path. [`give_name`]
/// renames it.
///
/// # Errors
/// Returns `Unreachable`, naming the path.
pub(super) fn draft(dir: &Path) -> Result<(File, PathBuf), Failure> {
    let path = dir.join("state.redb.new");
    is_there(&path, "remove it")?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.mode(0o600).open(&path);
    let file = file.map_err(|error| at("open", &path, &error))?;
    if let Err(failure) = keep_in_place(&file, &path) {
        tracing::warn!("{failure}");
    }
    Ok((file, path))
}

/// Sets NOCOW on an empty file if it is on a btrfs that would allocate new blocks for overwrites.
///
/// # Errors
/// Returns `Unreachable`, with the remedy.
fn keep_in_place(file: &File, path: &Path) -> Result<(), Failure> {
    let kept = match is_copied_on_write(file) {
        Ok(true) => set_nocow(file),
        is => is.map(|_| ()),
    };
    // Files with the attribute `c` of chattr(1) (compressed) cannot have NOCOW, and new files
    // inherit `c`.
    let remedy = "if the state directory is compressed, end that for new files (`btrfs property \
                  set DIR compression none`)";
    kept.map_err(|errno| {
        let failure = os("ioctl FS_IOC_SETFLAGS NOCOW", path, errno);
        let message = format!("{}; {remedy}", failure.message);
        Failure { message, ..failure }
    })
}

/// Renames the draft, whose content must be on disk, to `state.redb`.
///
/// # Errors
/// Returns `Unreachable`, naming the path.
pub(super) fn give_name(dir: &Path, draft: &Path) -> Result<(), Failure> {
    let renamed = std::fs::rename(draft, path_in(dir));
    renamed.map_err(|error| at("rename", draft, &error))?;
    sync_names(dir)
}

/// Returns a builder with the settings for redb.
pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Returns the path of `state.redb` in a state directory.
pub(super) fn path_in(dir: &Path) -> PathBuf {
    dir.join("state.redb")
}

/// Syncs the state directory, so that the names of its files are on disk.
///
/// # Errors
/// Returns `Unreachable`, naming the directory.
pub(super) fn sync_names(dir: &Path) -> Result<(), Failure> {
    let opened = File::open(dir).map_err(|error| at("open", dir, &error))?;
    rustix::fs::fsync(&opened).map_err(|errno| os("fsync", dir, errno))
}

/// Converts an error of redb to a failure, with the remedy.
pub(super) fn failed(error: impl Into<redb::Error>) -> Failure {
    failed_at(Path::new("state.redb"), error)
}

fn failed_at(path: &Path, error: impl Into<redb::Error>) -> Failure {
    use redb::Error::{Corrupted, Io, RepairAborted, UpgradeRequired};
    let error = error.into();
    let is_damaged = match &error {
        Corrupted(_) | RepairAborted | UpgradeRequired(_) => true,
        Io(error) => matches!(
            error.kind(),
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof
        ),
        _ => false,
    };
    let message = match is_damaged {
        true => format!(
            "{path}: is damaged, or no database of Belay ({error}); stop the controller, check the \
             disk of the state directory, keep the file aside, and restore it from a backup; \
             volumes are not affected",
            path = path.display()
        ),
        false => format!(
            "{path}: {error}; free space on the disk of the state directory, or repair it, and \
             repeat the call",
            path = path.display()
        ),
    };
    Failure::new(Kind::Unreachable, message)
}

/// Runs `start`, which reads the database for the first time, and catches panics: redb panics on
/// some kinds of damage.
///
/// # Errors
/// Returns the errors of `start`, and `Unreachable`, naming the file, if it panics.
pub(super) fn unless_damaged<T>(start: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // `AssertUnwindSafe` is sound, since the state that a panic leaves is dropped, and cannot
    // affect another start.
    catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|_logged| Err(damaged()))
}

/// Returns the failure of a start during which redb has panicked.
pub(super) fn damaged() -> Failure {
    Failure::new(
        Kind::Unreachable,
        "state.redb: is damaged, which the panic logged before has found; check the disk of the \
         state directory, restore the file from a backup, and start the controller again",
    )
}

/// Runs `work`, which uses the open database, and catches panics: redb panics on some kinds of
/// damage.
///
/// # Errors
/// Returns [`panicked`] if `work` panics. After a panic, the database must be reopened.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_logged| panicked())
}

/// Returns the failure of a call during which redb has panicked, and of later calls until the
/// database is reopened.
pub(super) fn panicked() -> Failure {
    Failure::new(
        Kind::Unreachable,
        "state.redb: is damaged, or there is an error in Belay, as the panic logged before shows; \
         check the disk of the state directory, and repeat the call; if it fails again, restore \
         the file from a backup and restart the controller",
    )
}

/// Returns the failure of a call after the state file was replaced. The failure is not final, since
/// only the next start reads the new file. After a final failure, the caller would conclude that no
/// volume remains.
fn replaced(path: &Path) -> Failure {
    let failure = Failure::new(
        Kind::Unreachable,
        format!(
            "{}: was replaced or removed while the controller was running, so no call is \
             acknowledged; make sure that the state directory is complete, and restart the \
             controller",
            path.display()
        ),
    );
    failure.may_be_running()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_database_is_not_taken_for_a_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        let contents: [&[u8]; 3] = [b"", b"a text", &[7; 1 << 16]];
        for content in contents {
            std::fs::write(path_in(dir.path()), content).unwrap();
            let failure = StateFile::find(dir.path()).unwrap().open().unwrap_err();
            assert!(
                failure.message.contains("no database of Belay"),
                "{failure}"
            );
            assert_eq!(std::fs::read(path_in(dir.path())).unwrap(), content);
        }
    }

    #[test]
    fn names_that_could_not_be_written_to_disk_are_not_said_to_be() {
        let missing = tempfile::tempdir().unwrap().path().join("missing");
        let failure = sync_names(&missing).unwrap_err();
        assert_eq!(failure.kind, Kind::Unreachable);
        let named = format!("open {}: ENOENT", missing.display());
        assert!(failure.message.contains(&named), "{failure}");
    }
}
