//! The data that the demo writes to volumes: a pattern that is read back, writes that must fail,
//! and the records of a simulated pod that keeps writing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use belay_bed::chance::Chance;
use belay_bed::patience::pause;
use rustix::fs::Advice;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::report::Kind;

/// The size of the pattern, in bytes.
pub(crate) const DATA_BYTES: usize = 4 << 20;
/// The size of a record in bytes, equal to the block size of the filesystems.
const RECORD_BYTES: usize = 4096;
/// The maximum number of records, so that a demo on a slow machine does not fill the disk.
const RECORDS_MAX: u64 = 16 << 10;
/// The offset that is added to the seed of a record, so that its pattern differs from adjacent
/// data.
const RECORD_SEED: u64 = 1 << 41;

/// Returns the path of a volume's data, the path of its records, and the offset of the records in
/// bytes. In a filesystem, the data and the records are two files; on a raw device, they are two
/// ranges of the device.
fn places(kind: Kind, target: &Path) -> (PathBuf, PathBuf, u64) {
    if kind.is_block() {
        (target.to_owned(), target.to_owned(), DATA_BYTES as u64)
    } else {
        (target.join("data"), target.join("records"), 0)
    }
}

fn open_to_write(kind: Kind, path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(!kind.is_block()).open(path);
    file.with_context(|| path.display().to_string())
}

/// Opens a file or device and drops its page cache, so that data is read from the volume.
fn open_to_read(path: &Path) -> Result<File> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(file)
}

/// Writes the pattern of `seed` and makes it durable. Returns the duration of the write and the
/// sync.
///
/// # Errors
/// Fails if a system call fails.
pub(crate) fn write(kind: Kind, target: &Path, seed: u64) -> Result<Duration> {
    let (path, ..) = places(kind, target);
    let pattern = Chance::seeded(seed).bytes(DATA_BYTES);
    let started = Instant::now();
    let mut file = open_to_write(kind, &path)?;
    let written = file.write_all(&pattern).and_then(|()| file.sync_all());
    written.with_context(|| format!("write {}", path.display()))?;
    Ok(started.elapsed())
}

/// Reads the data and compares it with the pattern of `seed`. Returns the duration of the read.
///
/// # Errors
/// Fails if a system call fails, or a byte differs.
pub(crate) fn compare(kind: Kind, target: &Path, seed: u64) -> Result<Duration> {
    let (path, ..) = places(kind, target);
    let mut found = vec![0; DATA_BYTES];
    let started = Instant::now();
    let read = open_to_read(&path)?.read_exact(&mut found);
    read.with_context(|| format!("read {}", path.display()))?;
    let took = started.elapsed();
    let written = Chance::seeded(seed).bytes(DATA_BYTES);
    let mut pairs = found.iter().zip(&written);
    if let Some(at) = pairs.position(|(now, then)| now != then) {
        bail!("{}: differs at byte {at}", path.display());
    }
    Ok(took)
}

/// Proves that nothing can be written below `target`.
///
/// # Errors
/// Fails if a write succeeds, or fails with an errno other than EROFS.
pub(crate) fn refuses_writes(target: &Path) -> Result<()> {
    let path = target.join("must-not-be");
    match File::create(&path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::ROFS) => Ok(()),
        Err(error) => bail!("{}: {error}, expected EROFS", path.display()),
        Ok(_) => bail!("{}: is writable", path.display()),
    }
}

/// A simulated pod: a thread that keeps writing numbered records, each of which is durable before
/// the next one is begun. Therefore a copy of the volume must contain all records up to some
/// number, and no record after that number.
pub(crate) struct Writer {
    /// The number of durable records, and whether the writing thread must stop.
    state: Arc<(AtomicU64, AtomicBool)>,
    thread: JoinHandle<io::Result<()>>,
}

