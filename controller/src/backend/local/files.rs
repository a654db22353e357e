//! The backing files `<state-dir>/volumes/<id>` and `<state-dir>/snapshots/<id>`: sparse, with mode
//! 0600. Unless noted otherwise, the effect of a method is on disk when it returns. This module
//! contains no policy, and does not use the records in the ledger.

mod attributes;
mod copy;
mod filesystem;
#[cfg(test)]
pub(super) mod journal;
mod lease;
mod link;
mod open;

pub(super) use attributes::Use;
pub(super) use copy::{COPIED_BYTES, Copied};
pub(super) use filesystem::{is_copied_on_write, set_nocow};
pub(super) use link::{Inode, names_of};
pub(super) use open::{foreign, missing};

use super::fault::{at, os, truncated};
use belay_contract::drivers::local::{HOME, HOME_BYTES_MAX};
use belay_server::call::Failure;
#[cfg(test)]
use journal::Call;
use lease::Writers;
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, Stat, StatVfs, XattrFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The name of the counter of copies that were made although the kernel could not report whether
/// another program writes to the file.
pub(super) const UNCHECKED: &str = "belay_controller_unchecked_copies_total";

/// Maximum number of attempts while another program uses a file. With the pause [`BETWEEN_TRIES`],
/// all attempts together take one second.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// A directory with backing files.
#[derive(Debug)]
pub(super) struct Files {
    dir: File,
    path: PathBuf,
    is_btrfs: bool,
}

/// The size and usage of the filesystem with the backing files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// The size of the filesystem.
    pub(super) total: u64,
    /// The space that is used for data or metadata of any owner, or reserved for root.
    pub(super) taken: u64,
}

impl Files {
    /// Opens the directory. If the directory is missing, creates it with mode 0700.
    ///
    /// # Errors
    /// Returns `Unreachable`, naming the path.
    pub(super) fn open(path: PathBuf) -> Result<Self, Failure> {
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .or_else(|error| match error.kind() {
                ErrorKind::AlreadyExists => Ok(()),
                _ => Err(at("mkdir", &path, &error)),
            })?;
        // Opening a FIFO would block until another process opens it. `O_DIRECTORY` refuses it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty());
        let dir = File::from(dir.map_err(|errno| os("open", &path, errno))?);
        let is_btrfs = filesystem::is_btrfs(&dir).map_err(|errno| os("fstatfs", &path, errno))?;
        Ok(Self {
            dir,
            path,
            is_btrfs,
        })
    }

    /// Sets the attribute [`HOME`] of the directory.
    ///
    /// # Errors
    /// Returns `Unreachable` if the attribute cannot be written.
    pub(super) fn set_home(&self, home: &str) -> Result<(), Failure> {
        let mut now = [0; HOME_BYTES_MAX];
        let length = rustix::fs::fgetxattr(&self.dir, HOME, &mut now);
        if length.is_ok_and(|length| now[..length] == *home.as_bytes()) {
            return Ok(());
        }
        rustix::fs::fsetxattr(&self.dir, HOME, home.as_bytes(), XattrFlags::empty())
            .map_err(|errno| os("fsetxattr", &self.path, errno))?;
        self.sync()
    }

    /// Returns the path of the file with this ID.
    pub(super) fn path_of(&self, id: &str) -> PathBuf {
        self.path.join(id)
    }