impl Writer {
    /// Starts to write records to the published volume, next to the other data on the volume.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub(crate) fn start(kind: Kind, target: &Path, seed: u64) -> Result<Self> {
        let (_, path, offset) = places(kind, target);
        let file = open_to_write(kind, &path)?;
        let state = Arc::<(AtomicU64, AtomicBool)>::default();
        let ours = Arc::clone(&state);
        let write = move || {
            for number in 0..RECORDS_MAX {
                let at = offset + number * RECORD_BYTES as u64;
                file.write_all_at(&record(seed, number), at)?;
                file.sync_data()?;
                ours.0.store(number + 1, Ordering::SeqCst);
                if ours.1.load(Ordering::SeqCst) {
                    break;
                }
                pause();
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().spawn(write)?;
        Ok(Self { state, thread })
    }

    /// Returns the number of durable records. A copy of the volume that is created after this call
    /// contains at least this number of records. A copy that was created before this call contains
    /// at most one more record.
    pub(crate) fn durable(&self) -> u64 {
        self.state.0.load(Ordering::SeqCst)
    }

    /// Waits until `more` further records are durable. Returns the number of all durable records.
    pub(crate) async fn wait_for(&self, more: u64) -> u64 {
        let enough = self.durable() + more;
        while self.durable() < enough && !self.thread.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.durable()
    }

    /// Stops writing. Returns the number of durable records.
    ///
    /// # Errors
    /// Fails if a write failed.
    pub(crate) fn stop(self) -> Result<u64> {
        self.state.1.store(true, Ordering::SeqCst);
        let panicked = |_| Err(io::Error::other("it panicked"));
        let wrote = self.thread.join().unwrap_or_else(panicked);
        wrote.context("writing records")?;
        Ok(self.state.0.load(Ordering::SeqCst))
    }
}

fn record(seed: u64, number: u64) -> Vec<u8> {
    Chance::seeded(RECORD_SEED + (seed << 16 | number)).bytes(RECORD_BYTES)
}

/// Counts the complete records in the volume, up to the first gap.
///
/// # Errors
/// Fails if the volume cannot be read.
pub(crate) fn count(kind: Kind, target: &Path, seed: u64) -> Result<u64> {
    let (_, path, offset) = places(kind, target);
    let file = open_to_read(&path)?;
    let mut found = vec![0; RECORD_BYTES];
    for number in 0..RECORDS_MAX {
        match file.read_exact_at(&mut found, offset + number * RECORD_BYTES as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(number),
            read => read.with_context(|| format!("read {}", path.display()))?,
        }
        if found != record(seed, number) {
            return Ok(number);
        }
    }
    Ok(RECORDS_MAX)
}

/// Whether the size has grown by at least half. The demo doubles the size of a volume, but the size
/// of a filesystem may grow by less, because the filesystem itself uses some of the space.
pub(crate) fn has_grown(before: u64, after: u64) -> bool {
    after >= before / 2 * 3
}

/// Whether this process lacks the permission to grow a mounted filesystem of this kind. For ext4,
/// this permission is CAP_SYS_RESOURCE.
///
/// # Errors
/// Fails if a system call fails.
pub(crate) fn cannot_grow(kind: Kind) -> Result<bool> {
    let ours = rustix::thread::capabilities(None)?.effective;
    Ok(kind == Kind::Ext4 && !ours.contains(CapabilitySet::SYS_RESOURCE))
}

/// Proves that a path does not exist.
///
/// # Errors
/// Fails if the path exists.
pub(crate) fn is_gone(path: &Path) -> Result<()> {
    let exists = path.is_symlink() || path.try_exists()?;
    ensure!(!exists, "{}: still exists", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_back_and_a_flipped_byte_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("data");
        write(Kind::Xfs, directory.path(), 3).unwrap();
        compare(Kind::Xfs, directory.path(), 3).unwrap();
        let other = compare(Kind::Xfs, directory.path(), 4).unwrap_err();
        assert!(other.to_string().contains("differs"), "{other}");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[77] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let error = compare(Kind::Xfs, directory.path(), 3)
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("at byte 77"), "{error}");
    }

    #[test]
    fn a_writable_target_does_not_pass_as_read_only() {
        let directory = tempfile::tempdir().unwrap();
        let error = refuses_writes(directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("is writable"), "{error}");
    }

    #[test]
    fn records_are_counted_up_to_the_first_that_is_not_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let writer = Writer::start(Kind::Xfs, path, 7).unwrap();
        while writer.durable() < 5 {
            std::thread::yield_now();
        }
        let total = writer.stop().unwrap();
        assert_eq!(count(Kind::Xfs, path, 7).unwrap(), total);
        assert_eq!(count(Kind::Xfs, path, 8).unwrap(), 0, "other records");

        let file = OpenOptions::new()
            .write(true)
            .open(path.join("records"))
            .unwrap();
        file.set_len(total * RECORD_BYTES as u64 - 1).unwrap();
        assert_eq!(count(Kind::Xfs, path, 7).unwrap(), total - 1, "torn");
        file.write_all_at(b"!!", 3 * RECORD_BYTES as u64 + 9)
            .unwrap();
        assert_eq!(count(Kind::Xfs, path, 7).unwrap(), 3, "a gap");
    }
}