    /// Creates an empty file. A power failure may lose the file until [`Self::sync`] returns.
    ///
    /// # Errors
    /// Returns `Quota` or `Unreachable`. In both cases, no file is created.
    pub(super) fn begin(&self, id: &str) -> Result<Backing, Failure> {
        let path = self.path_of(id);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, id, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| os("create", &path, errno))?;
        let file = Backing {
            file: file.into(),
            path,
            names: 1,
        };
        #[cfg(test)]
        journal::note(Call::Change(self.path.clone()));
        if self.is_btrfs {
            file.write_in_place();
        }
        Ok(file)
    }

    /// Returns the number of bytes allocated to the file with this ID; 0 if it does not exist.
    pub(super) fn allocated(&self, id: &str) -> u64 {
        let stat = rustix::fs::statat(&self.dir, id, AtFlags::SYMLINK_NOFOLLOW);
        // Per stat(2), st_blocks counts units of 512 bytes, regardless of the block size.
        stat.map_or(0, |stat| stat.st_blocks.unsigned_abs().saturating_mul(512))
    }

    /// Removes the file with this ID; succeeds if it does not exist.
    pub(super) fn remove(&self, id: &str) -> Result<(), Failure> {
        match rustix::fs::unlinkat(&self.dir, id, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(os("unlink", &self.path_of(id), errno)),
        }
        #[cfg(test)]
        journal::note(Call::Change(self.path.clone()));
        self.sync()
    }

    /// Calls `see` with each name in the directory and the number of bytes allocated to that file.
    pub(super) fn each(&self, mut see: impl FnMut(&str, u64)) -> Result<(), Failure> {
        let failed = |error: &std::io::Error| at("readdir", &self.path, error);
        for entry in std::fs::read_dir(&self.path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            // The file may have been removed after readdir(3) returned its name; it then has no
            // blocks.
            let blocks = entry.metadata().map_or(0, |metadata| metadata.blocks());
            // Per stat(2), st_blocks counts units of 512 bytes, regardless of the block size.
            see(
                &entry.file_name().to_string_lossy(),
                blocks.saturating_mul(512),
            );
        }
        Ok(())
    }

    /// Returns the size and usage of the filesystem, in bytes.
    pub(super) fn room(&self) -> Result<Room, Failure> {
        Ok(Room::of(&self.statvfs()?))
    }

    /// Returns the result of fstatvfs(3) for the directory.
    pub(super) fn statvfs(&self) -> Result<StatVfs, Failure> {
        rustix::fs::fstatvfs(&self.dir).map_err(|errno| os("statvfs", &self.path, errno))
    }

    /// Returns the descriptor of the directory.
    pub(super) fn dir(&self) -> &File {
        &self.dir
    }

    /// Returns the maximum size of a file on this filesystem, in bytes: the last offset that
    /// lseek(2) accepts. All files have the same limit, so `any` may be any file on the filesystem.
    pub(super) fn largest(&self, any: &File) -> u64 {
        last_accepted(|offset| rustix::fs::seek(any, SeekFrom::Start(offset)).is_ok())
    }

    /// Syncs the directory, so that the names of all files are on disk.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        #[cfg(test)]
        journal::note(Call::Sync(self.path.clone()));
        rustix::fs::fsync(&self.dir).map_err(|errno| os("fsync", &self.path, errno))
    }
}

/// Returns the largest offset that `is_accepted` accepts. All smaller offsets must be accepted,
/// too.
fn last_accepted(is_accepted: impl Fn(u64) -> bool) -> u64 {
    let (mut good, mut bad) = (0, i64::MAX.unsigned_abs());
    if is_accepted(bad) {
        return bad;
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match is_accepted(middle) {
            true => good = middle,
            false => bad = middle,
        }
    }
    good
}

/// Polls until `is_so` returns false, for at most a second.
#[expect(
    clippy::disallowed_methods,
    reason = "no event reports that another program closed a file"
)]
pub(super) fn patiently(mut is_so: impl FnMut() -> bool) {
    for _ in 0..TRIES {
        if !is_so() {
            return;
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
}

impl Room {
    fn of(stat: &StatVfs) -> Self {
        // Per statvfs(3), f_bfree includes the space reserved for root, and f_bavail does not.
        let taken = stat.f_blocks.saturating_sub(stat.f_bavail);
        Self {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            taken: taken.saturating_mul(stat.f_frsize),
        }
    }
}

/// An open backing file.
#[derive(Debug)]
pub(super) struct Backing {
    file: File,
    path: PathBuf,
    /// The number of names (hard links) when the file was opened.
    names: u64,
}

impl Backing {
    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the file, in bytes.
    pub(super) fn bytes(&self) -> Result<u64, Failure> {
        Ok(self.stat()?.st_size.unsigned_abs())
    }

    fn stat(&self) -> Result<Stat, Failure> {
        rustix::fs::fstat(&self.file).map_err(|errno| os("fstat", &self.path, errno))
    }

    /// Returns the time of the last change of the content (mtime).
    pub(super) fn modified(&self) -> Result<SystemTime, Failure> {
        let modified = self
            .file
            .metadata()
            .and_then(|metadata| metadata.modified());
        modified.map_err(|error| at("fstat", &self.path, &error))
    }

    /// Refuses a file that is smaller than `least_bytes`, since growing or copying it would hide
    /// the loss of data.
    ///
    /// # Errors
    /// Returns `Precondition` if the file is smaller.
    pub(super) fn refuse_truncated(&self, least_bytes: u64) -> Result<(), Failure> {
        match self.bytes()? {
            bytes if bytes < least_bytes => Err(Failure::precondition(truncated(
                self.path.display(),
                bytes,
                least_bytes,
            ))),
            _ => Ok(()),
        }
    }

    /// Writes all data of the file to disk, including data that other processes have written.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        #[cfg(test)]
        journal::note(Call::Sync(self.path.clone()));
        rustix::fs::fsync(&self.file).map_err(|errno| os("fsync", &self.path, errno))
    }

    /// Whether the file contains any data, even zeros, and not only holes.
    pub(super) fn holds_data(&self) -> Result<bool, Failure> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(0)) {
            Ok(_) => Ok(true),
            // Per lseek(2), ENXIO means that there is no data at or after the offset.
            Err(Errno::NXIO) => Ok(false),
            Err(errno) => Err(os("lseek", &self.path, errno)),
        }
    }

    /// Whether the file has lost all its data: the volume was used, but the file has no data.
    pub(super) fn is_emptied(&self) -> Result<bool, Failure> {
        Ok(!self.holds_data()? && self.use_so_far()? == Use::Used)
    }

    /// Whether another program has the file open for writing without a lock on it. Ignores a
    /// program that closes the file within a second. Returns false if the file is locked: then a
    /// loop device or a copy by Belay uses the file, and this process may itself have it open for
    /// writing. If the filesystem does not report writers, increments a counter and returns false.
    /// The file must be open read-only.
    pub(super) fn has_writer(&self) -> Result<bool, Failure> {
        let (mut writers, mut locked) = (Writers::Some, Ok(false));
        patiently(|| {
            locked = self.is_locked();
            writers = match locked {
                Ok(false) => lease::writers(&self.file),
                _ => Writers::None,
            };
            writers == Writers::Some
        });
        locked?;
        if let Writers::Unknown(errno) = writers {
            metrics::counter!(UNCHECKED).increment(1);
            let path = self.path.display();
            tracing::warn!("{path}: copied without a check for other writers: F_SETLEASE: {errno}");
        }
        Ok(writers == Writers::Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use rustix::fs::StatVfsMountFlags;

    #[test]
    fn what_is_kept_back_for_root_is_taken() {
        let stat = StatVfs {
            f_bsize: 4096,
            f_frsize: 1024,
            f_blocks: 1000,
            f_bfree: 900,
            f_bavail: 850,
            f_files: 0,
            f_ffree: 0,
            f_favail: 0,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        };
        let room = Room {
            total: 1_024_000,
            taken: 153_600,
        };
        assert_eq!(Room::of(&stat), room);
    }

    #[test]
    fn the_largest_file_is_found_whatever_its_size() {
        let all = i64::MAX.unsigned_abs();
        for last in [0, 1, 2, (1 << 44) - 4096, (1 << 44) - 4095, all - 1, all] {
            assert_eq!(last_accepted(|offset| offset <= last), last);
        }
    }

    #[test]
    fn a_file_without_leases_has_no_known_writer_which_is_counted() {
        let null = Path::new("/dev/null");
        let backing = Backing {
            file: File::open(null).unwrap(),
            path: null.to_owned(),
            names: 1,
        };
        let recorder = PrometheusBuilder::new().build_recorder();
        for times in [1, 2] {
            let asked = metrics::with_local_recorder(&recorder, || backing.has_writer());
            assert_eq!(asked, Ok(false));
            let page = recorder.handle().render();
            let sample = format!("\nbelay_controller_unchecked_copies_total {times}\n");
            assert!(page.contains(&sample), "{page}");
        }
    }
}
